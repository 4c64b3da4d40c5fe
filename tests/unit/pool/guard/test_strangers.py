"""Rows that no sample has are tried where that is safe, in copies of the first rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.agreement import NANS
from penstock.core.records import Column, Columns, Signature
from penstock.pool.guard.strangers import answer_strangers

IDS, NEGATIVE = "numbers that are out of range", "numbers below zero"
ROWS: Columns = {"id": np.arange(20, dtype="i4"), "x": np.ones((20, 3), "f4"), "photo": np.ones((20, 4, 4, 3), "f4")}


class Table:
    """Looks ids up in a table of a hundred, and sums what else it gets."""

    signature = Signature((), ())

    def predict(self, batch: Columns) -> dict[str, Column]:
        if not ((batch["id"] >= 0) & (batch["id"] < 100)).all():
            raise IndexError("no such row")
        assert np.isfinite(batch["photo"]).all()
        return {"sum": batch["x"].sum(axis=1), "words": pa.array([["a"]] * len(batch["id"]))}

    def close(self) -> None:
        pass


class Looping(Table):
    def __init__(self, *, has_loops: bool) -> None:
        self._has_loops = has_loops

    def has_loops(self, batch: Columns) -> bool:
        return self._has_loops


def test_ids_that_are_rejected_and_rows_with_nan_are_told_apart() -> None:
    found = answer_strangers(Looping(has_loops=False), ROWS)
    assert (found[IDS], found[NEGATIVE]) == (None, None)
    answers = found[NANS]
    assert answers is not None
    assert np.isnan(np.asarray(answers["sum"])).tolist() == [True, True] + [False] * 6
    assert len(answers["words"]) == 8
    assert all(np.isfinite(array).all() for array in ROWS.values())


@pytest.mark.parametrize("replica", [Table(), Looping(has_loops=True)])
def test_nan_and_what_is_below_zero_are_tried_unasked_only_where_no_loop_could_run_for_ever(replica: Table) -> None:
    assert set(answer_strangers(replica, ROWS)) == {IDS}


def test_others_are_tried_with_what_the_framework_answered() -> None:
    assert set(answer_strangers(Table(), ROWS, (NANS,))) == {NANS}
    assert answer_strangers(Table(), ROWS, ()) == {}


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2", "i4", "u4", "i8", "u8"])
def test_ids_of_every_type_are_tried(dtype: str) -> None:
    found = answer_strangers(Looping(has_loops=False), ROWS | {"id": np.arange(20, dtype=dtype)})
    assert found[IDS] is None
    assert (NEGATIVE in found) == dtype.startswith("i")


def test_colours_are_no_ids() -> None:
    assert answer_strangers(Table(), {"photo": np.ones((20, 4, 4, 3), "u1")}) == {}


def test_nothing_is_tried_without_rows() -> None:
    assert answer_strangers(Table(), {}) == {}
