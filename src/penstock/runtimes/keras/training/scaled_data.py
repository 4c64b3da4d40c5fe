"""Inputs that are scaled on the device: `--preset`, `--scale` and `--offset` as a part of the step that trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock.core.records import Scaling, Signature, TensorSpec
from penstock.core.scaling import scaled_inputs
from penstock.runtimes.frameworks import keras
from penstock.runtimes.keras.call import KerasCall

_STEPS = ("train_step", "test_step")


@dataclass(frozen=True)
class ScaledData:
    """A function that scales the inputs of a batch. It runs while a step is traced, so pixels are copied as bytes.

    Args:
        scaling: The scaling, the same as in `predict`.
        chosen: For each input, in the order in which a batch is flattened, whether it is scaled.
    """

    scaling: Scaling
    chosen: tuple[bool, ...]

    @classmethod
    def of(cls, scaling: Scaling, call: KerasCall, first: Any) -> ScaledData:
        """The function for a model; `first` is a batch, which shows the inputs if the model declares none.

        Raises:
            UsageError: It is not clear which inputs to scale, or one has another number of channels.
        """
        signature = call.signature
        names = [spec.name for spec in call.own_inputs]
        if not names:
            x, _, _ = keras.utils.unpack_x_y_sample_weight(first)
            columns = x if isinstance(x, dict) else {"": x}
            # All inputs count as floats here: whole numbers are scaled, too.
            specs = [TensorSpec(name, "float32", array.shape[1:]) for name, array in columns.items()]
            signature, names = Signature(tuple(specs), ()), keras.tree.flatten({name: name for name in columns})
        chosen = scaled_inputs(scaling, signature)
        return cls(scaling, tuple(name in chosen for name in names))

    def __call__(self, data: Any) -> Any:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        pairs = zip(keras.tree.flatten(x), self.chosen, strict=True)
        leaves = [self.scaling.apply(keras.ops.cast(leaf, "float32")) if chosen else leaf for leaf, chosen in pairs]
        return keras.utils.pack_x_y_sample_weight(keras.tree.pack_sequence_as(x, leaves), y, sample_weight)


def scale_before(model: Any, scaled: ScaledData) -> None:
    """Let the steps of a model work on scaled inputs, until `scale_no_more`."""
    for name in _STEPS:
        object.__setattr__(model, name, partial(_on_scaled, getattr(model, name), scaled))


def scale_no_more(model: Any) -> None:
    """Let the model's steps take inputs as they are again."""
    for name in _STEPS:
        vars(model).pop(name, None)


def _on_scaled(step: Callable[..., Any], scaled: ScaledData, *given: Any) -> Any:
    *state, data = given  # on JAX, the values of variables come before the data
    return step(*state, scaled(data))
