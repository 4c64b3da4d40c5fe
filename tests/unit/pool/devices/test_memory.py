"""What a process may still take: the machine, its control groups, its own limit."""

from __future__ import annotations

import resource
from pathlib import Path

import psutil
import pytest

from penstock.core.memory import speaks_of_memory
from penstock.pool.devices.memory import available_bytes, cgroup_rooms, oom_kills, peak_bytes


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def second_version(root: Path) -> Path:
    """A machine with control groups of version 2, of which `job` inside `user` is ours."""
    write(root / "proc/self/cgroup", "0::/user/job\n")
    write(root / "proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n")
    return root / "sys/fs/cgroup"


def first_version(root: Path) -> Path:
    """One with version 1, as a container sees it: its own group is all that is mounted."""
    write(root / "proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/\n")
    mounts = [
        "31 30 0:27 /docker/abc /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct",
        "32 30 0:28 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
    ]
    write(root / "proc/self/mountinfo", "\n".join(mounts))
    return root / "sys/fs/cgroup/memory"


def test_every_group_above_a_process_leaves_it_some_room(tmp_path: Path) -> None:
    groups = second_version(tmp_path)
    write(groups / "user/job/memory.max", "max\n")
    write(groups / "user/job/memory.current", "100\n")
    write(groups / "user/memory.max", "1000\n")
    write(groups / "user/memory.current", "700\n")
    write(groups / "user/memory.stat", "anon 500\ninactive_file 150\n")
    assert list(cgroup_rooms(tmp_path)) == [1000 - 700 + 150]


def test_first_version_of_control_groups_is_read_too(tmp_path: Path) -> None:
    group = first_version(tmp_path)
    write(group / "memory.limit_in_bytes", "5000\n")
    write(group / "memory.usage_in_bytes", "4000\n")
    write(group / "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert list(cgroup_rooms(tmp_path)) == [1000]
    assert oom_kills(tmp_path) == 3


def test_kills_are_counted_by_the_innermost_group_that_counts_and_else_by_the_kernel(tmp_path: Path) -> None:
    assert oom_kills(tmp_path) == 0
    write(tmp_path / "proc/vmstat", "pgfault 1\noom_kill 7\n")
    assert oom_kills(tmp_path) == 7
    groups = second_version(tmp_path)
    write(groups / "user/memory.events", "oom 2\noom_kill 2\n")
    assert oom_kills(tmp_path) == 2
    write(groups / "user/job/memory.events", "low 0\noom 1\noom_kill 1\n")
    assert oom_kills(tmp_path) == 1


def test_machine_without_any_of_it_has_no_such_limit(tmp_path: Path) -> None:
    assert list(cgroup_rooms(tmp_path)) == []


def test_swap_is_not_available() -> None:
    assert 0 < available_bytes() <= psutil.virtual_memory().total
    assert peak_bytes() > 1 << 20


def test_limit_of_the_address_space_counts() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    taken = psutil.Process().memory_info().vms
    try:
        resource.setrlimit(resource.RLIMIT_AS, (taken + (512 << 20), hard))
        assert available_bytes() <= 512 << 20
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize(
    ("words", "is_about_memory"),
    [
        ("terminate called after throwing an instance of 'std::bad_alloc'", True),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 4. GiB", True),
        ("OSError: [Errno 12] Cannot allocate memory", True),
        ("RuntimeError: can't start new thread", True),
        ("Fatal Python error: Segmentation fault", False),
        ("", False),
    ],
)
def test_last_words_are_understood(words: str, is_about_memory: bool) -> None:
    assert speaks_of_memory(words) == is_about_memory
