"""Training data from columns in memory and from sources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any

from penstock.core.columns import describe
from penstock.core.job import Job
from penstock.core.preprocessing import Preprocess
from penstock.core.protocols import Source
from penstock.core.records import Binding, Columns, RowFailure
from penstock.core.sharing import Share
from penstock.core.shuffling import AllRows, RowSet
from penstock.core.stillness import DEFAULT_TIMEOUTS, Timeouts
from penstock.engines.loader_feed import slot_bytes_of
from penstock.jobs.buckets import sized
from penstock.jobs.decide import LEARN_ROWS, first_rows
from penstock.pool.processes.supervisor import LoaderLaunch
from penstock.sources.derived.shuffled import SEED, EpochRows, Order, RandomRows, WindowedRows
from penstock.sources.python.memory import InMemory, SharedMemory, shared
from penstock.training.cutting import rows_per_chunk
from penstock.training.loader_reader import LoaderReader, learn_function
from penstock.training.row_stream import RowStream, ThisProcess

WINDOW_BYTES, WINDOW_DECODED_BYTES = 32 << 20, 128 << 20
"""How much a loader reads before it shuffles, where rows cannot be read at random: bytes before decoding, and after.
This does not depend on the number of loaders, since the order of rows must not depend on the machine."""
AHEAD_BYTES = 1 << 30
"""How much all loaders together may load ahead of its turn."""
_WINDOW_BATCHES = 4
_COUNTED_ROWS = 1 << 16


@dataclass(frozen=True)
class Loading:
    """How rows are loaded. This decides only the speed.

    With 0 loaders, a thread of this process reads. Loaders read ahead, but not beyond the last of `epochs`, if that
    number is known.
    """

    loaders: int
    log: IO[Any] | int
    is_verbose: bool = False
    timeouts: Timeouts = DEFAULT_TIMEOUTS
    epochs: int | None = None


@dataclass(frozen=True)
class RowFormat:
    """The form that rows get: bindings of all roles, the user's function, and the sizes to which rows are padded."""

    bindings: tuple[Binding, ...]
    preprocess: Preprocess | None = None
    buckets: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)

    @property
    def row_bytes(self) -> int:
        return sum(binding.row_bytes for binding in sized(self.bindings, self.buckets))


def from_columns(
    columns: Columns,
    *,
    batch_size: int,
    seed: int | None,
    rows: RowSet | None = None,
    failures: Iterable[RowFailure] = (),
    share: Share | None = None,
) -> RowStream:
    """Training data from columns in memory, whose names begin with their role: `input:x`, `target:`.

    Args:
        columns: The columns, as a cache has them.
        batch_size: Rows of a global batch.
        seed: Decides the order of rows; None for the order that they have.
        rows: Which rows to use; None for all.
        failures: Rows that are left out, because another run found them bad.
        share: The share of this process in every batch.
    """
    held = InMemory(columns)
    specs = [describe(name, column) for name, column in columns.items()]
    row_format = RowFormat(tuple(Binding(spec.name, (spec.name,), spec.dtype, spec.shape or ()) for spec in specs))
    source = RandomRows(held, Order(rows or AllRows(len(held)), seed), share)
    job = _job(source, row_format, batch_size)
    return RowStream(job, source, batch_size, ThisProcess(job), failures)


def from_source(
    source: Source,
    row_format: RowFormat,
    loading: Loading,
    *,
    batch_size: int,
    seed: int | None,
    rows: RowSet | None = None,
    failures: Iterable[RowFailure] = (),
    share: Share | None = None,
) -> RowStream:
    """Training data from any source that can be read again. Loader processes start at once.

    Args:
        source: Where rows come from.
        row_format: The form that rows get.
        loading: How many loaders there are, and how they are started.
        batch_size: Rows of a global batch.
        seed: Decides the order of rows; None for the order of the input.
        rows: Which rows to use; None for all.
        failures: Bad rows that are known already.
        share: The share of this process in every batch. It is used where rows can be read at random and have one size.
    """
    source, held = shared(source) if loading.loaders else (source, None)
    total = count_rows(source)
    order = Order(rows or AllRows(total), seed)
    # Rows of different sizes are padded to the largest of their whole batch, so every process must read all of it.
    share = share if not row_format.buckets else None
    epochs = _in_epochs(source, order, _rows_of_a_window(source, row_format, total, batch_size), share)
    job = _job(epochs, row_format, batch_size)
    if not loading.loaders:
        return RowStream(job, epochs, batch_size, ThisProcess(job), failures)
    ahead = _slots_ahead(epochs, job, loading.loaders)
    reader = LoaderReader(_launch(loading, held), job, loading.loaders, ahead, loading.timeouts)
    return RowStream(job, epochs, batch_size, reader, failures, loading.epochs)


def learn(source: Source, function: Preprocess, loading: Loading) -> Preprocess:
    """The user's function with the columns that it gives: a loader process finds these out on the first rows.

    Besides the columns of the source, the function gets `@seed`, a number for every row and epoch, for augmentation.
    """
    source, held = shared(source)
    epochs = _in_epochs(source, Order(AllRows(count_rows(source)), None), LEARN_ROWS)
    launch = _launch(loading, held)
    try:
        function = replace(function, takes={**function.takes, SEED: epochs.schema()[SEED]})
        return learn_function(launch, epochs, function, first_rows(epochs, LEARN_ROWS), loading.timeouts)
    finally:
        launch.close()
        if held is not None:
            held.close()


def count_rows(source: Source) -> int:
    """How many rows a source has."""
    return sum(span.rows for span in source.divide(_COUNTED_ROWS))


def _in_epochs(source: Source, order: Order, window_rows: int, share: Share | None = None) -> EpochRows:
    if source.traits.reads_at_random:
        return RandomRows(source, order, share)
    return WindowedRows(source, order, window_rows)


def _launch(loading: Loading, held: SharedMemory | None) -> LoaderLaunch:
    descriptors = (held.descriptor,) if held is not None else ()
    return LoaderLaunch(loading.log, descriptors=descriptors, is_verbose=loading.is_verbose)


def _job(source: EpochRows, row_format: RowFormat, batch_size: int) -> Job:
    # Rows of different sizes are padded to the largest row that is loaded with them, so one batch is loaded at a time.
    most = source.order.rows.count if not row_format.buckets else 1
    rows = rows_per_chunk(source.read_of(batch_size), row_format.row_bytes, most)
    return Job(source, row_format.bindings, (), rows, row_format.preprocess, row_format.buckets, is_in_order=True)


def _rows_of_a_window(source: Source, row_format: RowFormat, total: int, batch_size: int) -> int:
    """How many of `total` rows a window has: it must be small enough before its rows are decoded, and after."""
    schema = source.schema()
    columns = {name for binding in row_format.bindings for name in binding.columns if name in schema}
    encoded = sum(fragment.size for fragment in source.fragments()) // max(1, total)
    by_reading = WINDOW_BYTES // max(1, encoded, sum(schema[name].row_bytes for name in columns))
    by_waiting = WINDOW_DECODED_BYTES // max(1, row_format.row_bytes)
    return max(_WINDOW_BATCHES * batch_size, min(by_reading, by_waiting, total))


def _slots_ahead(source: EpochRows, job: Job, loaders: int) -> int:
    """How many slots hold batches that are loaded before their turn: one for each loader, or enough for windows."""
    if not isinstance(source, WindowedRows):
        return loaders
    batches = -(-source.window_rows // job.batch_size) + 1
    return max(loaders, min(batches * (loaders + 1), AHEAD_BYTES // slot_bytes_of(job)))
