"""Leases of GPU memory: several runs share one GPU, each reserves memory and plans with what the others leave.

A reservation is an entry in a small file for each device, in a folder that only this user can write. The driver counts
the memory that is in use; a reservation counts only for what its run may still take. Runs of other users count by the
memory that they use, not by what they reserve. A CPU needs no lease: all processes share its memory anyway.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from uuid import uuid4

import psutil

from penstock.core.figures import gib
from penstock.core.records import Device
from penstock.errors import DeviceError, Interrupted
from penstock.pool.devices import nvml

_POLL_S = 1.0
_SAME_START_S = 2.0
"""The start time of a process depends on the clock, which may be set a little in between."""


@dataclass(frozen=True)
class Reservation:
    """The memory that a run has reserved on a device. `used_bytes` was in use, by any process, when it was reserved."""

    token: str
    pid: int
    started_s: float
    reserved_bytes: int
    used_bytes: int


@dataclass(frozen=True)
class Memory:
    """The memory of a device: all of it, and what is not in use."""

    total_bytes: int
    free_bytes: int

    @property
    def used_bytes(self) -> int:
        return self.total_bytes - self.free_bytes


def unreserved_bytes(reservations: Sequence[Reservation], memory: Memory) -> int:
    """The free memory that no other run has reserved.

    The runs count as having taken the memory that is in use now, less what was in use before the first of them. That
    may include the memory of another program: inside containers, which have process numbers of their own, the driver
    cannot say whose memory it is.
    """
    if not reservations:
        return memory.free_bytes
    reserved = sum(each.reserved_bytes for each in reservations)
    taken = max(0, memory.used_bytes - min(each.used_bytes for each in reservations))
    return max(0, memory.free_bytes - max(0, reserved - taken))


def shares_with(device: Device, reservations: Sequence[Reservation], num_bytes: int) -> str:
    """A line for the user: which runs share the device, and what is left for this one."""
    others = " and ".join(f"process {each.pid}, which has reserved {gib(each.reserved_bytes)}" for each in reservations)
    return f"{device} is shared with {others}; this run takes up to {gib(num_bytes)}"


def waits_for(device: Device, reservations: Sequence[Reservation], free_bytes: int) -> str:
    """A line for the user: what is free, and which runs hold the rest."""
    others = " and ".join(f"process {each.pid} holds {gib(each.reserved_bytes)}" for each in reservations)
    return f"waiting for {device}: {gib(free_bytes)} are free, {others}"


class MemoryLease:
    """A reservation on a device, until it is closed or its process ends. `num_bytes` is what this run may take."""

    def __init__(self, num_bytes: int, entries: _ReservationsFile | None = None, token: str = "") -> None:
        self.num_bytes = num_bytes
        self._entries = entries
        self._token = token

    def close(self) -> None:
        """Give the memory back."""
        if self._entries is None:
            return
        with self._entries.locked():
            self._entries.write([each for each in self._entries.read() if each.token != self._token])
        self._entries = None


def take(
    device: Device,
    *,
    least_bytes: int = 0,
    fraction: float = 0.85,
    say: Callable[[str], None] = print,
    is_stopped: Callable[[], bool] = lambda: False,
    measure: Callable[[Device], Memory] | None = None,
    folder: str | None = None,
) -> MemoryLease:
    """Reserve `fraction` of the free memory of a device; wait while other runs leave less than `least_bytes`.

    Args:
        device: A GPU; for a CPU the lease is empty.
        least_bytes: What the run needs at least.
        fraction: The share of the free memory that it may take.
        say: Shows that this run shares the device, or waits for it.
        is_stopped: Whether to stop waiting.
        measure: Returns the memory of the device; the driver is asked where this is None.
        folder: Where reservations are kept.

    Raises:
        DeviceError: The memory would not suffice even if all other runs ended.
        Interrupted: The run was stopped while it waited.
    """
    if device.kind != "gpu":
        return MemoryLease(0)
    look = measure or _by_driver
    try:
        entries = _ReservationsFile(folder or leases_folder(), device)
    except OSError as error:
        say(f"{device} is used without a lease, so other runs do not know of this one: {error}")
        return MemoryLease(_offered([], look(device), fraction, least_bytes, device))
    shown = ""
    while True:
        with entries.locked():
            others = [each for each in entries.read() if is_alive(each)]
            memory = look(device)
            offered = _offered(others, memory, fraction, least_bytes, device)
            if offered >= least_bytes:
                return _reserve(entries, others, offered, memory, device, say)
        waiting = waits_for(device, others, unreserved_bytes(others, memory))
        if waiting != shown:
            say(waiting)
            shown = waiting
        if is_stopped():
            raise Interrupted(f"stopped while waiting for {device}")
        time.sleep(_POLL_S)


def _offered(others: Sequence[Reservation], memory: Memory, fraction: float, least_bytes: int, device: Device) -> int:
    """What a new run may take now. Raises DeviceError if it is too little, and the end of other runs would not help."""
    offered = int(unreserved_bytes(others, memory) * fraction)
    most = max(offered, int(memory.total_bytes * fraction)) if others else offered
    if most < least_bytes:
        raise DeviceError(
            f"there is too little memory on {device}",
            received=f"{gib(memory.free_bytes)} of {gib(memory.total_bytes)} are free",
            allowed=f"at least {gib(least_bytes)} in {fraction:.0%} of what is free",
            hint="end what else uses the device, choose another with --devices, or raise --memory-fraction",
        )
    return offered


def _reserve(
    entries: _ReservationsFile,
    others: Sequence[Reservation],
    num_bytes: int,
    memory: Memory,
    device: Device,
    say: Callable[[str], None],
) -> MemoryLease:
    mine = Reservation(uuid4().hex, os.getpid(), started_s(os.getpid()), num_bytes, memory.used_bytes)
    entries.write([*others, mine])
    if others:
        say(shares_with(device, others, num_bytes))
    return MemoryLease(num_bytes, entries, mine.token)


class _ReservationsFile:
    """The reservations on one device. The file is replaced whole: a process that dies in between leaves the old one."""

    def __init__(self, folder: str, device: Device) -> None:
        _make_private(folder)
        name = re.sub(r"[^0-9A-Za-z-]", "_", device.uuid or str(device))
        self._path = os.path.join(folder, name + ".json")
        self._lock_path = os.path.join(folder, name + ".lock")

    @contextmanager
    def locked(self) -> Iterator[None]:
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def read(self) -> list[Reservation]:
        """The entries. Call this, and `write`, only while the file is locked."""
        try:
            with open(self._path, encoding="utf-8") as file:
                return [Reservation(**entry) for entry in json.load(file)]
        except (FileNotFoundError, ValueError, TypeError):
            return []  # none yet, or of another version

    def write(self, reservations: Sequence[Reservation]) -> None:
        temporary = self._path + ".new"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump([asdict(each) for each in reservations], file)
        os.replace(temporary, self._path)


def leases_folder() -> str:
    """The folder of this user's reservations. The machine empties it when it restarts."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        return os.path.join(runtime, "penstock")
    return os.path.join(tempfile.gettempdir(), f"penstock-{os.getuid()}")


def _make_private(folder: str) -> None:
    """Make the folder, or check that it is this user's alone: in a shared place another user may have made it."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise PermissionError(f"{folder} is not a folder of this user alone") from None


def started_s(pid: int) -> float:
    return float(psutil.Process(pid).create_time())


def is_alive(each: Reservation) -> bool:
    """Whether the process of a reservation still runs, and is not another one with the same number."""
    try:
        process = psutil.Process(each.pid)
        is_same = bool(abs(process.create_time() - each.started_s) < _SAME_START_S)
        return is_same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _by_driver(device: Device) -> Memory:
    total_and_free = nvml.memory_of(device.uuid) if device.uuid is not None else None
    return Memory(*total_and_free) if total_and_free is not None else Memory(device.memory_bytes, device.free_bytes)
