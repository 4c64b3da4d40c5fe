"""Code written for TensorFlow 1 and 2 finds the Keras of its time: `tf_keras`, wherever TensorFlow names Keras."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.estimator.shared_change import SharedChange

SWITCH = "TF_USE_LEGACY_KERAS"
"""The variable of the environment by which TensorFlow decides."""
_LEGACY = "__internal__.legacy."


@contextmanager
def _swapped() -> Iterator[None]:
    before = os.environ.get(SWITCH)
    if before in ("1", "true", "True") and not any(map(_is_keras_3, (vars(at)[name] for at, name, _ in _places()))):
        yield  # as in processes of our own: decided from the start
        return
    os.environ[SWITCH] = "1"
    replaced = [(module, name, vars(module)[name]) for module, name, _ in _places()]
    for module, name, loader in _places():
        setattr(module, name, loader)
    try:
        yield
    finally:
        for module, name, was in replaced:
            setattr(module, name, was)
        if before is None:
            del os.environ[SWITCH]
        else:
            os.environ[SWITCH] = before


keras_of_its_time = SharedChange(_swapped)
"""While this is open, `tf.keras`, `tf.compat.v1.keras`, `tf.compat.v1.layers` and `tf.compat.v1.nn.rnn_cell` are those
of tf_keras. Afterwards they are what they were.

TensorFlow decides at the first use of each name which Keras stands behind it, by a variable of the environment. In a
process of the user's it may have decided for Keras 3 already, which has no `tf.compat.v1.layers` and does not build
graphs of TensorFlow 1. So each name gets a new, undecided loader for the time being: nothing is imported unless it is
used.
"""


def _is_keras_3(place: Any) -> bool:
    known = vars(place)  # asking the loader itself would make it decide
    return known.get("_tfll_keras_version") == "keras_3" or str(known.get("__name__", "")).startswith("keras.")


def _places() -> list[tuple[Any, str, Any]]:
    """Every module and name behind which Keras stands, with a loader that has not decided."""
    import tensorflow as tf
    from tensorflow.python.util.lazy_loader import KerasLazyLoader

    v1, v2 = tf.compat.v1, tf.compat.v2
    return [
        (tf, "keras", KerasLazyLoader({})),
        (v2, "keras", KerasLazyLoader({}, mode="v2")),
        (v1, "keras", KerasLazyLoader({}, mode="v1")),
        (v1, "layers", KerasLazyLoader({}, mode="v1", submodule=_LEGACY + "layers", name="layers")),
        (v1.nn, "rnn_cell", KerasLazyLoader({}, mode="v1", submodule=_LEGACY + "rnn_cell", name="rnn_cell")),
    ]
