"""Measures what the threads of a run spend their time on: the figures behind the progress display and the summary."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from penstock.core.bottleneck import Bound, measured
from penstock.core.records import Device, Timings
from penstock.core.tracing import NONE, SHORT_S, SPAN, START, WAIT_FOR_WRITER
from penstock.telemetry.trace import TraceWriter

_RECENT_S = 10.0
_KEPT_EVERY_S = 0.25
_JUDGED_FROM_S = 3.0
"""No bottleneck is named for a shorter run: chance decides it (the first batch, an fsync, the import of a codec)."""


@dataclass
class DeviceMeter:
    """The timings of one replica: since the run began, and over its last span."""

    device: Device
    total: Timings = field(default_factory=Timings)
    recent: Timings = field(default_factory=Timings)
    is_gone: bool = False

    @property
    def shares(self) -> dict[str, float]:
        """What its lanes did over its last span, as shares of their time."""
        recent = self.recent
        spent = {
            "computing": recent.compute,
            "waiting for data": recent.wait_for_data,
            "handing over": recent.hand_over + recent.wait_for_slot,
        }
        whole = sum(spent.values())
        return {name: value / whole if whole > 0 else 0.0 for name, value in spent.items()}

    @property
    def busy_share(self) -> float:
        """The share of its lanes' time in which the device had a batch, over its last span."""
        return self.shares["computing"]


@dataclass(frozen=True)
class _Moment:
    """What all threads together had spent at one point in time."""

    at: float
    spent: Timings
    writer_full_s: float
    postprocess_s: float


class _Wait:
    """How long the coordinator has waited for one stage, including a wait that has not ended."""

    def __init__(self) -> None:
        self._ended_s = 0.0
        self._since: float | None = None

    def begin(self, now: float) -> None:
        self._since = now

    def end(self, now: float) -> None:
        self._ended_s, self._since = self.seconds(now), None

    def seconds(self, now: float) -> float:
        since = self._since
        return self._ended_s + (now - since if since is not None else 0.0)


