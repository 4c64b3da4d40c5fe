"""The main of the reaper: a small process that ends the workers of a coordinator that was killed.

A worker ends itself when its line is closed. It cannot do so while it is stopped, or while native code keeps Python
from running; and a process that the user's code forked has no line. The reaper reads on its standard input which groups
of processes there are (`+PID`, `-PID`, a line each), and kills those that are left when the coordinator is gone. It
starts without any module of penstock, in a few milliseconds.
"""

import contextlib
import os
import select
import signal


def main() -> None:
    groups: set[int] = set()
    rest = b""
    parent = os.getppid()
    watched = [0]
    with contextlib.suppress(AttributeError, OSError):  # other systems than Linux: only the end of the input is watched
        watched.append(os.pidfd_open(parent))
    while True:
        # A process that the coordinator forked may hold the input's other end open: so the coordinator is watched, too.
        ready, _, _ = select.select(watched, [], [])
        read = os.read(0, 65536) if 0 in ready else b""
        *lines, rest = (rest + read).split(b"\n")
        for line in lines:
            pid = int(line[1:])
            groups.add(pid) if line[:1] == b"+" else groups.discard(pid)
        if not read:
            break
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
