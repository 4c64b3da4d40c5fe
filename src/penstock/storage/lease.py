"""One living run for each remote output: a lock that is an object.

No kernel frees this lock when its holder dies, so it says who holds it, and the holder renews it every 10 s. Another
run that finds it takes it over
- at once, where the holder was on this machine, and its process is gone;
- after 60 s without renewal, by the time in the lock, where the holder was on another machine, and after 15 s of
  watching it (clocks of two machines may differ by more than a minute: a lock that changes is alive whatever it says).
A process of this machine that is alive keeps its lock, however long it sleeps, as it would keep one on a file.

All of this is done by conditional puts: of two runs that try to take the lock, only one gets it. A holder that was cut
off and comes back finds another token in the lock, and stops before it writes anything that counts (`check`).
"""

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import Self

import psutil

from penstock.crash_points import crash_point
from penstock.errors import OutputError
from penstock.storage.disk import INTERNAL
from penstock.storage.objects import Objects

RENEW_S = 10.0
STALE_S = 60.0
WATCH_S = 15.0
LOCK = f"{INTERNAL}/lock"

_SAME_START_S = 2.0


@dataclass(frozen=True)
class LockHolder:
    """The process that holds a lock: its machine, boot and namespace of process numbers."""

    host: str
    boot: str
    processes: str
    pid: int
    started: float
    token: str
    time: float

    @classmethod
    def this_process(cls, now: float) -> Self:
        pid = os.getpid()
        started = psutil.Process(pid).create_time()
        return cls(socket.gethostname(), _boot(), _processes(), pid, started, secrets.token_hex(16), now)

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """The holder in a lock. A lock that cannot be read counts as never renewed."""
        try:
            return cls(**json.loads(content))
        except (ValueError, TypeError):
            return cls("an unknown machine", "", "", 0, 0.0, "", 0.0)

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    def is_here(self) -> bool:
        return (self.host, self.boot, self.processes) == (socket.gethostname(), _boot(), _processes())

    def is_running(self) -> bool:
        """Whether the process still runs, and not another one with its number. Only for a holder on this machine."""
        try:
            process = psutil.Process(self.pid)
            is_same: bool = abs(process.create_time() - self.started) < _SAME_START_S
            return is_same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class OutputLease:
    """The lock of one remote output, held while this is open."""

    def __init__(
        self,
        objects: Objects,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], object] = time.sleep,
        renew_s: float = RENEW_S,
    ) -> None:
        self._objects = objects
        self._clock = clock
        self._sleep = sleep
        self._renew_s = renew_s
        self._holder = LockHolder.this_process(clock())
        self._is_over = threading.Event()
        self._heart = threading.Thread(target=self._keep, name="lock", daemon=True)

    @property
    def token(self) -> str:
        return self._holder.token

    def __enter__(self) -> Self:
        crash_point("lock_opened")
        self._take()
        crash_point("lock_taken")
        self._heart.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._heart.join()
        hasty = self._objects.hasty()
        with suppress(OutputError):  # the store cannot be reached: the next run finds that this process is gone
            if self._is_ours(hasty.read(LOCK)):
                hasty.remove([LOCK])

    def check(self) -> None:
        """Make sure that the lock is still ours.

        Raises:
            OutputError: Another run took it over, or it was removed.
        """
        content = self._objects.read(LOCK)
        if not self._is_ours(content):
            raise OutputError(
                "this run lost the lock of the output",
                received=f"{self._objects.url}: "
                + ("the lock is gone" if content is None else f"now held by {LockHolder.decode(content)}"),
                hint="what is committed stays: one of the two runs goes on, or resume it when both have ended",
            )

    def renew(self) -> bool:
        """Write the time into the lock; returns whether the lock is still ours."""
        hasty = self._objects.hasty()
        current = hasty.read_tagged(LOCK)
        if current is None or not self._is_ours(current[0]):
            return False
        return hasty.replace(LOCK, replace(self._holder, time=self._clock()).encode(), current[1])

    def _keep(self) -> None:
        while not self._is_over.wait(self._renew_s):
            with suppress(OutputError):  # the store cannot be reached: the next beat or commit finds out
                if not self.renew():
                    return

    def _take(self) -> None:
        while True:
            content = replace(self._holder, time=self._clock()).encode()
            if self._objects.create(LOCK, content):
                return
            current = self._objects.read_tagged(LOCK)
            if current is None:
                continue  # it was released just now
            holder = LockHolder.decode(current[0])
            if self._is_alive(holder) or self._has_changed(holder, current[1]):
                raise OutputError(
                    "the output folder is locked by a run that is alive",
                    received=f"{self._objects.url}, held by {holder}",
                    hint="wait for it, stop it, or choose another --output",
                )
            if self._objects.replace(LOCK, content, current[1]):
                return

    def _is_alive(self, holder: LockHolder) -> bool:
        return is_alive(holder, self._clock())

    def _has_changed(self, holder: LockHolder, tag: str) -> bool:
        """Whether a lock that seems to be given up is renewed while we watch it."""
        if holder.is_here():
            return False  # `is_alive` has found that its process is gone
        self._sleep(WATCH_S)
        current = self._objects.read_tagged(LOCK)
        return current is not None and current[1] != tag

    def _is_ours(self, content: bytes | None) -> bool:
        return content is not None and LockHolder.decode(content).token == self.token


def is_alive(holder: LockHolder, now: float) -> bool:
    return holder.is_running() if holder.is_here() else now - holder.time < STALE_S


def holder_of(objects: Objects) -> LockHolder | None:
    """The living run that holds the output, as far as one look shows. Takes nothing and changes nothing."""
    content = objects.read(LOCK)
    holder = LockHolder.decode(content) if content is not None else None
    return holder if holder is not None and is_alive(holder, time.time()) else None


def _boot() -> str:
    return _text("/proc/sys/kernel/random/boot_id")


def _processes() -> str:
    """The namespace of process numbers: two containers of one machine may have one host name."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
