"""One run of the fault harness: a process that is killed, its workers, and what it leaves behind."""

from __future__ import annotations

import itertools
import os
import queue
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.support.forked_runs import RunServer

_MARK = "PENSTOCK_CHAOS"
_ENDS_WITHIN_S = 30.0
_RUN_TIMEOUT_S = 240.0


class Broken(AssertionError):
    """A promise did not hold."""


class Running:
    """A run in a process of its own. Its workers are recognised by a mark in their environment.

    Args:
        server: Starts it.
        arguments: The command line.
        environment: More variables.
        work: A folder for what it says.
        import_from: A folder with modules of its own.
    """

    _numbers = itertools.count()

    def __init__(
        self, server: RunServer, arguments: Sequence[str], environment: dict[str, str], work: Path, import_from: Path
    ) -> None:
        self._mark = f"{os.getpid()}-{next(self._numbers)}"
        self._errors = work / f"errors-{self._mark}"
        marked = environment | {_MARK: self._mark}
        pid = server.start([*arguments, "--quiet"], marked, self._errors, import_from)
        self.process = psutil.Process(pid)
        self._end: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._code: int | None = None
        threading.Thread(target=lambda: self._end.put(server.wait()), daemon=True).start()

    def is_alive(self) -> bool:
        self.sleep(0)
        return self._code is None

    def sleep(self, seconds: float) -> None:
        """Let the run go on for so long, or to its end."""
        if self._code is None:
            try:
                self._code = self._end.get(timeout=seconds) if seconds > 0 else self._end.get_nowait()
            except queue.Empty:
                pass

    def workers(self, role: str, *, wait: bool = False) -> list[psutil.Process]:
        """The worker processes of a role, or all; waits for the first, or the end of the run."""
        while True:
            try:
                there = [each for each in self.process.children() if _is_worker(each, role)]
            except psutil.NoSuchProcess:
                return []
            if there or not wait or not self.is_alive():
                return there
            time.sleep(0.005)

    def kill(self, processes: Sequence[psutil.Process]) -> int:
        """SIGKILL; returns how many were alive to get it."""
        killed = 0
        for process in processes:
            try:
                if process.pid == self.process.pid and not self.is_alive():
                    continue
                process.kill()
                killed += 1
            except psutil.NoSuchProcess:
                pass
        return killed

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to the run; returns whether it was there to get it."""
        try:
            if self.is_alive():
                self.process.send_signal(number)
                return True
        except psutil.NoSuchProcess:  # it ended a moment ago
            pass
        return False

    def wait(self) -> tuple[int, str]:
        """The exit code and what was said."""
        self.sleep(_RUN_TIMEOUT_S)
        if self._code is None:
            self.signal(signal.SIGUSR1)
            time.sleep(1)
            raise Broken(f"the run hangs: {self._errors.read_text()}")
        return self._code, self._errors.read_text()

    def left(self) -> list[str]:
        """Processes of this run that are still there some time after its end."""
        deadline = time.monotonic() + _ENDS_WITHIN_S
        while there := self._marked():
            if time.monotonic() > deadline:
                return there
            time.sleep(0.02)
        self._errors.unlink(missing_ok=True)
        return []

    def end(self) -> None:
        if self.is_alive():
            self.process.kill()
            self.sleep(_ENDS_WITHIN_S)

    def _marked(self) -> list[str]:
        mark = f"{_MARK}={self._mark}".encode()
        there = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes()
                if mark in environment.split(b"\0"):
                    there.append(" ".join(psutil.Process(int(pid)).cmdline()))
            except (OSError, psutil.Error):
                pass
        return there


def _is_worker(process: psutil.Process, role: str) -> bool:
    try:
        return f"penstock.pool.processes.{role}" in " ".join(process.cmdline())
    except psutil.Error:
        return False
