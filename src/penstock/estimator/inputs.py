"""`numpy_input_fn` and `pandas_input_fn`: input functions over data in memory.

The function that they return gives tensors, as the original did, because old code takes them apart. Its method
`as_dataset` is used where batches go to several devices in turn.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.core.records import Array
from penstock.errors import DeviceError
from penstock.estimator.refusals import WrongType, WrongValue
from penstock.runtimes.frameworks import tf

__all__ = ["numpy_input_fn", "pandas_input_fn"]


class MemoryInput:
    """An input function over arrays of equal length."""

    def __init__(self, make_rows: Callable[[], Any], batch_size: int, epochs: int | None, shuffle_rows: int) -> None:
        self._make_rows = make_rows
        self._batch_size = batch_size
        self._num_epochs = epochs
        self._shuffle_rows = shuffle_rows
        self.__name__ = "input_fn"

    def as_dataset(self) -> Any:
        """Batches of (features, labels), or of features. Batches cross epochs, and only the last one may be short."""
        made = self._make_rows()
        arrays = [_as_array(column) for column in tf.nest.flatten(made)]
        # The graph holds the numbers of the rows only. The rows themselves would be in every file that holds the graph.
        rows = tf.data.Dataset.range(len(arrays[0]))
        if self._shuffle_rows:
            rows = rows.shuffle(self._shuffle_rows)
        batches = rows.repeat(self._num_epochs).batch(self._batch_size, drop_remainder=self._num_epochs is None)
        return batches.map(lambda numbers: tf.nest.pack_sequence_as(made, _taken(arrays, numbers))).prefetch(1)

    def __call__(self) -> Any:
        # This iterator starts by itself with the first batch: old code runs the tensors in a plain session.
        return tf.compat.v1.data.make_one_shot_iterator(self.as_dataset()).get_next()


def numpy_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
) -> MemoryInput:
    """An input function over an array, or a dict of arrays.

    Args:
        x: Features: an array, or name to array.
        y: Labels: an array, name to array, or None.
        batch_size: Rows of a batch.
        num_epochs: How often the rows are read; None reads them forever.
        shuffle: Whether rows are shuffled; must be said.
        queue_capacity: How many rows are shuffled among each other.
        num_threads: Accepted; one thread is enough for arrays.
    """
    _check_shuffle(shuffle)

    def make_rows() -> Any:
        features = _check_columns(x, "x")
        labels = None if y is None else _check_columns(y, "y")
        _check_lengths(features, labels)
        if isinstance(features, dict) and isinstance(labels, dict) and set(features) & set(labels):
            raise WrongValue("x and y have names in common", received=", ".join(sorted(set(features) & set(labels))))
        return features if labels is None else (features, labels)

    return MemoryInput(make_rows, batch_size, num_epochs, max(queue_capacity, batch_size) if shuffle else 0)


def pandas_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int | None = 1000,
    num_threads: int = 1,
    target_column: str = "target",
) -> MemoryInput:
    """An input function over the columns of a pandas frame.

    Args:
        x: The features: a frame.
        y: The labels: a series, a frame, or None. Its index must be that of `x`.
        batch_size: Rows of a batch.
        num_epochs: How often the rows are read; None reads them forever.
        shuffle: Whether rows are shuffled; must be said.
        queue_capacity: How many rows are shuffled among each other; None shuffles all.
        num_threads: Accepted; one thread is enough for a frame.
        target_column: Accepted; no column of `x` may have this name.
    """
    try:
        import pandas as pd
    except ImportError:
        raise DeviceError("pandas_input_fn needs pandas", hint="pip install pandas") from None
    _check_shuffle(shuffle)
    if not isinstance(target_column, str):
        raise WrongType("target_column must be text", received=repr(target_column))
    features = x.copy()
    if y is not None:
        if target_column in features:
            raise WrongValue("a feature has the name of the target column", received=target_column)
        if not np.array_equal(features.index, y.index):
            raise WrongValue("x and y have different rows", received=f"{len(features)} and {len(y)}")

    def make_rows() -> Any:
        columns = {name: _column(features[name]) for name in features.columns}
        if y is None:
            return columns
        if isinstance(y, pd.DataFrame):
            return columns, {name: _column(y[name]) for name in y.columns}
        return columns, _column(y)

    rows = len(features) if queue_capacity is None else max(queue_capacity, batch_size)
    return MemoryInput(make_rows, batch_size, num_epochs, max(1, rows) if shuffle else 0)


def _as_array(column: Any) -> Array:
    """A column as an array; a value that is no array is converted as TensorFlow converts it."""
    if isinstance(column, np.ndarray):
        return column
    made: Array = tf.make_ndarray(tf.make_tensor_proto(column))
    return made


def _taken(arrays: list[Array], numbers: Any) -> list[Any]:
    """The rows of these numbers, as tensors with known shapes."""
    kinds = [tf.string if array.dtype.kind in "OSU" else tf.as_dtype(array.dtype) for array in arrays]
    taken = tf.numpy_function(lambda these: [array[these] for array in arrays], [numbers], kinds)
    for tensor, array in zip(taken, arrays, strict=True):
        tensor.set_shape((*numbers.shape, *array.shape[1:]))
    return list(taken)


def _column(series: Any) -> Array:
    """The values of a column. Text becomes Python objects, whatever type pandas has for it."""
    values = series.to_numpy()
    return np.asarray(values, dtype=object) if values.dtype.kind in "OUST" else values


def _check_shuffle(shuffle: Any) -> None:
    if not isinstance(shuffle, bool):
        raise WrongValue("shuffle must be said", received=f"shuffle={shuffle!r}", allowed="True (to train), False")


def _check_columns(columns: Any, name: str) -> Any:
    if isinstance(columns, dict):
        if not columns:
            raise WrongValue(f"{name} is empty", received=f"{name}={{}}")
        return dict(columns)
    if not isinstance(columns, np.ndarray):
        raise WrongType(f"{name} must be an array or a dict of arrays", received=type(columns).__name__)
    if name == "x" and columns.size == 0:
        raise WrongValue("x is empty", received=f"an array {columns.shape}")
    return columns


def _check_lengths(features: Any, labels: Any) -> None:
    shapes = {name: np.shape(array) for name, array in _items(features, "x") + _items(labels, "y")}
    if len({shape[:1] for shape in shapes.values()}) > 1:
        lengths = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise WrongValue("arrays of x and y differ in length", received=lengths)


def _items(columns: Any, name: str) -> list[tuple[str, Any]]:
    if columns is None:
        return []
    if not isinstance(columns, dict):
        return [(name, columns)]
    return [(f"{name}[{key!r}]", array) for key, array in columns.items()]
