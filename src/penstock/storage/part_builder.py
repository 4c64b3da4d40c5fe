"""Builds parts: results of spans come in, in any order, and finished files under temporary names come out.

Any process can build a part. A PartBuilder needs a description of the piece, a sink, a schema and a folder, all of
them picklable; what it gives is a StagedPart, plain JSON, which the owner of the ledger commits.
"""

import itertools
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Self

from penstock.core.columns import count_not_finite
from penstock.core.protocols import PartWriter, Sink
from penstock.core.records import OutputSchema, Result
from penstock.core.tracing import CHECKSUM, FSYNC, NONE, WRITE
from penstock.crash_points import crash_point
from penstock.storage.disk import checksum_of_file
from penstock.storage.journal import PartRecord, failures_file, piece_number

Step = Callable[[str, int, int], AbstractContextManager[None]]
"""Notes a step of writing in a trace: what it is, the span and the rows."""


def not_traced(what: str, span: int, rows: int) -> AbstractContextManager[None]:
    """Notes nothing."""
    return nullcontext()


@dataclass(frozen=True)
class PartPiece:
    """What is to be written as one part file: a planned part, or what an interrupt left of it.

    `stop_span` is None where the input streams; then the piece ends when it has `most_rows`.
    """

    part: int
    cut: int
    first_span: int
    stop_span: int | None
    most_rows: int | None = None

    @property
    def name(self) -> str:
        return f"part-{piece_number(self.part, self.cut)}"


@dataclass(frozen=True)
class StagedPart:
    """A part that is written and fsynced, under temporary names.

    `paths` maps temporary paths to names in the output folder; `record` is what the journal will say. `attempt` is the
    name of the attempt, where a node of a cluster brought it to the output (`attempts`): then the temporary paths, too,
    are relative to the output.
    """

    record: PartRecord
    paths: Mapping[str, str]
    attempt: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        return cls(PartRecord(**document["record"]), document["paths"], document["attempt"])


def write_failures(path: str, failures: Sequence[str]) -> int:
    """Write and fsync the failures of a part, a line each; returns the size of the file."""
    with open(path, "wb") as file:
        crash_point("failures_begun")
        file.write(("\n".join(failures) + "\n").encode())
        file.flush()
        crash_point("failures_written")
        os.fsync(file.fileno())
        crash_point("failures_synced")
        return file.tell()


class PartBuilder:
    """Writes one piece in the order of its spans, whatever order their results come in.

    Args:
        piece: What to write.
        sink: The format.
        schema: The columns.
        folder: Where the temporary files go.
        step: Called around each step, with what it is.
    """

    def __init__(
        self, piece: PartPiece, sink: Sink, schema: OutputSchema, folder: str, step: Step = not_traced
    ) -> None:
        self._piece = piece
        self._sink = sink
        self._schema = schema
        self._folder = folder
        self._step = step
        self._writer: PartWriter | None = None
        self._waiting: dict[int, Result] = {}
        self._next_span = piece.first_span
        self._failures: list[str] = []
        self._reduced: dict[str, int] = {}
        self._digests: dict[str, str] = {}
        self._rows = 0
        self._not_finite = 0

    @property
    def is_open(self) -> bool:
        """Whether files are open."""
        return self._writer is not None

    @property
    def has_all(self) -> bool:
        """Whether the results of all spans are here."""
        if self._piece.stop_span is None:
            return self._rows + len(self._failures) >= (self._piece.most_rows or 0)
        return self._next_span + len(self._waiting) == self._piece.stop_span

    def add(self, result: Result) -> None:
        """Take the result of a span. `write` writes it. One that comes twice counts once."""
        if result.span.index >= self._next_span:
            self._waiting[result.span.index] = result

    def write(self) -> None:
        """Write every result whose turn has come."""
        while (result := self._waiting.pop(self._next_span, None)) is not None:
            self._write(result)
            self._next_span += 1

    def _write(self, result: Result) -> None:
        if result.rows:
            if self._writer is None:
                self._writer = self._sink.open_part(self._piece.name, self._folder, self._schema)
                crash_point("part_begun")
            with self._step(WRITE, result.span.index, result.rows):
                self._writer.write(result)
            crash_point("part_span_written")
            self._not_finite += count_not_finite(itertools.islice(result.columns.values(), self._schema.num_outputs))
        self._rows += result.rows
        self._failures += [json.dumps(asdict(failure)) for failure in result.failures]
        if result.reduced_to is not None:
            self._reduced[str(result.span.index)] = result.reduced_to
        if result.digest:
            self._digests[str(result.span.index)] = result.digest

    def finish(self) -> StagedPart | None:
        """Close and fsync the files.

        Returns:
            The whole piece, or, of one that was cut short, the unbroken run of spans from its beginning; results
            beyond a gap are dropped. None where the first span is missing.
        """
        self.write()
        piece = self._piece
        if self._next_span == piece.first_span:
            return None
        paths: Mapping[str, str] = {}
        if self._writer is not None:
            with self._step(FSYNC, NONE, NONE):
                paths = self._writer.finish()
            crash_point("part_synced")
        files = {name: os.path.getsize(path) for path, name in paths.items()}
        failures_bytes = 0
        if self._failures:
            path = os.path.join(self._folder, f"{piece.name}.failures")
            failures_bytes = write_failures(path, self._failures)
            paths = {**paths, path: failures_file(piece.part, piece.cut)}
        with self._step(CHECKSUM, NONE, NONE):
            checksums = {name: checksum_of_file(path) for path, name in paths.items()}
        record = PartRecord(
            part=piece.part,
            cut=piece.cut,
            first_span=piece.first_span,
            stop_span=self._next_span,
            rows=self._rows,
            failed=len(self._failures),
            files=files,
            failures_bytes=failures_bytes,
            reduced=self._reduced,
            digests=self._digests,
            not_finite=self._not_finite,
            checksums=checksums,
            written_at=round(time.time(), 3),
        )
        return StagedPart(record, paths)

    def abandon(self) -> None:
        """Close without keeping anything."""
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
