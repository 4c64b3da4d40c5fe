"""Compile the step before the clock runs, on the job's own first rows, and see what comes out."""

from __future__ import annotations

import time

from penstock.core.batching import Batch
from penstock.core.columns import describe
from penstock.core.events import Prepared
from penstock.core.protocols import Replica
from penstock.core.records import Columns, Span
from penstock.core.reordering import answers
from penstock.errors import ModelError
from penstock.pool.surviving import check_rows, predict_surviving


def warm_up(replica: Replica, batch: Batch, sample: Span) -> Prepared:
    """Run the first batch, of the span `sample`, twice: once to compile, once to time.

    Raises:
        ModelError: The model gives something that is not one row for each row.
    """
    _timed(replica, batch, sample)
    seconds, outputs = _timed(replica, batch, sample)
    check_rows(outputs, len(next(iter(batch.arrays.values()))))
    given = {name: answers(replica.signature, name, output[: batch.rows], batch) for name, output in outputs.items()}
    specs = tuple(describe(name, column) for name, column in given.items())
    return Prepared(specs, seconds, first_rows=batch.rows, first_failures=batch.failures)


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
