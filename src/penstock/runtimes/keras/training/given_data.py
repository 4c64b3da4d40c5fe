"""Data as `model.fit` takes it: arrays, structures of arrays, `tf.data`, generators, `PyDataset`, torch loaders.

Keras's own adapters read them, so types, weights of classes, shuffling and errors are those of `model.fit`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.core.records import RowFailure
from penstock.core.training import TrainBatch
from penstock.runtimes.frameworks import keras

_NUMBERS = "penstock_row_numbers"


@dataclass
class GivenBatch(TrainBatch):
    """A batch in the structure in which the caller gave the data."""

    given: Any = None


def pack_given(batch: TrainBatch) -> Any:
    """The data for `train_step`, from a batch of `GivenData`."""
    assert isinstance(batch, GivenBatch)
    return batch.given


@dataclass(frozen=True)
class DataArguments:
    """Arguments of `model.fit` that say what the data is."""

    x: Any = None
    y: Any = None
    sample_weight: Any = None
    batch_size: int | str | None = None
    steps: int | None = None
    shuffle: bool | str = False
    class_weight: Any = None


def split_off(given: DataArguments, share: float, validation_data: Any) -> tuple[DataArguments, DataArguments | None]:
    """The data for training and for validation. The latter is given, or the last rows of the arrays (as in Keras)."""
    from keras.src.trainers.data_adapters import array_slicing, data_adapter_utils

    if share and validation_data is None:
        arrays = (given.x, given.y, given.sample_weight)
        (x, y, weights), validation_data = array_slicing.train_validation_split(arrays, validation_split=share)
        given = replace(given, x=x, y=y, sample_weight=weights)
    if validation_data is None:
        return given, None
    return given, DataArguments(*data_adapter_utils.unpack_x_y_sample_weight(validation_data))


class GivenData:
    """Batches of data that the caller has, as `TrainingData`."""

    def __init__(self, given: DataArguments, *, is_begun_anew: bool = False) -> None:
        from keras.src.trainers.data_adapters import array_data_adapter

        arrays = (given.x, given.y, given.sample_weight)
        self._has_numbers = given.x is not None and array_data_adapter.can_convert_arrays(arrays)
        self._epochs = _epoch_iterator(given, self._with_numbers(given.x))
        self.array_rows = _num_rows(given.x) if self._has_numbers else None
        """How many rows the arrays have; None of data that comes in batches."""
        self._arrays = arrays
        self._count = 0
        self._is_begun_anew = is_begun_anew  # data for validation; training goes on where the last epoch ended

    def _with_numbers(self, x: Any) -> Any:
        """`x` with the numbers of its rows, so that rows can still be named after shuffling."""
        first = next((leaf for leaf in keras.tree.flatten(x) if leaf is not None), None) if self._has_numbers else None
        if first is None or not hasattr(first, "shape"):
            self._has_numbers = False
            return x
        return {"x": x, _NUMBERS: np.arange(first.shape[0])}

    @property
    def rows(self) -> int | None:
        return None

    @property
    def steps(self) -> int | None:
        """How many batches an epoch has, as far as that is known."""
        steps = self._epochs.num_batches
        return None if steps is None else int(steps)

    @property
    def failures(self) -> Mapping[int, RowFailure]:
        return {}

    def first(self) -> Any:
        """The first batch, as `train_step` takes it. The first epoch begins with it again."""
        for _, _, (data, *_) in self._epochs:
            self._epochs.reset()
            return self._unpacked(data)[0]
        return None

    def batches(self, epoch: int, skip_rows: int = 0) -> Iterator[TrainBatch]:
        """The batches of an epoch, in the order of Keras's adapter."""
        if self._is_begun_anew:
            self._epochs.reset()
        self._count = 0
        with self._epochs.catch_stop_iteration():
            for _, _, (data, *_) in self._epochs:
                given, numbers, rows = self._unpacked(data)
                self._count += rows
                yield GivenBatch(rows, {}, {}, {}, numbers, given=given)

    def read(self, numbers: Any) -> TrainBatch:
        """The given rows of the arrays, for a check of their values: columns of floats only, without their names."""
        numbers = np.asarray(numbers)
        leaves = [leaf for leaf in keras.tree.flatten(self._arrays) if hasattr(leaf, "__array__")]
        arrays = [np.asarray(leaf.detach().cpu() if hasattr(leaf, "detach") else leaf) for leaf in leaves]
        columns = {str(place): array[numbers] for place, array in enumerate(arrays) if array.dtype.kind == "f"}
        return TrainBatch(len(numbers), columns, {}, {}, numbers)

    def _unpacked(self, data: Any) -> tuple[Any, Any, int]:
        from keras.src.trainers.data_adapters.data_adapter_utils import unpack_x_y_sample_weight

        x, y, weights = unpack_x_y_sample_weight(data)
        if self._has_numbers:
            numbers, x = x[_NUMBERS], x["x"]
            # Packed as Keras packs it: a `train_step` may do `x, y = data` where there are no weights.
            return keras.utils.pack_x_y_sample_weight(x, y, weights), numbers, len(numbers)
        rows = _num_rows(x)
        return data, np.arange(self._count, self._count + rows), rows

    def remarks(self) -> list[str]:
        return []

    def close(self) -> None:
        """Nothing is held."""


def _num_rows(x: Any) -> int:
    first = next(leaf for leaf in keras.tree.flatten(x) if leaf is not None)
    rows = first.shape[0]
    return int(rows)


def _epoch_iterator(given: DataArguments, x: Any) -> Any:
    from keras.src.trainers.epoch_iterator import EpochIterator

    backend = keras.backend.backend()

    class Epochs(EpochIterator):  # type: ignore[misc]
        def _get_iterator(self) -> Any:
            adapter = self.data_adapter
            if backend == "jax":
                return adapter.get_jax_iterator()
            if backend == "torch":
                return adapter.get_torch_dataloader()
            if type(adapter).__name__ == "TFDatasetAdapter":
                return adapter.get_tf_dataset()
            return adapter.get_numpy_iterator()

    return Epochs(
        x=x,
        y=given.y,
        sample_weight=given.sample_weight,
        batch_size=given.batch_size,
        steps_per_epoch=given.steps,
        shuffle=given.shuffle,
        class_weight=given.class_weight,
    )
