"""Several runs on one GPU live together: each says what it reserves, and plans from what the others leave.

A lease is an entry in a small file for each device, in a folder that only this user can write. What counts is what its
holder may still take: what is taken already, the driver counts. Runs of other users are seen by what they have taken,
not by what they reserved. The processor needs no lease: its memory is shared by everyone anyway.
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
"""The start of a process is told relative to the clock, which may be set a little meanwhile."""


@dataclass(frozen=True)
class Holder:
    """A run that has reserved memory of a device. `used_bytes` was taken by anybody when it came."""

    token: str
    pid: int
    started_s: float
    reserved_bytes: int
    used_bytes: int


@dataclass(frozen=True)
class Memory:
    """Of a device: how much it has, and how much of it nobody has taken."""

    total_bytes: int
    free_bytes: int

    @property
    def used_bytes(self) -> int:
        return self.total_bytes - self.free_bytes


def unreserved_bytes(holders: Sequence[Holder], memory: Memory) -> int:
    """What is free and not going to be taken by a holder.

    What holders have taken of their reservations is what is used now beyond what was used before the first of them
    came. That may count a program of somebody else for theirs; asking the driver whose memory it is would not do inside
    containers, where its process numbers are others.
    """
    if not holders:
        return memory.free_bytes
    reserved = sum(holder.reserved_bytes for holder in holders)
    taken = max(0, memory.used_bytes - min(holder.used_bytes for holder in holders))
    return max(0, memory.free_bytes - max(0, reserved - taken))


def shares_with(device: Device, holders: Sequence[Holder], num_bytes: int) -> str:
    """For people: who else is on the device, and what is left for this run."""
    others = " and ".join(f"process {each.pid}, which has reserved {gib(each.reserved_bytes)}" for each in holders)
    return f"{device} is shared with {others}; this run takes up to {gib(num_bytes)}"


def waits_for(device: Device, holders: Sequence[Holder], free_bytes: int) -> str:
    """For people: what is left, and who has the rest."""
    others = " and ".join(f"process {each.pid} holds {gib(each.reserved_bytes)}" for each in holders)
    return f"waiting for {device}: {gib(free_bytes)} are free, {others}"


class Lease:
    """A reservation on a device, until it is closed or its process ends. `num_bytes` is what this run may take."""

    def __init__(self, num_bytes: int, holders: _HoldersFile | None = None, token: str = "") -> None:
        self.num_bytes = num_bytes
        self._holders = holders
        self._token = token

    def close(self) -> None:
        """Give it back."""
        if self._holders is None:
            return
        with self._holders.locked():
            self._holders.write([each for each in self._holders.read() if each.token != self._token])
        self._holders = None


def take(
    device: Device,
    *,
    least_bytes: int = 0,
    fraction: float = 0.85,
    say: Callable[[str], None] = print,
    is_stopped: Callable[[], bool] = lambda: False,
    measure: Callable[[Device], Memory] | None = None,
    folder: str | None = None,
) -> Lease:
    """Reserve `fraction` of what is free on a device; wait while other runs leave less than `least_bytes` of it.

    Args:
        device: A GPU; for a CPU the lease is empty.
        least_bytes: What the run needs at the very least.
        fraction: How much of what is free it may take.
        say: Is told in words that this run shares, or waits.
        is_stopped: Asked while it waits.
        measure: How the device's memory is looked at; by the driver, unless a test says otherwise.
        folder: Where leases are kept.

    Raises:
        DeviceError: It would not fit even if all other runs ended.
        Interrupted: It was stopped while it waited.
    """
    if device.kind != "gpu":
        return Lease(0)
    look = measure or _by_driver
    try:
        holders_file = _HoldersFile(folder or leases_folder(), device)
    except OSError as error:
        say(f"{device} is used without a lease, so other runs do not know of this one: {error}")
        return Lease(_offered([], look(device), fraction, least_bytes, device))
    told = ""
    while True:
        with holders_file.locked():
            holders = [each for each in holders_file.read() if is_alive(each)]
            memory = look(device)
            offered = _offered(holders, memory, fraction, least_bytes, device)
            if offered >= least_bytes:
                mine = Holder(uuid4().hex, os.getpid(), started_s(os.getpid()), offered, memory.used_bytes)
                holders_file.write([*holders, mine])
                break
        waiting = waits_for(device, holders, unreserved_bytes(holders, memory))
        if waiting != told:
            say(waiting)
            told = waiting
        if is_stopped():
            raise Interrupted(f"stopped while waiting for {device}")
        time.sleep(_POLL_S)
    if holders:
        say(shares_with(device, holders, offered))
    return Lease(offered, holders_file, mine.token)


def _offered(holders: Sequence[Holder], memory: Memory, fraction: float, least_bytes: int, device: Device) -> int:
    """What a new run may take now."""
    offered = int(unreserved_bytes(holders, memory) * fraction)
    most = max(offered, int(memory.total_bytes * fraction)) if holders else offered
    if most < least_bytes:
        raise DeviceError(
            f"there is too little memory on {device}",
            received=f"{gib(memory.free_bytes)} of {gib(memory.total_bytes)} are free",
            allowed=f"at least {gib(least_bytes)} in {fraction:.0%} of what is free",
            hint="end what else uses the device, choose another with --devices, or raise --memory-fraction",
        )
    return offered


class _HoldersFile:
    """The entries of one device. They are replaced whole, so that who dies while writing leaves the old ones."""

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

    def read(self) -> list[Holder]:
        """Only while it is locked, as `write`."""
        try:
            with open(self._path, encoding="utf-8") as file:
                return [Holder(**entry) for entry in json.load(file)]
        except (FileNotFoundError, ValueError, TypeError):
            return []  # none yet, or of another version

    def write(self, holders: Sequence[Holder]) -> None:
        temporary = self._path + ".new"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump([asdict(holder) for holder in holders], file)
        os.replace(temporary, self._path)


def leases_folder() -> str:
    """Where the leases of this user are kept: gone after a restart, as they are themselves."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        return os.path.join(runtime, "penstock")
    return os.path.join(tempfile.gettempdir(), f"penstock-{os.getuid()}")


def _make_private(folder: str) -> None:
    """Make the folder, or see that it is ours alone: in a shared place, somebody else may have made it before."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise PermissionError(f"{folder} is not a folder of this user alone") from None


def started_s(pid: int) -> float:
    return float(psutil.Process(pid).create_time())


def is_alive(holder: Holder) -> bool:
    """Whether its process still runs, and is not another one that got its number."""
    try:
        process = psutil.Process(holder.pid)
        is_same = bool(abs(process.create_time() - holder.started_s) < _SAME_START_S)
        return is_same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _by_driver(device: Device) -> Memory:
    found = nvml.memory_of(device.uuid) if device.uuid is not None else None
    return Memory(*found) if found is not None else Memory(device.memory_bytes, device.free_bytes)
