"""The memory of a whole process tree, read from /proc: this machine's Linux is all it needs."""

import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

SAMPLE_EVERY_S = 0.05
PROC = Path("/proc")
# Proportional shares, so that a page which several processes map counts once; pages of files do not count.
COUNTED = ("Pss_Anon:", "Pss_Shmem:")


class ProcessTree:
    """A process and all its descendants, also those whose parent has ended since they were first seen."""

    def __init__(self, pid: int) -> None:
        self._members = {pid}

    def memory_bytes(self) -> int:
        """Return the tree's anonymous and shared memory at this moment."""
        parents = dict(_parents())
        self._members = {pid for pid in self._members if pid in parents}
        while found := _children(self._members, parents):
            self._members |= found
        return sum(_counted_bytes(pid) for pid in self._members)


def peak_bytes(process: subprocess.Popen[str]) -> int:
    """Wait for a process and return the peak of its tree, sampled every 50 ms."""
    return max(_samples(process), default=0)


def _samples(process: subprocess.Popen[str]) -> Iterator[int]:
    tree = ProcessTree(process.pid)
    while process.poll() is None:
        yield tree.memory_bytes()
        time.sleep(SAMPLE_EVERY_S)


def _parents() -> Iterator[tuple[int, int]]:
    """Yield (process, its parent): one pass over /proc a sample, however large the tree is."""
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (stat := _read(entry / "stat")):
            # The second field is the program's name in brackets, and it may hold anything.
            yield int(entry.name), int(stat.rpartition(")")[2].split()[1])


def _children(members: Iterable[int], parents: dict[int, int]) -> set[int]:
    known = set(members)
    return {pid for pid, parent in parents.items() if parent in known and pid not in known}


def _counted_bytes(pid: int) -> int:
    lines = (line.split() for line in _read(PROC / str(pid) / "smaps_rollup").splitlines())
    return sum(1024 * int(fields[1]) for fields in lines if fields[0] in COUNTED)


def _read(path: Path) -> str:
    """Return a file of /proc, or nothing when its process has ended meanwhile."""
    try:
        return path.read_text()
    except OSError:
        return ""
