"""TFRecord files of `tf.train.Example` or `tf.train.SequenceExample`, plain or compressed, read without TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

from penstock.core.kinds import SourceFormat
from penstock.core.protocols import with_changes
from penstock.core.records import STRING, Block, Extent, RowFailure, Span, TensorSpec
from penstock.errors import InputError
from penstock.options.records import ReadOptions
from penstock.sources.files.file_source import FileSource, SpanCutter
from penstock.sources.files.paths import fail_empty, fail_unreadable, listed, open_binary
from penstock.sources.files.tapes import PLAIN, PlainTape, TapeStream, changed, open_tape
from penstock.sources.tfrecord.example_features import FeatureSpec, choose_features, raw_for_input
from penstock.sources.tfrecord.example_reader import EXAMPLE, ExampleReader
from penstock.sources.tfrecord.examples import BadExample, Message, is_sequence, parse
from penstock.sources.tfrecord.framing import (
    HEADER_BYTES,
    Fetch,
    Gap,
    Scan,
    Stretch,
    frames_of,
    how_compressed,
    length_of,
)

_SAMPLE_RECORDS = 100
_SAMPLE_BYTES = 16 << 20

Run = tuple[int, int, int, int, int, tuple[Any, ...]]
"""Rows of one file: the file, first byte, end, number of the first record, rows, and gaps (start, end, reason)."""


def looks_like_tfrecord(path: str) -> bool:
    """Whether a file begins with a record, plain or compressed: such files are often named without a suffix."""
    try:
        with closing(open_tape(path, how_compressed(path))) as tape:
            return length_of(tape.read(HEADER_BYTES)) is not None
    except InputError:
        return False


class TFRecordFiles(FileSource):
    """TFRecord files with the same features.

    A feature that a record lacks is null. A record that cannot be read keeps its place and fails; bytes that are no
    record, and a tail that is cut, are one failed row each.
    """

    def __init__(self, paths: Sequence[str], reading: ReadOptions | None = None) -> None:
        super().__init__(paths)
        self._wanted = dict((reading or ReadOptions()).features)
        self._compressions: list[str] = []
        self._is_sequence = False
        self._sample: list[Message] = []
        self._specs: dict[str, FeatureSpec] | None = None

    def schema(self) -> dict[str, TensorSpec]:
        """The features, and last the whole record; a feature that is called `example` hides it."""
        schema = {name: spec.tensor_spec() for name, spec in self._features().items()}
        whole = schema.pop(EXAMPLE, TensorSpec(EXAMPLE, STRING, ()))
        return {**schema, EXAMPLE: whole}

    def remarks(self) -> list[str]:
        """The features, as they were given or found in the first records."""
        return [f"features: {', '.join(map(str, self._features().values()))}"]

    def fitted_to(self, inputs: Sequence[TensorSpec]) -> TFRecordFiles:
        """Bytes are read as numbers where an input of the same name takes them."""
        specs = self._features()
        free = [wanted for wanted in inputs if wanted.name in specs and wanted.name not in self._wanted]
        fitted = {wanted.name: raw_for_input(specs[wanted.name], self._sample, wanted) for wanted in free}
        fitted = {name: spec for name, spec in fitted.items() if spec is not None}
        return with_changes(self, _specs=specs | fitted) if fitted else self

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterator[Span]:
        """A span is a few runs, also of several files. A compressed file, read in sequence, has its own spans."""
        self._features()
        span = SpanCutter()
        for file in range(len(self.paths)):
            group = None if self._compressions[file] == PLAIN else str(file)
            if group is not None:
                yield from span.cut()
            for run in self._runs(file, rows_per_span - span.rows, rows_per_span):
                span.add(run, run[4])
                if span.rows == rows_per_span or group is not None:
                    yield from span.cut(group)
        yield from span.cut()
        if not span.start:
            raise fail_empty(self.paths)

    def _runs(self, file: int, room: int, rows_per_span: int) -> Iterator[Run]:
        """The rows of a file, cut into runs: `room` rows for the first, then `rows_per_span`."""
        first = end = rows = record = 0
        gaps: list[tuple[int, int, str]] = []
        for stretch in self._stretches(file):
            ends = stretch.ends
            gaps += [(gap.start, gap.end, gap.reason) for gap in stretch.gaps]
            while rows + len(ends) >= room:
                end = int(ends[room - rows - 1])
                yield file, first, end, record, room, tuple(gaps)
                ends = ends[room - rows :]
                first, record, rows, room, gaps = end, record + room, 0, rows_per_span, []
            if len(ends):
                rows, end = rows + len(ends), int(ends[-1])
        if rows:
            yield file, first, end, record, rows, tuple(gaps)

    def _stretches(self, file: int) -> Iterator[Stretch]:
        """The scan of a file, which must have a record somewhere.

        Raises:
            InputError: No length in it has a right checksum: it is a file of another format.
        """
        path = self.paths[file]
        with closing(open_tape(path, self._compressions[file])) as tape:
            stretches = Scan(tape).stretches()
            first = next(stretches, None)
            if first is None:
                return
            second = next(stretches, None)
            if first.is_lost and first.gaps[0].start == 0 and second is None:
                raise InputError(
                    "this is not a TFRecord file",
                    received=f"{path}: no length in its first {first.gaps[0].end:,} bytes has a right checksum",
                    hint="leave it out, or give it the suffix of its own format",
                )
            yield first
            if second is not None:
                yield second
                yield from stretches

    def origin(self, span: Span, row: int) -> str:
        position = row - span.start
        for file, first, end, record, rows, _ in span.locator:
            if position < rows:
                return f"{self.paths[file]}, record {record + position}, in bytes {first} to {end}"
            position -= rows
        return ""

    def extents(self, span: Span, columns: Sequence[str]) -> Iterator[Extent]:
        self._features()
        for file, first, end, *_ in span.locator:
            known = listed(self.paths, file)
            is_plain = self._compressions[file] == PLAIN
            yield Extent(known, first, end - first) if is_plain else Extent(known, 0, known.size)

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        specs = self._features()
        reader = _reader(tuple(specs[name] for name in columns if name in specs), self._is_sequence)
        row = span.start
        for run in span.locator:
            for block in self._read_run(run, row, columns, reader):
                yield block
                row += block.rows
        if row != span.stop:
            raise changed(self.paths[span.locator[-1][0]])

    def _read_run(self, run: Run, row: int, columns: Sequence[str], reader: ExampleReader) -> Iterator[Block]:
        file, first, end, record, _, gaps = run
        path, start = self.paths[file], row
        with self._opened(file, first, end) as fetch:
            for frames in frames_of(fetch, first, end, [Gap(*gap) for gap in gaps], path):
                for block in reader.blocks(frames, row, columns):
                    failures = [_placed(failure, path, record - start) for failure in block.failures]
                    yield replace(block, failures=tuple(failures)) if failures else block
                    row += block.rows

    @contextmanager
    def _opened(self, file: int, first: int, end: int) -> Iterator[Fetch]:
        """A function that fetches the bytes of a file between two places, from front to back."""
        path, compression = self.paths[file], self._compressions[file]
        if compression == PLAIN:
            with closing(_open_plain(path)) as tape:
                yield tape.fetch
            return
        with self._streams.at(path, first, lambda: TapeStream(path, compression)) as stream:
            pieces = stream.read(end - first)
            yield _Inflating(first, (piece["bytes"].tobytes() for piece in pieces)).fetch
            for _ in pieces:
                pass  # a gap at the end was not fetched, and the next span begins behind it

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_sample": []}

    def _features(self) -> dict[str, FeatureSpec]:
        if self._specs is None:
            self._compressions = [how_compressed(path) for path in self.paths]
            records = self._first_records()
            self._is_sequence = any(is_sequence(raw) for raw in records)
            self._sample = [message for raw in records if (message := _parsed(raw, self._is_sequence)) is not None]
            self._specs = {spec.name: spec for spec in choose_features(self._sample, self._wanted)}
        return self._specs

    def _first_records(self) -> list[bytes]:
        """The first whole records of the input."""
        records: list[bytes] = []
        for file, path in enumerate(self.paths):
            for _, first, end, _, _, gaps in self._runs(file, _SAMPLE_RECORDS, _SAMPLE_RECORDS):
                with self._opened(file, first, end) as fetch:
                    for frames in frames_of(fetch, first, end, [Gap(*gap) for gap in gaps], path):
                        records += frames.whole(_SAMPLE_RECORDS - len(records))
                        if len(records) >= _SAMPLE_RECORDS or sum(map(len, records)) > _SAMPLE_BYTES:
                            return records
        return records


class _Inflating:
    """Pieces of a stream, as a file whose bytes are fetched in order."""

    def __init__(self, offset: int, pieces: Iterator[bytes]) -> None:
        self._offset = offset
        self._pieces = pieces
        self._raw = b""

    def fetch(self, offset: int, nbytes: int) -> bytes:
        parts, held = [self._raw[offset - self._offset :]], max(0, self._offset + len(self._raw) - offset)
        skipped = max(0, offset - self._offset - len(self._raw))
        for piece in self._pieces if held < nbytes else ():
            parts.append(piece[skipped:])
            held, skipped = held + len(parts[-1]), max(0, skipped - len(piece))
            if held >= nbytes:
                break
        self._offset, self._raw = offset, b"".join(parts)
        return self._raw[:nbytes]


@lru_cache(maxsize=64)
def _reader(specs: tuple[FeatureSpec, ...], is_sequence: bool) -> ExampleReader:
    return ExampleReader(specs, is_sequence)


def _open_plain(path: str) -> PlainTape:
    try:
        return PlainTape(path, open_binary(path))
    except OSError as error:
        raise fail_unreadable(path, error) from error


def _placed(failure: RowFailure, path: str, before: int) -> RowFailure:
    """A failure with the file and the number of its record there, and where it lies."""
    return replace(failure, origin=f"{path}, record {failure.row + before}, {failure.origin}")


def _parsed(raw: bytes, is_sequence: bool) -> Message | None:
    try:
        return parse(raw, is_sequence)
    except BadExample:
        return None


FORMAT = SourceFormat(
    (".tfrecord", ".tfrecords", ".tfrec", ".tfrecord.gz", ".tfrecords.gz", ".tfrec.gz"),
    TFRecordFiles,
    recognises=looks_like_tfrecord,
)
