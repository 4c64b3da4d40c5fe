"""Mixed precision of a model that is trained: layers compute in 16 bits, and weights stay float32.

A file keeps a policy for each layer, which the policy of the process does not change: the layers are changed after it
was loaded. A function that builds a model is called under the policy, as Keras means it.
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
    """Layers that are made meanwhile have this policy, unless they are given another one."""
    before = keras.config.dtype_policy()
    if policy is not None:
        keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def apply_policy(model: Any, policy: str, *, is_built_under: bool) -> None:
    """Let the layers of a model compute in 16 bits, but for those that give its outputs.

    Where a function built the model under the policy, layers of another policy were given that on purpose.

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
    """The layers that give the outputs of a model, with what is inside of them; of a subclass they are not known."""
    for tensor in getattr(model, "outputs", None) or ():
        layer = tensor._keras_history.operation
        if isinstance(layer, keras.Model):
            yield from _of_outputs(layer)
        elif isinstance(layer, keras.layers.Layer):
            yield from layer._flatten_layers()
