"""`tf.estimator.tpu`: its names, so that code which mentions them can be imported."""

from __future__ import annotations

from typing import Any

from penstock.estimator import canned


def __getattr__(name: str) -> Any:
    return canned.find(name, canned.OF_TPU)
