"""Who did what for how long: the figures behind the progress display and the summary."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from penstock.core.records import Device, Timings

_WAITING = 0.25


@dataclass
class DeviceMeter:
    """One replica since the run began, and over its last span."""

    device: Device
    total: Timings = field(default_factory=Timings)
    recent: Timings = field(default_factory=Timings)

    @property
    def busy_share(self) -> float:
        """The share of its lanes' time in which the device had a batch, lately."""
        return _share(self.recent.compute, self.recent.wait_for_data)


class Meter:
    """Collects the timings of finished spans. Written by the coordinator, read by the display's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.devices: dict[int, DeviceMeter] = {}
        self.rows = 0
        self.failed = 0
        self.committed_rows = 0
        self.writing_s = 0.0

    def observe(self, number: int, device: Device, timings: Timings) -> None:
        with self._lock:
            meter = self.devices.setdefault(number, DeviceMeter(device))
            meter.total.add(timings)
            meter.recent = timings
            self.rows += timings.rows

    def snapshot(self) -> list[DeviceMeter]:
        with self._lock:
            return list(self.devices.values())

    def total(self) -> Timings:
        total = Timings()
        for meter in self.snapshot():
            total.add(meter.total)
        return total

    def where(self) -> dict[str, float]:
        """Seconds by activity, summed over all threads of all replicas, and the writing of the coordinator."""
        total = self.total()
        return {
            "reading": round(total.read, 3),
            "computing": round(total.compute, 3),
            "waiting_for_data": round(total.wait_for_data, 3),
            "waiting_for_the_model": round(total.wait_for_room, 3),
            "writing": round(self.writing_s, 3),
        }

    def padding(self) -> float | None:
        """The share of what the model computed that was padding of rows to a common size; None where none was."""
        total = self.total()
        return round(total.padded / total.values, 4) if total.values else None

    def bottleneck(self) -> str:
        """What the others waited for."""
        total = self.total()
        if _share(total.wait_for_data, total.compute) > _WAITING:
            return "loading: the model waited for data"
        return "computing: the model was busy"


def _share(part: float, other: float) -> float:
    return part / (part + other) if part + other > 0 else 0.0
