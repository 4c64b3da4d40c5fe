"""Answers that are NaN or infinite are counted by row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.columns import to_lists
from penstock.core.finite import count_not_finite
from penstock.core.records import Column

NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        ([np.array([1.0, NAN, INF, -INF])], 3),
        ([np.array([INF, -INF])], 2),
        ([np.array([[1, NAN], [2, 3], [NAN, INF]], np.float32)], 2),
        ([np.array([1.0, NAN, 2.0]), np.array([NAN, NAN, 0.0])], 2),
        ([np.array([3e38, 3e38], np.float32)], 0),
        ([np.array([6e4, 6e4, NAN], np.float16)], 1),
        ([np.array([1, 2]), np.array(["nan", "inf"], object), np.array([True, False])], 0),
        ([np.zeros((0, 3)), np.zeros((2, 0))], 0),
        ([pa.array([[1.0], [], [NAN, 2.0], [INF]])], 2),
        ([to_lists([np.array([[[1.0, NAN]], [[1.0, 2.0]]]), np.array([[[INF]]])])], 2),
        ([pa.array(["nan"]), pa.array([[1, 2]])], 0),
        ([], 0),
    ],
)
def test_rows_that_hold_something_that_is_no_number_are_counted_once(columns: list[Column], rows: int) -> None:
    assert count_not_finite(columns) == rows
