"""A model_fn whose module is given a setting at run time, as programs do: another process imports it without."""

from __future__ import annotations

from typing import Any

from penstock.estimator import EstimatorSpec

SCALE = 1.0


def model_fn(features: Any, mode: str) -> Any:
    return EstimatorSpec(mode, predictions={"number": features, "scaled": SCALE * features})
