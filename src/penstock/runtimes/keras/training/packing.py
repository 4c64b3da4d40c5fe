"""Makes the data for a Keras model's `train_step` from columns by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.core.training import TrainBatch
from penstock.runtimes.frameworks import keras
from penstock.runtimes.keras.call import KerasCall
from penstock.runtimes.keras.training.keras_trainer import Pack


def pack_by_name(model: Any) -> Pack:
    """A function from batches with columns by name to (x, y) or (x, y, sample_weight) in the model's structures."""
    call = KerasCall(model)

    def pack(batch: TrainBatch) -> Any:
        return keras.utils.pack_x_y_sample_weight(
            call.pack(batch.inputs), _by_output(batch.targets), _by_output(batch.weights)
        )

    return pack


def _by_output(columns: Mapping[str, Any]) -> Any:
    """The only column as it is, or several by the names of outputs: Keras brings these into the order of the model."""
    if not columns:
        return None
    return next(iter(columns.values())) if len(columns) == 1 else dict(columns)
