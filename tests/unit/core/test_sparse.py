"""Sparse columns give the rows that the library they come from gives."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from penstock.core.sparse import SparseColumn, is_sparse, to_sparse

scipy_sparse = pytest.importorskip("scipy.sparse", reason="scipy is not installed")


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "dok", "lil"])
def test_every_kind_of_scipy_matrix_gives_its_rows(kind: str) -> None:
    matrix = scipy_sparse.random(40, 7, density=0.2, format=kind, dtype="float32", random_state=3)
    assert is_sparse(matrix)
    column = to_sparse(matrix)
    assert column is not None
    assert len(column) == 40
    assert column.describe("x").shape == (7,)
    for start, stop in ((0, 40), (5, 9), (39, 40), (40, 40), (30, 99)):
        np.testing.assert_array_equal(column[start:stop], matrix.toarray()[start:stop])


def test_values_with_one_place_are_added_up() -> None:
    matrix = scipy_sparse.coo_matrix(([1.0, 2.0, 4.0], ([1, 1, 0], [2, 2, 0])), shape=(2, 3))
    column = to_sparse(matrix)
    assert column is not None
    np.testing.assert_array_equal(column[:], matrix.toarray())


def test_tensor_of_more_dimensions_gives_its_rows() -> None:
    dense = np.zeros((3, 2, 2), np.int32)
    dense[0, 1, 1], dense[2, 0, 1] = 5, 7
    tensor = SimpleNamespace(indices=np.argwhere(dense)[::-1], values=np.array([7, 5], np.int32), dense_shape=(3, 2, 2))
    column = to_sparse(tensor)
    assert column is not None
    np.testing.assert_array_equal(column[:], dense)
    np.testing.assert_array_equal(column[1:3], dense[1:3])


def test_bits_stay_bits() -> None:
    column = SparseColumn.of(np.array([[0, 1], [0, 1]]), np.array([True, True]), (1, 2))
    assert column[:].tolist() == [[False, True]]


@pytest.mark.parametrize("value", [np.zeros((2, 2)), [1, 2], "text", None, 5], ids=repr)
def test_anything_else_is_not_sparse(value: object) -> None:
    assert not is_sparse(value)
    assert to_sparse(value) is None
