"""What a loader does with a span, as a thread of a replica or as a process: read, decode, cut into batches."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from penstock.core.batching import Batch, Room, cut, known, note, on_the_heap
from penstock.core.bucketing import cut_by_one_size, cut_by_size
from penstock.core.columns import to_array
from penstock.core.deferred import IS_NULL, BadRows, Deferred
from penstock.core.example_encoding import encode
from penstock.core.feeds import Dense, Encoded, Feed, LoadedRows, Mask, to_ragged
from penstock.core.job import Job
from penstock.core.missing import filled
from penstock.core.records import (
    STRING,
    UNWATCHED,
    Array,
    Binding,
    Block,
    Column,
    RowFailure,
    SourceColumn,
    Span,
    Watch,
)
from penstock.core.source import Source, gone
from penstock.core.tracing import Level, Mark
from penstock.errors import InputError
from penstock.pool.trace_marks import marked


def load_batches(
    job: Job,
    span: Span,
    room: Room = on_the_heap,
    watch: Watch = UNWATCHED,
    marks: list[Mark | Level] | None = None,
) -> Iterator[Batch]:
    """The batches of a span. A batch never crosses a span, and is filled up with its last row.

    For a traced job, `marks` gets the times of reading.
    """
    pieces = read_pieces(job, span, watch, marks)
    if job.buckets and job.fewest_rows is not None:
        yield from cut_by_one_size(list(pieces), job.batch_size, job.fewest_rows, job.buckets, room, watch)
    elif job.buckets:
        yield from cut_by_size(list(pieces), job.batch_size, job.buckets, room, watch, is_in_order=job.is_in_order)
    else:
        yield from cut(pieces, job.batch_size, room, watch)
    watch.end()


def read_pieces(
    job: Job, span: Span, watch: Watch = UNWATCHED, marks: list[Mark | Level] | None = None
) -> Iterator[LoadedRows]:
    """The inputs of a span, block by block, with the kept columns and the rows that cannot be fed."""
    rows = 0
    source = job.source.watched_by(watch)
    watch.begin(span.start, span.rows)
    blocks = read_blocks(source, span, job.columns)
    for block in marked(blocks, span, marks) if job.is_traced and marks is not None else blocks:
        yield from _pieces_of(job, block, watch)
        rows += block.rows
        watch.begin(span.start + rows, span.rows - rows)
    if rows != span.rows:
        raise InputError(
            "the input changed while it was read",
            received=f"{rows} rows",
            allowed=f"{span.rows} rows from row {span.start}",
        )


def read_blocks(source: Source, span: Span, columns: Sequence[str]) -> Iterator[Block]:
    """The blocks of a span. A file that is gone is reported as gone: to its format it may look damaged.

    Raises:
        FileGone: A file is not there any more, on a disk or in a store.
        InputError: The rows cannot be read.
    """
    row = span.start
    try:
        for block in source.read(span, columns):
            row += block.rows
            yield block
    except (InputError, FileNotFoundError) as error:
        missing = _missing_file(error)
        if missing is None:
            raise
        said = error.received if isinstance(error, InputError) and error.received else ""
        said = missing.filename or said or source.origin(span, min(row, span.stop - 1))
        path = max((path for path in source.paths if said.startswith(path)), key=len, default=None)
        if path is None or os.path.exists(path):
            raise  # a file that does not belong to the input: one of a plugin, say
        raise gone(path) from error


def _missing_file(error: BaseException | None) -> FileNotFoundError | None:
    while error is not None and not isinstance(error, FileNotFoundError):
        error = error.__cause__
    return error


def _pieces_of(job: Job, block: Block, watch: Watch) -> Iterator[LoadedRows]:
    if job.preprocess is None:
        yield _piece(job, block, block, watch)
        return
    for made in job.preprocess.apply(block, watch):
        yield _piece(job, block, made, watch)


def _piece(job: Job, read: Block, made: Block, watch: Watch) -> LoadedRows:
    """`made` is what feeds the model: what was read, or what the user's function made of some of its rows."""
    first = made.start - read.start
    made = _with_unchanged(job, made, read, slice(first, first + made.rows))
    failures = {failure.row: failure for failure in made.failures}
    failures |= {row: failure for row, failure in watch.poisoned.items() if made.start <= row < made.start + made.rows}
    feeds: dict[str, Feed] = {}
    for binding in job.bindings:
        if binding.mask_of is None:
            feeds[binding.input] = _feed(job, binding, made, failures)
    for binding in job.bindings:
        if binding.mask_of is not None:
            feeds[binding.input] = _mask(binding, feeds[binding.mask_of])
    kept = {name: _kept(read, made, name, slice(first, first + made.rows)) for name in job.keep}
    return LoadedRows(made.start, made.rows, feeds, kept, failures)


