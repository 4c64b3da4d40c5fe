"""Starting, watching and ending worker processes."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

from penstock.core.messages import Load
from penstock.core.protocols import Runtime
from penstock.core.records import Device, ModelFile
from penstock.pool.devices.near import ANY, Cores, NearCores, bound_to
from penstock.pool.processes import reaper
from penstock.pool.processes.board import Board
from penstock.pool.processes.channel import Channel
from penstock.pool.transfer.results import Assembly
from penstock.pool.transfer.slots import Slots, anonymous_memory

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")
_OWN_LINE = re.compile(r"\d\d:\d\d:\d\d penstock: ")
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_DEPRECATION_WARNINGS": "0", "PYTHONWARNINGS": "ignore"}


class _Reaper:
    """This process's line to its reaper, which runs as long as there are workers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._groups: set[int] = set()

    def add(self, group: int) -> None:
        with self._lock:
            if self._owner != os.getpid():  # this process was forked from the owner, and has its own workers
                self._owner, self._process, self._groups = os.getpid(), None, set()
            if self._process is None or self._process.poll() is not None:
                self._start()
            self._groups.add(group)
            self._say(f"+{group}\n")

    def discard(self, group: int) -> None:
        """A group is gone, and its number may be used again."""
        with self._lock:
            if self._owner != os.getpid():
                return
            self._groups.discard(group)
            self._say(f"-{group}\n")
            if not self._groups and self._process is not None:
                self._process.kill()
                self._process.communicate()
                self._process = None

    def _start(self) -> None:
        """Start the reaper, or another one if it was killed. Without a reaper, workers end by themselves."""
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", reaper.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        for group in self._groups:
            self._say(f"+{group}\n")

    def _say(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(line.encode())
                self._process.stdin.flush()


_REAPER = _Reaper()
_STANDS_STILL_S = 60
"""A process is ended that takes nothing from its full line for so long, or says no more in the middle of a message."""


class WorkerProcess:
    """The coordinator's hold on one worker process: its line, its board, and how it ends.

    The process leads a group of its own, and all of the group is ended with it: what the user's code started in a
    worker does not outlive it.

    Args:
        module: The module with its main, whose first arguments are the descriptors of its line and its board.
        arguments: Its other arguments.
        descriptors: Other descriptors that it inherits.
        environment: Its environment.
        log: What it writes to.
        cores: The cores that it is bound to.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[object],
        descriptors: Sequence[int],
        environment: Mapping[str, str],
        log: IO[Any] | int,
        cores: Cores = ANY,
    ) -> None:
        self.channel, theirs = Channel.pair(_STANDS_STILL_S)
        self.board = Board.create()
        """The rows that it is at."""
        self.hung_s: float | None = None
        """How long it had made no progress, where it was killed for that."""
        self.was_stopped = False
        self._heard = 0
        own = (theirs, self.board.descriptor)
        try:
            with bound_to(cores):
                self._process = subprocess.Popen(
                    # -P: a file in the user's folder must not stand in for a module of the standard library.
                    [sys.executable, "-P", "-m", module, *map(str, (*own, *arguments))],
                    env=dict(environment),
                    pass_fds=(*own, *descriptors),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    # A Ctrl-C in the terminal reaches the coordinator alone: it decides what is finished.
                    start_new_session=True,
                )
        finally:
            os.close(theirs)
        _REAPER.add(self._process.pid)
        self._pidfd: int | None = None
        with contextlib.suppress(AttributeError, OSError):  # only Linux has it
            self._pidfd = os.pidfd_open(self._process.pid)

    @property
    def signs(self) -> list[Any]:
        """What to wait on: one of them is ready when the process says something, or when it is over."""
        return [self.channel.connection] if self._pidfd is None else [self.channel.connection, self._pidfd]

    def receive(self) -> Any:
        """The next message. Raises EOFError or OSError when the process is gone and all that it said was read.

        The end of the process itself counts, not that of its line: a process that it forked may hold that open.
        """
        if self._pidfd is not None and self._is_over(0.0):
            self.kill()
            if not self.channel.connection.poll(0):
                raise EOFError
        try:
            message = self.channel.receive()
        except BlockingIOError:  # a large message, of which the rest does not come: the process is stopped, or hangs
            self.end_hung(_STANDS_STILL_S)
            raise EOFError from None
        self._heard += 1
        return message

    def _is_over(self, timeout_s: float) -> bool:
        """Whether the process ends within that time. It is not waited for, so that its number is not used again."""
        if self._pidfd is not None:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            return bool(poll.poll(timeout_s * 1000))
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    @property
    def exit_code(self) -> int | None:
        """Its exit code, or the signal that killed it as a negative number; None while it runs."""
        return self._process.poll()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: object) -> None:
        """Send a message. If the process is gone, the next read finds the end of its line and deals with it."""
        try:
            self.channel.send(message)
        except BlockingIOError:  # a large message that is not read: the process is stopped, or hangs
            self.end_hung(_STANDS_STILL_S)
        except OSError:
            pass

    @property
    def progress(self) -> tuple[int, int]:
        """What changes when the process makes progress: its messages, and what it writes on its board."""
        return self._heard, self.board.changes

    @property
    def has_spoken(self) -> bool:
        """Whether it has sent a message: until then it is starting."""
        return self._heard > 0

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped (SIGSTOP), as far as that can be seen here."""
        try:
            with open(f"/proc/{self.pid}/stat", encoding="utf-8") as file:
                return file.read().rpartition(")")[2].split()[0] == "T"
        except OSError:
            return False

    @property
    def is_between_rows(self) -> bool:
        """Whether no row is under way; a row that is under way has a time limit of its own."""
        return self.hung_s is None and self.board.read() is None

    def kill_if_hung(self, timeout_s: float, now: float) -> None:
        """Kill a process that has been at one row, or one call, for too long."""
        notice = self.board.read()
        if notice is not None and now - notice.since > timeout_s:
            self.end_hung(now - notice.since)

    def end_hung(self, seconds: float) -> None:
        """Kill a process that has made no progress for `seconds`; its end is dealt with like any other."""
        if self.hung_s is None:
            self.hung_s, self.was_stopped = seconds, self.is_stopped
            self.kill()

    def describe_end(self) -> str:
        """How the process ended, in words."""
        if self.hung_s is not None:
            return f"{'was stopped' if self.was_stopped else 'hung'} for {self.hung_s:.0f} s"
        if not self._is_over(5.0):
            return "closed its line but did not end"
        self.kill()
        code = self._process.wait()
        if code >= 0:
            return f"ended with exit code {code}"
        name = signal.Signals(-code).name
        return f"was killed by {name}" + (", often the sign of too little memory" if code == -9 else "")

    def kill(self) -> None:
        """End the process and all that it started."""
        # After it was waited for, its number may be used again.
        if self._process.returncode is None or self._pidfd is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process and all that it started now, and free what it used."""
        self.channel.close()
        self.kill()
        self._process.wait()
        _REAPER.discard(self._process.pid)
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        self.board.close()


class ReplicaHandle(WorkerProcess):
    """The coordinator's hold on one replica process, pinned to `device`, which loads the model at once."""

    def __init__(self, number: int, launch: Launch, device: Device) -> None:
        self.number = number
        self.device = device
        self._slots = slots = Slots.create()
        self.assembly = Assembly(slots)
        super().__init__(
            "penstock.pool.processes.replica",
            (slots.descriptor, slots.count, slots.slot_bytes, launch.batch_slots),
            (slots.descriptor, launch.batch_slots, *launch.descriptors),
            launch.environment(device),
            launch.log,
            launch.near.of_replicas.get(device.uuid, ANY),
        )
        self.send(Load(launch.runtime, launch.model, device, launch.threads, tuple(sys.path), time.perf_counter()))

    def close(self) -> None:
        super().close()
        self._slots.close()


class LoaderLaunch:
    """What every worker process of a job is started with; a loader needs nothing else."""

    def __init__(
        self,
        log: IO[Any] | int,
        *,
        descriptors: Sequence[int] = (),
        is_verbose: bool = False,
        near: NearCores | None = None,
    ) -> None:
        self.log = log
        self.descriptors = tuple(descriptors)
        self.near = near or NearCores()
        self.batch_slots = anonymous_memory()
        """The memory through which loader processes hand batches to replicas; it gets its size with the job."""
        self._is_verbose = is_verbose
        self._log_begins = self._log_size()

    def close(self) -> None:
        """Close the memory; the kernel frees it with its last user. It is closed once: its number may be used again."""
        if self.batch_slots >= 0:
            os.close(self.batch_slots)
            self.batch_slots = -1

    def note(self, text: str) -> None:
        """A line of our own in the log."""
        line = f"{time.strftime('%H:%M:%S')} penstock: {text}\n".encode()
        with contextlib.suppress(OSError):  # a full disk ends the run where a part cannot be written, not here
            os.write(self._log_descriptor, line)

    def last_words(self) -> str:
        """The end of the log, for an error message: the log itself may go with the folder of a job that never began."""
        spoken = self.last_lines()
        return spoken[-1][:300] if spoken else ""

    def last_lines(self) -> list[str]:
        """The last lines that processes wrote in this run, after our own last line."""
        start = max(self._log_begins, self._log_size() - 4000)
        try:
            lines = os.pread(self._log_descriptor, 4000, start).decode(errors="replace").splitlines()
        except OSError:
            return []  # a terminal cannot be read back
        own = max((place for place, line in enumerate(lines) if _OWN_LINE.match(line)), default=-1)
        return [line.strip() for line in lines[own + 1 :] if line.strip()]

    @property
    def _log_descriptor(self) -> int:
        return self.log if isinstance(self.log, int) else self.log.fileno()

    def _log_size(self) -> int:
        try:
            return os.fstat(self._log_descriptor).st_size
        except OSError:
            return 0

    def own_environment(self) -> dict[str, str]:
        """The environment of this process, in which frameworks write only what they must, unless it is verbose."""
        return dict(os.environ) | ({} if self._is_verbose else _QUIET)

    def loader_environment(self) -> dict[str, str]:
        """A loader has one thread and no GPU, whatever the user's function imports."""
        return (
            self.own_environment()
            | dict.fromkeys(_THREADS, "1")
            | {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
        )


class Launch(LoaderLaunch):
    """What every replica of a job is started with."""

    def __init__(
        self,
        runtime: Runtime,
        model: ModelFile,
        threads: int,
        log: IO[Any] | int,
        *,
        descriptors: Sequence[int] = (),
        is_verbose: bool = False,
        near: NearCores | None = None,
    ) -> None:
        super().__init__(log, descriptors=descriptors, is_verbose=is_verbose, near=near)
        self.runtime = runtime
        self.model = model
        self.threads = threads

    def environment(self, device: Device) -> dict[str, str]:
        # Each runtime says which Keras its processes get, whatever the user's process was set to.
        return self.own_environment() | {"TF_USE_LEGACY_KERAS": "0"} | self.runtime.environment(device, self.threads)
