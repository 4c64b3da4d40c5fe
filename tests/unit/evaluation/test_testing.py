"""Rows on their way to a model's own `test_step`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.core.job import Job
from penstock.core.records import Array, Binding
from penstock.evaluation.targets import Targets
from penstock.evaluation.testing import test_spans as spans_through
from penstock.sources.derived.selection import SelectedRows
from penstock.sources.python.memory import InMemory


class Recorded(list[dict[str, Array]]):
    """Stands for a fold, and keeps what it is given."""

    def add(self, columns: dict[str, Array]) -> None:
        self.append(columns)


def test_rows_that_fail_are_left_out_and_numbered_as_in_the_whole_input() -> None:
    values = [None if row == 12 else float(row) for row in range(20)]
    labels = [None if row == 14 else row for row in range(20)]
    source = SelectedRows(InMemory({"x": pa.array(values), "y": pa.array(labels)}), [(10, 6), (18, 2)])
    job = Job(source, (Binding("in", ("x",), "float32", ()),), ("y",), 4)
    fold = Recorded()
    failures = spans_through(fold, job, source.divide(20), Targets({"out": "y"}))  # type: ignore[arg-type]
    assert [(failure.row, failure.stage) for failure in failures] == [(12, "load"), (14, "label")], failures
    for name in ("row:", "input:in", "label:out"):
        assert np.concatenate([columns[name] for columns in fold]).tolist() == [10, 11, 13, 15, 18, 19], name
