"""Rows of a training job: their weights and their classes."""

import numpy as np

from penstock.core.training import TrainBatch
from penstock.training.job_rows import ClassWeights, JobRows, compare_classes
from tests.support.training_arrays import from_arrays


def test_rows_are_weighted_by_their_class_whatever_numbers_the_classes_have() -> None:
    labels = np.array([-1, 7, 1_000_000_000, 3])
    batch = TrainBatch(4, {}, {"": labels}, {"": np.array([1, 2, 3, 4], np.float32)}, np.arange(4))
    weighted = ClassWeights({-1: 0.5, 7: 2.0, 1_000_000_000: 4.0})(batch)
    assert weighted.weights[""].tolist() == [0.5, 4.0, 12.0, 4.0], "another class counts 1"
    assert weighted.weights[""].dtype == np.float32


def rows_of(labels: list[int]) -> JobRows:
    columns = np.array(labels)
    rows = JobRows(from_arrays({"x": columns}, {"": columns}, batch_size=2, seed=None))
    assert sum(batch.rows for batch in rows.batches(0)) == len(labels)
    return rows


def test_classes_that_only_one_side_has_are_named_once() -> None:
    train, validation = rows_of([0, 1, 2, 1]), rows_of([1, 5])
    assert compare_classes(train, validation) == [
        "no row of 0, 2 is on the side of validation",
        "no row of 5 is on the side of training",
    ]
    assert compare_classes(train, validation) == []


def test_first_batch_is_read_once() -> None:
    columns = np.arange(7)
    rows = JobRows(from_arrays({"x": columns}, {"": columns % 2}, batch_size=3, seed=None))
    assert rows.first().inputs["x"].tolist() == [0, 1, 2]
    assert [batch.inputs["x"].tolist() for batch in rows.batches(0)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [batch.inputs["x"].tolist() for batch in rows.batches(0)] == [[0, 1, 2], [3, 4, 5], [6]]


def test_first_batch_is_given_up_where_an_epoch_begins_elsewhere() -> None:
    released: list[int] = []
    columns = np.arange(7)
    rows = JobRows(from_arrays({"x": columns}, {"": columns % 2}, batch_size=3, seed=None))
    rows.first().release = lambda: released.append(1)
    assert [batch.inputs["x"].tolist() for batch in rows.batches(0, 3)] == [[3, 4, 5], [6]]
    assert released == [1]
    rows.first().release = lambda: released.append(2)
    rows.close()
    assert released == [1, 2]
