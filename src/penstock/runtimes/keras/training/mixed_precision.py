"""Mixed precision of a model that is trained: layers compute in 16 bits, and weights stay float32.

A file has a policy for each layer, and the process's own policy does not change it: so the layers are changed after the
file was loaded. A function that builds a model is called while the policy is set, as Keras intends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.errors import ModelError, UsageError
from penstock.runtimes.frameworks import keras
from penstock.runtimes.keras.training.own_step import has_own

FLOAT16 = "mixed_float16"
_FULL = "float32"
_MIXED = (FLOAT16, "mixed_bfloat16")


@contextmanager
def built_under(policy: str | None) -> Iterator[None]:
    """Layers that are made inside the context have this policy, unless they are given another one."""
    before = keras.config.dtype_policy()
    if policy is not None:
        keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def apply_policy(model: Any, policy: str, *, is_built_under: bool) -> None:
    """Let all layers of a model compute in 16 bits, except those that give its outputs.

    If a function built the model under the policy, layers with another policy have it on purpose, and keep it.

    Raises:
        ModelError: No layer computes in float32.
        UsageError: A loss scale is needed, and the model's own step may not use it.
    """
    layers = list(model._flatten_layers())
    if not (is_built_under and any(_name(layer) == policy for layer in layers)):
        changed = [layer for layer in layers if _name(layer) in (_FULL, *_MIXED)]
        if not changed:
            found = ", ".join(sorted({_name(layer) for layer in layers}))
            raise ModelError(
                "no layer of the model computes in float32", received=found, hint="leave --mixed-precision out"
            )
        for layer in changed:
            layer.dtype_policy = policy
    for layer in _of_outputs(model):
        if _name(layer) == policy:
            layer.dtype_policy = _FULL
    is_scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    if policy == FLOAT16 and not is_scaled and has_own(model, "train_step"):
        raise UsageError(
            "float16 needs a loss scale, and the model has a train_step of its own",
            received=f"--mixed-precision {FLOAT16}, {type(model).__name__}",
            hint="--mixed-precision mixed_bfloat16 needs none; or compile the model with "
            "keras.optimizers.LossScaleOptimizer, and let train_step call self.optimizer.scale_loss",
        )


def _name(layer: Any) -> str:
    return str(layer.dtype_policy.name)


def _of_outputs(model: Any) -> Iterator[Any]:
    """The layers that give the outputs of a model, and the layers inside them. For a subclass they are not known."""
    for tensor in getattr(model, "outputs", None) or ():
        layer = tensor._keras_history.operation
        if isinstance(layer, keras.Model):
            yield from _of_outputs(layer)
        elif isinstance(layer, keras.layers.Layer):
            yield from layer._flatten_layers()