def _with_unchanged(job: Job, made: Block, read: Block, rows: slice) -> Block:
    """What the user's function made, and columns that are fed as they were read, such as labels."""
    wanted = (name for binding in job.bindings for name in binding.columns)
    unchanged = {name: read.columns[name][rows] for name in wanted if name not in made.columns}
    return replace(made, columns={**made.columns, **unchanged}) if unchanged else made


def _kept(read: Block, made: Block, name: str, rows: slice) -> Column:
    column: SourceColumn = read.columns[name][rows] if name in read.columns else made.columns[name]
    return column.kept() if isinstance(column, Deferred) else column


def _mask(binding: Binding, masked: Feed) -> Feed:
    if None in binding.shape:
        return Mask(masked.sizes()[:, 0], np.dtype(binding.dtype))
    return Dense(np.ones((len(masked), *known(masked)[:1]), binding.dtype))


def _feed(job: Job, binding: Binding, block: Block, failures: dict[int, RowFailure]) -> Feed:
    if binding.features:
        return Dense(_records(binding, block, failures))
    if len(binding.columns) > 1:
        return Dense(_stacked(binding, block, failures))
    column = block.columns[binding.columns[0]]
    if isinstance(column, Deferred) and binding.dtype != STRING:
        rows = column.natural() if None in binding.shape else column
        rows = rows.routed(job.decoder.share) if job.decoder is not None else rows
        return Encoded(rows, np.dtype(binding.dtype), binding.shape)
    values = filled(column.raw() if isinstance(column, Deferred) else column, binding.nulls, binding.dtype)
    bad = BadRows()
    feed: Feed
    if None in binding.shape:
        feed, bad = to_ragged(values, binding.dtype, binding.shape)
    else:
        array, bad = to_array(values, binding.dtype, binding.shape)
        feed = Dense(array)
    _note(bad, binding.columns[0], block, failures)
    return feed


def _note(bad: BadRows, column: str, block: Block, failures: dict[int, RowFailure]) -> None:
    """Record bad rows of a block; for those that lack a value, with what the file has there."""
    explain = block.explain_null
    for position, reason in bad.items() if explain is not None else ():
        # A row that could not be read has nulls, too, and its reason already.
        if explain is not None and reason == IS_NULL and block.start + position not in failures:
            bad[position] = explain(column, position)
    note(bad, column, range(block.start, block.start + block.rows), failures)


def _records(binding: Binding, block: Block, failures: dict[int, RowFailure]) -> Array:
    """A serialized `tf.train.Example` for each row."""
    columns: list[Column] = []
    for feature, names in binding.columns_of_features():
        if len(names) > 1:
            part = Binding(feature.name, names, feature.dtype, (len(names),), nulls=binding.nulls)
            columns.append(_stacked(part, block, failures))
        else:
            column = block.columns[names[0]]
            values = column.raw() if isinstance(column, Deferred) else column
            # A feature with a default stays missing: the model was trained with that default.
            columns.append(filled(values, binding.nulls, feature.dtype) if feature.is_required else values)
    records, bad = encode(columns, binding.features)
    for position, rows in bad.items():
        note(rows, binding.features[position].name, range(block.start, block.start + block.rows), failures)
    return records


def _stacked(binding: Binding, block: Block, failures: dict[int, RowFailure]) -> Array:
    stacked = np.empty((block.rows, len(binding.columns)), dtype=binding.dtype)
    for position, name in enumerate(binding.columns):
        column = block.columns[name]
        assert not isinstance(column, Deferred)  # only single numbers are stacked
        values, bad = to_array(filled(column, binding.nulls, binding.dtype), binding.dtype, ())
        stacked[:, position] = values
        _note(bad, name, block, failures)
    return stacked.reshape(block.rows, *(length or 1 for length in binding.shape))
