"""Writing what an engine predicts: parts on a thread of their own, and the share of rows that may fail."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from penstock.core.failure_limit import exceeds, too_many
from penstock.core.records import Result
from penstock.errors import TooManyFailures
from penstock.sources.files import unchanged
from penstock.storage.disk import output_errors
from penstock.storage.journal import PartRecord, rows_in
from penstock.storage.ledger import OpenParts
from penstock.telemetry.meter import Meter


class FailureLimit:
    """Counts failed rows in the order of the input: a job ends at the same row in whatever order its spans finish.

    Args:
        allowed: The share of rows that may fail.
        records: The parts that were committed before.
        order: The numbers of the spans, or of other things that are counted, in their order; None where results come in
            order.
    """

    def __init__(self, allowed: float, records: Sequence[PartRecord], order: Iterable[int] | None) -> None:
        self._allowed = allowed
        self._rows = rows_in(records)
        self._failed = sum(record.failed for record in records)
        self._is_streamed = order is None
        self._order = deque(order or ())
        self._waiting: dict[int, tuple[int, int, str]] = {}

    def check(self, result: Result) -> TooManyFailures | None:
        """The error with which the job ends, once too many rows failed."""
        if self._is_streamed:
            self._order.append(result.span.index)
        failures = result.failures
        return self.count(result.span.index, result.span.rows, len(failures), failures[-1].reason if failures else "")

    def count(self, index: int, rows: int, failed: int, reason: str = "") -> TooManyFailures | None:
        """As `check`, for rows that were counted elsewhere, at a place in the order."""
        self._waiting[index] = (rows, failed, reason)
        while self._order and self._order[0] in self._waiting:
            rows, failed, reason = self._waiting.pop(self._order.popleft())
            self._rows += rows
            self._failed += failed
            if exceeds(self._failed, self._rows, self._allowed, is_whole=False):
                last = f"; the last: {reason}" if reason else ""
                return too_many(
                    f"{self._failed:,} of the first {self._rows:,} rows{last}",
                    self._allowed,
                    "see _penstock/failures.jsonl; raise --max-failures and run it again, or mend the input and "
                    "--overwrite",
                )
        return None


class Writer:
    """Commits on a thread of its own, so that an fsync does not keep the replicas waiting for their slots.

    Other threads meanwhile digest the input of the results: for large rows that takes longer than writing (150 KB each,
    25,000 of them a second on an H200: 3.8 GB, as much as one thread reads there).

    `put` and `finish` raise the error of that thread. `on_error` is called at once, on that thread: where the engine is
    fed from outside, the next `put` may be much later.
    """

    _DEPTH = 4
    _DIGESTING = 2
    """The number of threads that digest."""

    def __init__(
        self,
        parts: OpenParts,
        meter: Meter,
        digester: unchanged.Digester,
        on_error: Callable[[], None] = lambda: None,
    ) -> None:
        self._parts = parts
        self._on_error = on_error
        self._meter = meter
        self._digester = digester
        self._digests = ThreadPoolExecutor(self._DIGESTING, "digests")
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(self._DEPTH)
        """What is to be done, and None at the end."""
        self._error: BaseException | None = None
        self._is_dropped = False
        self._ended = threading.Event()
        """Python takes a thread for ended whose `join` an exception of a signal has interrupted; this does not."""
        threading.Thread(target=self._write, name="writer", daemon=True).start()

    def put(self, result: Result) -> None:
        self._raise()
        digest = self._digests.submit(self._digester.digest, result.span)

        def write() -> None:
            with output_errors(), self._meter.writing(result.span.index, result.rows):
                self._parts.accept(replace(result, digest=digest.result()))

        with self._meter.waiting_for_writer(result.span.index):
            self._queue.put(write)

    def drop(self, part: int, then: Callable[[], None]) -> None:
        """Forget what was put so far of a part that is no longer needed; `then` removes its files."""

        def drop() -> None:
            self._parts.drop(part)
            then()

        if not self._ended.is_set():
            self._queue.put(drop)

    def finish(self) -> None:
        """Commit everything that was put, also a part that an interrupt cut short."""
        with self._meter.waiting_for_writer():
            self._queue.put(None)
            self._ended.wait()
        self._raise()
        self._parts.commit_all()

    def close(self) -> None:
        """After an error: write no more."""
        self._is_dropped = True
        if not self._ended.is_set():
            self._queue.put(None)
            self._ended.wait()
        self._digests.shutdown(cancel_futures=True)
        self._parts.close()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _write(self) -> None:
        try:
            while (call := self._queue.get()) is not None:
                if self._error is not None or self._is_dropped:
                    continue
                try:
                    call()
                except BaseException as error:
                    self._error = error
                    self._on_error()
        finally:
            self._ended.set()
