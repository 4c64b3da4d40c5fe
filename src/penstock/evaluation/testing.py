"""Runs rows through a model's own `test_step`, in order, where predictions are not enough for its loss or metrics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from penstock.core.columns import take_positions
from penstock.core.job import Job
from penstock.core.records import Array, RowFailure, Span
from penstock.evaluation.metric_records import INPUT, ROW
from penstock.evaluation.metrics import Fold
from penstock.evaluation.targets import Targets
from penstock.pool.loading import load_batches


def test_spans(fold: Fold, job: Job, spans: Iterable[Span], targets: Targets) -> list[RowFailure]:
    """Read spans, and add their rows to a fold that takes inputs. Returns the rows that failed."""
    failures: list[RowFailure] = []
    for span in spans:
        for batch in load_batches(job, span):
            places = np.asarray(batch.positions)[: batch.rows]
            numbers = np.array([span.number(span.start + int(place)) for place in places], np.int64)
            failed = {failure.row - span.start for failure in batch.failures}
            failures += [_as_of_input(failure, job, span) for failure in batch.failures]
            good = np.flatnonzero([place not in failed for place in places.tolist()])
            kept = {name: take_positions(column, good) for name, column in batch.kept.items()}
            read, bad = targets.read(kept)
            for place, reason in bad.items():
                failure = without_label(span.start + int(places[good[place]]), reason)
                failures.append(_as_of_input(failure, job, span))
            is_good = np.array([place not in bad for place in range(len(good))], bool)
            columns: dict[str, Array] = {name: array[is_good] for name, array in read.items()}
            for name, array in batch.arrays.items():
                columns[INPUT + name] = array[: batch.rows][good][is_good]
            fold.add({**columns, ROW: numbers[good][is_good]})
    return failures


def _as_of_input(failure: RowFailure, job: Job, span: Span) -> RowFailure:
    """A failure with its row number in the whole input instead of the job, and with the file of the row."""
    origin = failure.origin or job.source.origin(span, failure.row)
    return replace(failure, row=span.number(failure.row), origin=origin)


def without_label(row: int, reason: str) -> RowFailure:
    """The failure of a row that cannot be evaluated."""
    return RowFailure(row, "", "label", "NoLabel", reason)
