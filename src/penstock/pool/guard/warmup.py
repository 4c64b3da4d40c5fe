"""Compile the step on the job's own first rows before any time is measured, and find out what it gives."""

import contextlib
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from penstock.core.agreement import compare
from penstock.core.batching import Batch
from penstock.core.columns import describe, take_positions
from penstock.core.job import Job
from penstock.core.messages import NOTHING_ASKED, Asked, Prepared
from penstock.core.protocols import Stateful
from penstock.core.records import KEPT, Array, Binding, Column, Columns, RowFailure, Signature, Span, TensorSpec
from penstock.core.reordering import AS_LISTS, answers
from penstock.core.state import STATELESS, VARIABLES, State
from penstock.errors import ModelError, PenstockError
from penstock.pool.guard.bisection import ShapeRejected, check_rows
from penstock.pool.guard.guarded import GuardedReplica
from penstock.pool.guard.keeping import trim
from penstock.pool.guard.rows_alone import try_padding

_SHORT_WARMING_S = 1.0
NO_BUCKETS: Mapping[str, Sequence[Sequence[int]]] = {}
_REPEATED = 1e-4
"""How much the answers of two calls may differ, as a share of an output's spread: sums on a GPU have no fixed order."""


def warm_up(
    replica: GuardedReplica,
    batch: Batch,
    sample: Span,
    bindings: Sequence[Binding] = (),
    asked: Asked = NOTHING_ASKED,
    buckets: Mapping[str, Sequence[Sequence[int]]] = NO_BUCKETS,
) -> Prepared:
    """Run the first batch, of the span `sample`, twice: once to compile, once to time. Try padding, if asked.

    Raises:
        ModelError: The model gives something that is not one row for each row.
    """
    _, before, _ = _timed(replica, batch, sample)
    seconds, outputs, rejected = _timed(replica, batch, sample)
    if rejected:  # finding them took longer than batches do
        seconds = _time_without(replica, batch, sample, {failure.row for failure in rejected})
    check_rows(outputs, len(next(iter(batch.arrays.values()))))
    state = seen_to_change(replica, before, outputs)
    follows = find_followed(replica, batch, outputs, bindings, replica.runnable(batch, sample.start))
    follows |= find_open(replica.signature, follows, is_any_varying=bool(batch.sizes))
    given = {name: answers(follows, name, output[: batch.rows], batch) for name, output in outputs.items()}
    specs = tuple(describe(name, column) for name, column in given.items())
    trial = None
    if asked.tolerance is not None:
        alive = places_alive(batch, sample, rejected).tolist()
        masks = [each.input for each in bindings if each.mask_of]
        largest = {name: tuple(ends[-1] for ends in sizes) for name, sizes in buckets.items()}
        trial = try_padding(replica, batch, alive, follows, masks, largest)
    first: dict[str, Column] = {}
    if asked.learn_rows:
        taken = places_alive(batch, sample, rejected)[: asked.learn_rows]
        columns = given | {KEPT + name: column for name, column in batch.kept.items()}
        first = {name: take_positions(column, taken) for name, column in columns.items()}
    return Prepared(
        specs,
        seconds,
        first_rows=batch.rows,
        first_failures=batch.failures,
        follows=follows,
        padding=trial,
        first=first,
        state=state,
    )


