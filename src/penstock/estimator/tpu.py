"""`tf.estimator.tpu`: its names, so that code which mentions them can be imported."""

from typing import Any

from penstock.estimator.canned import OF_TPU, find


def __getattr__(name: str) -> Any:
    return find(name, OF_TPU)
