"""Columns that are zero almost everywhere: kept as they were given, made dense a few rows at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.records import Array, TensorSpec


@dataclass(frozen=True)
class SparseColumn:
    """Values and their places. `rows` is sorted; `places` are those inside a row, one column for each dimension."""

    rows: Array
    places: Array
    values: Array
    shape: tuple[int, ...]

    @classmethod
    def of(cls, indices: Array, values: Array, shape: tuple[int, ...]) -> SparseColumn:
        """From the places of values in all dimensions, in any order."""
        order = np.argsort(indices[:, 0], kind="stable")
        indices = indices[order]
        return cls(indices[:, 0].copy(), indices[:, 1:].copy(), np.asarray(values)[order], tuple(map(int, shape)))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Array:
        """Rows as a dense array. Several values at one place are added, as scipy and JAX do."""
        start, stop, _ = rows.indices(len(self))
        first, last = np.searchsorted(self.rows, [start, stop])
        dense = np.zeros((max(0, stop - start), *self.shape[1:]), self.values.dtype)
        places = (self.rows[first:last] - start, *self.places[first:last].T)
        if dense.dtype == np.bool_:
            dense[places] = self.values[first:last]
        else:
            np.add.at(dense, places, self.values[first:last])
        return dense

    def describe(self, name: str) -> TensorSpec:
        return TensorSpec(name, self.values.dtype.newbyteorder("=").name, self.shape[1:])


def to_sparse(value: Any) -> SparseColumn | None:
    """The column behind a matrix of scipy, a sparse tensor of TensorFlow or a BCOO of JAX; None for anything else."""
    if all(hasattr(value, name) for name in ("indices", "values", "dense_shape")):
        return SparseColumn.of(_numpy(value.indices), _numpy(value.values), tuple(_numpy(value.dense_shape).tolist()))
    library = type(value).__module__.partition(".")[0]
    if library == "scipy" and hasattr(value, "tocoo"):
        coordinates = value.tocoo()
        places = coordinates.coords if hasattr(coordinates, "coords") else (coordinates.row, coordinates.col)
        return SparseColumn.of(np.stack(places, axis=1), coordinates.data, coordinates.shape)
    if library == "jax" and hasattr(value, "todense"):
        value = value.to_bcoo() if hasattr(value, "indptr") else value
        if value.n_batch or value.n_dense:
            dense = np.asarray(value.todense())
            return SparseColumn.of(np.argwhere(dense), dense[dense != 0], dense.shape)
        indices, values = _numpy(value.indices), _numpy(value.data)
        # JAX pads with places beyond the end, which have no value.
        is_real = (indices < np.asarray(value.shape)).all(axis=1)
        return SparseColumn.of(indices[is_real], values[is_real], value.shape)
    return None


def is_sparse(value: Any) -> bool:
    """Whether `to_sparse` takes it."""
    library = type(value).__module__.partition(".")[0]
    if library == "scipy":
        return hasattr(value, "tocoo")
    if library == "jax":
        return hasattr(value, "todense")
    return all(hasattr(value, name) for name in ("indices", "values", "dense_shape"))


def _numpy(tensor: Any) -> Array:
    return np.asarray(tensor)
