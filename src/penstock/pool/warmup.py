"""Compile the step before the clock runs, on the job's own first rows, and see what comes out."""

from __future__ import annotations

import time

from penstock.core.batching import Batch, cut
from penstock.core.columns import describe
from penstock.core.events import Prepared
from penstock.core.protocols import Replica
from penstock.core.records import Columns, Job, RowFailure, Span
from penstock.errors import ModelError
from penstock.pool.pipeline import check_rows, predict_surviving, read_inputs


def warm_up(replica: Replica, job: Job, sample: Span) -> Prepared:
    """Run the first batch twice: once to compile, once to time.

    Raises:
        ModelError: The model gives something that is not one row for each row.
    """
    failures: dict[int, RowFailure] = {}
    batch = next(cut(read_inputs(job, sample, [], failures), job.batch_size))
    _timed(replica, batch, sample)
    seconds, outputs = _timed(replica, batch, sample)
    check_rows(outputs, job.batch_size)
    return Prepared(tuple(describe(name, output) for name, output in outputs.items()), seconds)


def _timed(replica: Replica, batch: Batch, sample: Span) -> tuple[float, Columns]:
    started = time.perf_counter()
    outputs, rejected = predict_surviving(replica, batch, sample.start)
    if len(rejected) == batch.rows:
        raise ModelError(
            "the model rejects every one of the first rows",
            received=rejected[0].reason,
            hint="check --input: are these the columns that the model was trained on?",
        )
    return time.perf_counter() - started, outputs