class Meter:
    """Collects the timings of finished spans. Written by the coordinator, read by the display's thread.

    Args:
        trace: The trace file of this run, if one is written.
        clock: Seconds.
        is_written: Whether predictions are written and committed, and not returned.
    """

    def __init__(
        self,
        trace: TraceWriter | None = None,
        clock: Callable[[], float] = time.perf_counter,
        *,
        is_written: bool = True,
    ) -> None:
        self.is_written = is_written
        self.trace = trace
        self._clock = clock
        self._lock = threading.Lock()
        self.devices: dict[int, DeviceMeter] = {}
        self.rows = 0
        self.postprocessed_rows: int | None = None
        self.failed = 0
        self.committed_rows = 0
        self.writing_s = 0.0
        self._writer_full, self._postprocess = _Wait(), _Wait()
        self._moments = deque([self._moment(clock())])

    def begin(self) -> None:
        """Start measuring: the first spans are handed out now."""
        if self.trace is not None:
            self.trace.note(START, self.trace.began)
        with self._lock:
            self._moments = deque([self._moment(self._clock())])

    def observe(self, number: int, device: Device, timings: Timings) -> None:
        """Count a finished span. Timings of zero only bring marks of a replica's start, for the trace."""
        if timings == Timings(marks=timings.marks):
            if self.trace is not None:
                self.trace.observe(number, device, 0, timings.marks)
            return
        with self._lock:
            meter = self.devices.setdefault(number, DeviceMeter(device))
            meter.total.add(timings)
            meter.recent = timings
            self.rows += timings.rows
            now = self._clock()
            if now - self._moments[-1].at >= _KEPT_EVERY_S:
                self._moments.append(self._moment(now))
                while len(self._moments) > 3 and now - self._moments[2].at > _RECENT_S:
                    del self._moments[1]  # the first one is the beginning of the run
        if self.trace is not None:
            self.trace.observe(number, device, timings.rows, timings.marks)

    @contextlib.contextmanager
    def waiting_for_writer(self, span: int = NONE) -> Iterator[None]:
        """Time a block that hands a result to the writer and waits until the writer has room."""
        if self.trace is not None and span != NONE:
            self.trace.leaves(span)
        started = self._clock()
        try:
            with self._waiting(self._writer_full):
                yield
        finally:
            if self.trace is not None and self._clock() - started > SHORT_S:
                self.trace.note(WAIT_FOR_WRITER, started, span)

    @contextlib.contextmanager
    def postprocessing(self, rows: int) -> Iterator[None]:
        """Time a block that waits until the function behind the model is done with a result of `rows` rows."""
        with self._waiting(self._postprocess):
            yield
        self.postprocessed_rows = (self.postprocessed_rows or 0) + rows

    @contextlib.contextmanager
    def _waiting(self, wait: _Wait) -> Iterator[None]:
        wait.begin(self._clock())
        try:
            yield
        finally:
            with self._lock:
                wait.end(self._clock())

    @property
    def done_rows(self) -> int:
        """The rows that are predicted, or, with a function behind the model, that this function is done with.

        They are never fewer than the committed rows: nodes of a cluster report rows later than parts.
        """
        return max(self.committed_rows, self.rows if self.postprocessed_rows is None else self.postprocessed_rows)

    @contextlib.contextmanager
    def writing(self, span: int, rows: int) -> Iterator[None]:
        """Time a block that writes a result, and commits the part that it completes."""
        started = self._clock()
        try:
            yield
        finally:
            self.writing_s += self._clock() - started
            if self.trace is not None:
                self.trace.note(SPAN, started, span, rows)

    def step(self, what: str, span: int = NONE, rows: int = NONE) -> contextlib.AbstractContextManager[None]:
        """Note a step of writing inside the block, where the run is traced."""
        return contextlib.nullcontext() if self.trace is None else self.trace.doing(what, span, rows)

    def commit(self, rows: int, failed: int) -> None:
        """Count the rows of a committed part."""
        self.committed_rows += rows + failed

    def traced_to(self) -> str | None:
        """The file of the trace, with the reason where it ends before the run did."""
        if self.trace is None:
            return None
        return self.trace.path if self.trace.problem is None else f"{self.trace.path} (cut short: {self.trace.problem})"

    def lose(self, numbers: Collection[int]) -> None:
        """Mark replicas that are gone. What they did still counts."""
        with self._lock:
            for number, meter in self.devices.items():
                meter.is_gone |= number in numbers

    def working(self) -> list[DeviceMeter]:
        return [meter for meter in self.snapshot() if not meter.is_gone]

    def snapshot(self) -> list[DeviceMeter]:
        with self._lock:
            return list(self.devices.values())

    def total(self) -> Timings:
        total = Timings()
        for meter in self.snapshot():
            total.add(meter.total)
        return total

    def where(self) -> dict[str, float]:
        """Seconds by activity, summed over all threads of all processes."""
        total = self.total()
        copied = min(total.copy, total.compute)
        spent = {
            "reading": total.read,
            "decoding": total.decode,
            "copying": copied,
            "computing": total.compute - copied,
            "waiting_for_data": total.wait_for_data,
            "waiting_for_the_model": total.wait_for_room,
            "handing_over": total.hand_over,
            "waiting_to_hand_over": total.wait_for_slot,
            "waiting_for_the_function": self._postprocess.seconds(self._clock()),
            "writing": self.writing_s,
            "waiting_for_the_writer": self._writer_full.seconds(self._clock()),
        }
        if self.postprocessed_rows is None:
            del spent["waiting_for_the_function"]
        if not copied:
            del spent["copying"]  # no runtime measures it
        if not total.decode:
            del spent["decoding"]  # loaders do it, while they read
        return {name: round(value, 3) for name, value in spent.items()}

    def padding(self) -> float | None:
        """The share of what the model computed that was padding of rows to a common size; None if there was none."""
        total = self.total()
        return round(total.padded / total.values, 4) if total.values else None

    def bottleneck(self) -> str:
        """The bottleneck of the run so far, in words; empty in its first seconds."""
        return str(self._bound_since(0) or "")

    def bottleneck_lately(self) -> str:
        """The bottleneck of the last seconds, in words."""
        return str(self._bound_since(1) or self._bound_since(0) or "")

    def _bound_since(self, position: int) -> Bound | None:
        with self._lock:
            if len(self._moments) <= position:
                return None
            before, now = self._moments[position], self._moment(self._clock())
            if now.at - self._moments[0].at < _JUDGED_FROM_S:
                return None
        return measured(
            now.spent.since(before.spent),
            now.at - before.at,
            now.writer_full_s - before.writer_full_s,
            now.postprocess_s - before.postprocess_s,
        )

    def _moment(self, now: float) -> _Moment:
        """What was spent until now. The caller must hold the lock."""
        spent = Timings()
        for meter in self.devices.values():
            spent.add(meter.total)
        return _Moment(now, spent, self._writer_full.seconds(now), self._postprocess.seconds(now))
