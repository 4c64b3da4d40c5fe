"""The pieces that a node builds: what `OpenParts` asks of a ledger, which only the driver has."""

import bisect
import secrets
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field

from penstock.core.protocols import Sink
from penstock.core.records import OutputSchema, Result
from penstock.storage.attempts import NodeOutput
from penstock.storage.part_builder import PartBuilder, PartPiece, StagedPart, Step, not_traced


@dataclass
class _Attempt:
    """One try to build a piece."""

    name: str
    piece: PartPiece
    staged: Future[StagedPart | None] = field(default_factory=Future)
    """The result is None where nothing was written."""
    rows: int = 0
    """The rows that are predicted so far."""
    folder: str = ""
    """Where it is written, once it is begun."""


class NodePieces:
    """The attempts of one node. Calls of the driver add and withdraw them; the writer's thread fulfils them.

    Args:
        schema: What is written.
        output: Where attempts are written.
    """

    def __init__(self, schema: OutputSchema, output: NodeOutput) -> None:
        self._schema = schema
        self._output = output
        self._attempts: dict[int, _Attempt] = {}
        """By the first span of their pieces."""
        self._firsts: list[int] = []
        self._writing: dict[int, _Attempt | None] = {}
        """By part, the attempt that its builder was made for. Only the writer's thread uses it."""
        self._lock = threading.Lock()

    def add(self, name: str, piece: PartPiece) -> Future[StagedPart | None]:
        """Expect the results of a piece; returns a future of what is written of it."""
        attempt = _Attempt(name, piece)
        with self._lock:
            self._attempts[piece.first_span] = attempt
            bisect.insort(self._firsts, piece.first_span)
        return attempt.staged

    def remove(self, name: str) -> PartPiece | None:
        """End an attempt, whose caller gets None; returns its piece, or None where the attempt is over already."""
        with self._lock:
            attempt = next((each for each in self._attempts.values() if each.name == name), None)
            if attempt is not None:
                self._forget(attempt)
        if attempt is None:
            return None
        attempt.staged.set_result(None)
        return attempt.piece

    def of_part(self, part: int) -> str | None:
        """The attempt that builds a part."""
        with self._lock:
            return next((each.name for each in self._attempts.values() if each.piece.part == part), None)

    def count(self, result: Result) -> None:
        """Count the rows of a result, so that progress can be seen."""
        attempt = self._at(result.span.index)
        if attempt is not None:
            attempt.rows += result.span.rows

    def rows(self) -> dict[str, int]:
        """The rows of every attempt that are predicted."""
        with self._lock:
            return {attempt.name: attempt.rows for attempt in self._attempts.values()}

    def end(self, error: Exception | None) -> None:
        """End all attempts: their callers get the error or, without one, None."""
        with self._lock:
            attempts = list(self._attempts.values())
            self._attempts.clear()
            self._firsts.clear()
        for attempt in attempts:
            if error is None:
                attempt.staged.set_result(None)
            else:
                attempt.staged.set_exception(error)

    def piece_of(self, span_index: int) -> PartPiece | None:
        attempt = self._at(span_index)
        return None if attempt is None else attempt.piece

    def builder(self, piece: PartPiece, sink: Sink, step: Step = not_traced) -> PartBuilder:
        self._writing[piece.part] = attempt = self._at(piece.first_span)
        if attempt is None:  # withdrawn just now: what is built is discarded
            folder = self._output.begin(f"withdrawn-{secrets.token_hex(8)}")
        else:
            folder = attempt.folder = attempt.folder or self._output.begin(attempt.name)
        return PartBuilder(piece, sink, self._schema, folder, step)

    def commit(self, staged: StagedPart) -> bool:
        with self._lock:
            attempt = self._attempts.get(staged.record.first_span)
            if attempt is None or attempt is not self._writing.get(staged.record.part):
                return False  # another attempt began meanwhile: these files are about to be removed
            self._forget(attempt)
        try:
            attempt.staged.set_result(self._output.deliver(attempt.name, staged))
        except BaseException as error:
            attempt.staged.set_exception(error)
            raise
        return True

    def drop_files(self, name: str) -> None:
        """Remove what an attempt wrote."""
        self._output.drop(name)

    def close(self) -> None:
        """Nothing more is written."""
        self._output.close()

    def _at(self, span_index: int) -> _Attempt | None:
        with self._lock:
            position = bisect.bisect_right(self._firsts, span_index) - 1
            attempt = self._attempts[self._firsts[position]] if position >= 0 else None
        stop = attempt.piece.stop_span if attempt is not None else None
        return attempt if stop is not None and span_index < stop else None

    def _forget(self, attempt: _Attempt) -> None:
        """The caller holds the lock."""
        del self._attempts[attempt.piece.first_span]
        self._firsts.remove(attempt.piece.first_span)