def warm_lanes(replica: GuardedReplica, batch: Batch, sample: Span, lanes: int) -> None:
    """Run the first batch in all lanes at once: a GPU allocates memory for so many calls, which would hold up a job.

    Where that was short, it is done twice more: not all of the first calls overlap, and the job would have to wait for
    the other allocations (0.3 s of ResNet50 on an H200). What fails here fails again in the job, where it counts.
    """

    def run(calls: int) -> None:
        with contextlib.suppress(Exception):
            for _ in range(calls):
                replica.predict(replace(batch, arrays=dict(batch.arrays)), sample.start)

    def run_all(calls: int) -> None:
        threads = [threading.Thread(target=run, args=(calls,), daemon=True, name=f"lane-{n}") for n in range(lanes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    began = time.perf_counter()
    run_all(1)
    if time.perf_counter() - began < _SHORT_WARMING_S:
        run_all(2)


def seen_to_change(replica: GuardedReplica, before: Columns, after: Columns) -> State:
    """Whether a model answers the same batch differently when it is called again.

    This is tried only with replicas that cannot find out what a call changes: those of onnxruntime, say, whose files
    may hold operations that draw random numbers.
    """
    if isinstance(replica.replica, Stateful) or compare(after, before, _REPEATED) is None:
        return STATELESS
    return State(VARIABLES, ("it answers the same batch differently when it is called again",), is_repeatable=False)


def first_that_runs(
    replica: GuardedReplica, batches: Iterable[Batch], sample: Span, job: Job, asked: Asked
) -> tuple[Batch, Prepared]:
    """Warm up with the first batch; where each batch has its own shape, with the first whose shape the model takes.

    Raises:
        ModelError: As `warm_up`; or the model rejects all of these shapes.
    """
    rejected: ShapeRejected | None = None
    for batch in batches:
        trim(job, batch)
        try:
            return batch, warm_up(replica, batch, sample, job.bindings, asked, job.buckets)
        except ShapeRejected as error:
            if job.fewest_rows is None:
                raise
            rejected = rejected or error
    assert rejected is not None
    raise rejected


def places_alive(batch: Batch, sample: Span, rejected: Iterable[RowFailure]) -> Array:
    """The places in a batch of the real rows that did not fail."""
    failed = {failure.row for failure in (*batch.failures, *rejected)}
    rows = [sample.start + int(position) for position in batch.positions]
    return np.array([place for place, row in enumerate(rows) if row not in failed], dtype=np.int64)


def find_followed(
    replica: GuardedReplica,
    batch: Batch,
    outputs: Columns,
    bindings: Sequence[Binding],
    runnable: Columns,
) -> dict[str, str]:
    """Outputs that grow by one value when an input does, with that input. Each input is made longer to find out.

    Comparing lengths would not do: two inputs may happen to be padded to one length, or to the number of classes.
    """
    masks = {binding.input: binding.mask_of for binding in bindings if binding.mask_of is not None}
    follows: dict[str, str] = {}
    for name in batch.lengths:
        if name in masks:
            continue
        growing = [name, *(mask for mask, of in masks.items() if of == name)]
        arrays = {each: _grown(array) if each in growing else array for each, array in runnable.items()}
        try:
            grown = replica.call(arrays)
        except PenstockError:
            raise
        except Exception:  # a model that takes no other length has no output that follows it
            continue
        for output, before in outputs.items():
            # Ragged outputs are cut to their own lengths already.
            if isinstance(before, np.ndarray) and before.ndim > 1 and _follows(before, grown[output]):
                follows.setdefault(output, name)
    return follows


def find_open(signature: Signature, follows: Mapping[str, str], *, is_any_varying: bool) -> dict[str, str]:
    """Outputs that are lists because nothing says how long their rows are. Only the model's declaration decides this.

    An open dimension is explained by an open one of an input, as long as that input is fed rows of one length.
    Otherwise it may differ from batch to batch (`tf.sequence_mask`, the longest text of the batch).
    """
    is_explained = not signature.inputs or any(_is_open(spec) for spec in signature.inputs)
    if is_explained and not is_any_varying:
        return {}
    return {
        spec.name: AS_LISTS
        for spec in signature.outputs
        if spec.shape is not None and _is_open(spec) and spec.name not in follows
    }


def _is_open(spec: TensorSpec) -> bool:
    return spec.shape is None or None in spec.shape


def _follows(before: Array, grown: Array) -> bool:
    return bool(grown.ndim > 1 and grown.shape[1] == before.shape[1] + 1)


def _grown(array: Array) -> Array:
    """Rows with one more value: the last one again."""
    return np.concatenate([array, array[:, -1:]], axis=1)


def _time_without(replica: GuardedReplica, batch: Batch, sample: Span, rejected: set[int]) -> float:
    """The seconds of a batch with other rows in the places of those that the model rejects."""
    rows = [sample.start + int(position) for position in batch.positions]
    alive = [place for place, row in enumerate(rows) if row not in rejected]
    places = np.resize(alive, len(next(iter(batch.arrays.values()))))
    clean = {name: array[places] for name, array in batch.arrays.items()}
    started = time.perf_counter()
    replica.call(clean)
    return time.perf_counter() - started


def _timed(replica: GuardedReplica, batch: Batch, sample: Span) -> tuple[float, Columns, list[RowFailure]]:
    started = time.perf_counter()
    outputs, rejected = replica.answer(batch, sample.start)
    if len(rejected) == batch.rows:
        raise ModelError(
            "the model rejects every one of the first rows",
            received=rejected[0].reason,
            hint="check --input: are these the columns that the model was trained on?",
        )
    return time.perf_counter() - started, outputs, rejected
