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
"""So much a loader reads before it shuffles, where rows cannot be read at random, and so much that may become. The
number of loaders does not matter: the order of rows must not depend on the machine."""
AHEAD_BYTES = 1 << 30
"""So much may be loaded ahead of its turn by all loaders."""
_WINDOW_BATCHES = 4
_COUNTED_ROWS = 1 << 16


@dataclass(frozen=True)
class Loading:
    """How rows are loaded: what decides only the speed.

    Without `loaders` this process reads, in a thread. Loaders read ahead, but not beyond the last of `epochs`, where it
    is known how many there are.
    """

    loaders: int
    log: IO[Any] | int
    is_verbose: bool = False
    timeouts: Timeouts = DEFAULT_TIMEOUTS
    epochs: int | None = None


@dataclass(frozen=True)
class RowFormat:
    """What every row becomes: bindings of all roles, the user's function, and sizes that rows are padded to."""

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
        columns: As a cache has them.
        batch_size: Rows of a global batch.
        seed: Decides the order of rows; None for the order that they have.
        rows: Which rows; all where it is None.
        failures: Rows that are left out, because another run found them bad.
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
        row_format: What every row becomes.
        loading: How many loaders, and what they are started with.
        batch_size: Rows of a global batch.
        seed: Decides the order of rows; None for the order of the input.
        rows: Which rows; all where it is None.
        failures: Bad rows that are known already.
        share: What this process reads of every batch, where rows can be read at random and are of one size.
    """
    source, held = shared(source) if loading.loaders else (source, None)
    total = count_rows(source)
    order = Order(rows or AllRows(total), seed)
    # Rows of different sizes are padded to the largest of their whole batch.
    share = share if not row_format.buckets else None
    epochs = _in_epochs(source, order, _rows_of_a_window(source, row_format, total, batch_size), share)
    job = _job(epochs, row_format, batch_size)
    if not loading.loaders:
        return RowStream(job, epochs, batch_size, ThisProcess(job), failures)
    ahead = _slots_ahead(epochs, job, loading.loaders)
    reader = LoaderReader(_launch(loading, held), job, loading.loaders, ahead, loading.timeouts)
    return RowStream(job, epochs, batch_size, reader, failures, loading.epochs)


def learn(source: Source, function: Preprocess, loading: Loading) -> Preprocess:
    """What the user's function gives, found out in a loader process on the first rows.

    Besides the columns of the source it gets `@seed`, a number for every row and epoch that augmentation draws from.
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
    # Rows of different sizes are padded to the largest of those that are loaded with them: that is their batch.
    most = source.order.rows.count if not row_format.buckets else 1
    rows = rows_per_chunk(source.read_of(batch_size), row_format.row_bytes, most)
    return Job(source, row_format.bindings, (), rows, row_format.preprocess, row_format.buckets, is_in_order=True)


def _rows_of_a_window(source: Source, row_format: RowFormat, total: int, batch_size: int) -> int:
    """Of `total` rows, as many as are small enough while they are encoded, and when they are not any more."""
    schema = source.schema()
    columns = {name for binding in row_format.bindings for name in binding.columns if name in schema}
    encoded = sum(fragment.size for fragment in source.fragments()) // max(1, total)
    by_reading = WINDOW_BYTES // max(1, encoded, sum(schema[name].row_bytes for name in columns))
    by_waiting = WINDOW_DECODED_BYTES // max(1, row_format.row_bytes)
    return max(_WINDOW_BATCHES * batch_size, min(by_reading, by_waiting, total))


def _slots_ahead(source: EpochRows, job: Job, loaders: int) -> int:
    """Room for what is loaded before its turn: a batch of each loader, or a whole window."""
    if not isinstance(source, WindowedRows):
        return loaders
    batches = -(-source.window_rows // job.batch_size) + 1
    return max(loaders, min(batches * (loaders + 1), AHEAD_BYTES // slot_bytes_of(job)))
