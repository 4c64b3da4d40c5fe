"""A process that starts others and ends them all when its parent is gone, however that ended.

Daemons leave their parent and its session; the kernel hands them to the nearest ancestor that asked for orphans, which
is the holder. So whatever was started through it is found by its pid, and nothing of it outlives the tests.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

_PR_SET_CHILD_SUBREAPER = 36


class ProcessHolder:
    """Runs commands whose processes stay below it.

    Args:
        prefix: A command in front of the holder's own, such as `unshare --net`; it must end in an exec.
        clean_up: Commands that the holder runs at its end, when no process is left.
        folder: A folder that the holder removes at its end.
    """

    def __init__(
        self, prefix: Sequence[str] = (), clean_up: Sequence[Sequence[str]] = (), folder: Path | None = None
    ) -> None:
        last_words = json.dumps({"clean_up": clean_up, "folder": str(folder) if folder else None})
        self._process = subprocess.Popen(
            [*prefix, sys.executable, str(Path(__file__).resolve()), str(os.getpid()), last_words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a signal to the tests' group, such as Ctrl-C, does not end it before its work
            text=True,
        )
        self._answer()

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, command: Sequence[str], environment: Mapping[str, str], timeout_s: float = 120.0) -> str:
        """Run a command to its end and return what it wrote; processes that it leaves behind stay below the holder.

        Raises:
            RuntimeError: It failed.
        """
        order = {"command": list(command), "environment": dict(environment), "timeout_s": timeout_s}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        code, output = self._answer()
        if code != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {code}:\n{output}")
        return str(output)

    def processes(self) -> list[psutil.Process]:
        """All living processes below the holder, daemons included."""
        return _living_below(self.pid)

    def kill_all(self) -> None:
        """SIGKILL for every process below the holder; returns when none is left."""
        _kill_below(self.pid)

    def close(self) -> None:
        """End all processes, and clean up. May be called twice."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()

    def _answer(self) -> tuple[int, str]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the holder of processes has ended"
        code, output = json.loads(line)
        return code, output


def _living_below(pid: int) -> list[psutil.Process]:
    living = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
        except psutil.NoSuchProcess:
            continue
    return living


def _kill_below(pid: int) -> None:
    """Again and again: those that are killed last may have started others meanwhile."""
    while processes := _living_below(pid):
        for process in processes:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        time.sleep(0.02)


def _run(order: dict[str, object]) -> tuple[int, str]:
    command, environment, timeout_s = order["command"], order["environment"], order["timeout_s"]
    try:
        # Into a file, not a pipe: daemons keep it open, and a pipe would be read until the last of them ended.
        with open(os.memfd_create("output"), "r+b") as output:
            ended = subprocess.run(
                command,  # type: ignore[call-overload]
                env=environment,
                timeout=timeout_s,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            output.seek(0)
            return ended.returncode, output.read().decode(errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)


def _reap() -> None:
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                return
        except ChildProcessError:
            return


def _hold(parent: int) -> None:
    """Serve until the input ends, or the parent is gone (a fork of it may keep the other end of the input open)."""
    print(json.dumps((0, "")), flush=True)
    while os.getppid() == parent:
        _reap()
        if not select.select([sys.stdin], [], [], 0.5)[0]:
            continue
        line = sys.stdin.readline()
        if not line:
            return
        print(json.dumps(_run(json.loads(line))), flush=True)


def main() -> None:
    parent, last_words = int(sys.argv[1]), json.loads(sys.argv[2])
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        _hold(parent)
    finally:
        _kill_below(os.getpid())
        _reap()
        for command in last_words["clean_up"]:
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if last_words["folder"]:
            shutil.rmtree(last_words["folder"], ignore_errors=True)


if __name__ == "__main__":
    main()
