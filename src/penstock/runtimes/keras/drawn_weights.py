"""Avoids drawing random weights for a model whose weights a file fills."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from penstock.runtimes.frameworks import keras


@contextmanager
def not_drawn() -> Iterator[None]:
    """Inside the block, Keras on JAX draws no random weights. Those that nothing has filled are drawn at its end.

    On JAX, drawing compiles programs for every shape of weights: with ResNet50 on two cores, 13 of 15 s of loading.
    """
    variable = importlib.import_module("keras.src.backend").Variable
    draw = getattr(variable, "_initialize_with_initializer", None)
    if keras.backend.backend() != "jax" or draw is None:
        yield
        return
    waiting: list[tuple[Any, Any, Any]] = []

    def wait(self: Any, initializer: Any) -> None:
        if not _draws(initializer) or keras.distribution.distribution() is not None:
            draw(self, initializer)
            return
        nothing = np.zeros(self._shape, np.dtype(self._dtype))
        self._initialize(nothing)
        waiting.append((self, initializer, nothing))

    variable._initialize_with_initializer = wait
    try:
        yield
    finally:
        variable._initialize_with_initializer = draw
    for each, initializer, nothing in waiting:
        if each._value is nothing:
            draw(each, initializer)


def _draws(initializer: Any) -> bool:
    """Whether this is one of Keras's own initializers that draw random numbers. Others might do anything else."""
    its = keras.initializers
    kinds = (its.RandomNormal, its.RandomUniform, its.TruncatedNormal, its.VarianceScaling, its.Orthogonal)
    return isinstance(initializer, kinds) and type(initializer).__module__.startswith("keras.src.")
