"""How much memory this process has held, and how much more the machine lets it have.

A process may not always take what the machine has free: control groups (versions 1 and 2) have the limit of a container
or of a batch system, and the process itself has the limit of a shell's `ulimit -v`. Swap never counts.
"""

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

_ROOT = Path("/")


def peak_bytes() -> int:
    """The most resident memory that this process has held so far."""
    peak = _status_bytes("VmHWM:")
    return peak if peak is not None else int(psutil.Process(os.getpid()).memory_info().rss)


def forget_peak() -> None:
    """Start the count of the peak again, where the system can do that."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def available_bytes() -> int:
    """What this process, and those it starts, may still take without swapping."""
    rooms = [int(psutil.virtual_memory().available), *cgroup_rooms()]
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        rooms.append(limit - (_status_bytes("VmSize:") or 0))
    return max(0, min(rooms))


def has_address_limit() -> bool:
    """Whether `ulimit -v` is set: then a process out of memory may crash anywhere, as few libraries check."""
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def cgroup_rooms(root: Path = _ROOT) -> Iterator[int]:
    """What every control group above this process has left. Files that are only cached make room when it is needed."""
    for group in _groups(root):
        for limit_name, usage_name, cached_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, usage = _number(group / limit_name), _number(group / usage_name)
            if limit is not None and usage is not None:
                yield limit - usage + (_entry(group / "memory.stat", cached_name) or 0)


def oom_kills(root: Path = _ROOT) -> int:
    """How many processes the kernel has killed for lack of memory; in our control group, if that has a count."""
    for group in _groups(root):
        for name in ("memory.events", "memory.oom_control"):
            count = _entry(group / name, "oom_kill")
            if count is not None:
                return count
    return _entry(root / "proc/vmstat", "oom_kill") or 0


def _groups(root: Path) -> Iterator[Path]:
    """The folders of the control groups that count this process's memory, the innermost first."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount = _mount(root, is_second=not controllers)
        if mount is None:
            continue
        inside, point = mount
        try:
            parts = PurePosixPath(path).relative_to(inside).parts
        except ValueError:
            parts = ()  # a container that sees its own group as the root
        folder = root / point.lstrip("/")
        yield from (folder.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))


def _mount(root: Path, *, is_second: bool) -> tuple[str, str] | None:
    """Which part of the tree of groups is mounted, and where."""
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2" if is_second else kind == "cgroup" and "memory" in options.split(","):
            _, _, _, inside, point = before.split(" ")[:5]
            return inside, point
    return None


def _status_bytes(name: str) -> int | None:
    for line in _lines(_ROOT / "proc/self/status"):
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return None  # not Linux


def _number(path: Path) -> int | None:
    """The number in a file; None where there is none, or it says `max`."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdecimal() else None


def _entry(path: Path, name: str) -> int | None:
    for line in _lines(path):
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return []
