"""A metric, a metric function and a model with a `test_step`, as users write them, for `--custom-objects`."""

from __future__ import annotations

from typing import Any

import keras

_ours = keras.saving.register_keras_serializable("tests")


@_ours
class Confidence(keras.metrics.Metric):  # type: ignore[misc]
    """The mean of the largest share of every row."""

    def __init__(self, name: str = "confidence", **keywords: Any) -> None:
        super().__init__(name=name, **keywords)
        self.total = self.add_weight(name="total", initializer="zeros")
        self.rows = self.add_weight(name="rows", initializer="zeros")

    def update_state(self, labels: Any, predictions: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(keras.ops.sum(keras.ops.max(predictions, axis=-1)))
        self.rows.assign_add(keras.ops.cast(keras.ops.shape(predictions)[0], "float32"))

    def result(self) -> Any:
        return self.total / self.rows


@_ours
def worst_of_batch(labels: Any, predictions: Any) -> Any:
    """One number for a whole batch: its mean depends on how large batches are."""
    return keras.ops.max(keras.ops.abs(labels - predictions))


@_ours
class OwnStep(keras.Model):  # type: ignore[misc]
    """A model that doubles its loss."""

    def __init__(self, inner: Any, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.inner = inner

    @classmethod
    def of(cls, inner: Any) -> OwnStep:
        made = cls(inner)
        made.build((None, 64))
        return made

    def call(self, x: Any) -> Any:
        return self.inner(x)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, **more: Any
    ) -> Any:
        return 2 * super().compute_loss(x, y, y_pred, sample_weight, **more)

    def get_config(self) -> dict[str, Any]:
        return {"inner": keras.saving.serialize_keras_object(self.inner)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> OwnStep:
        return cls(keras.saving.deserialize_keras_object(config["inner"]))
