"""`add_metrics`: an Estimator with more metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.estimator.calling import argument_names
from penstock.estimator.estimator import Estimator
from penstock.estimator.refusals import WrongValue
from penstock.estimator.run_config import RunConfig
from penstock.estimator.spec import EstimatorSpec, ModeKeys

_METRIC_FN_TAKES = ("features", "labels", "predictions", "config")


def add_metrics(estimator: Estimator, metric_fn: Callable[..., dict[str, Any]]) -> Estimator:
    """The same Estimator, whose evaluations also compute what `metric_fn` returns.

    Args:
        estimator: The one to extend.
        metric_fn: Takes any of `features`, `labels`, `predictions` and `config`; returns what `eval_metric_ops` takes.
    """
    names = argument_names(metric_fn)
    others = [name for name in names if name not in (*_METRIC_FN_TAKES, "self")]
    if others:
        raise WrongValue(
            "metric_fn takes what no one gives it", received=", ".join(others), allowed=", ".join(_METRIC_FN_TAKES)
        )
    model_fn = estimator.model_fn

    def extended(features: Any, labels: Any, mode: str, config: RunConfig) -> EstimatorSpec:
        spec = model_fn(features, labels, mode, config)
        if mode != ModeKeys.EVAL:
            return spec
        offered = {"features": features, "labels": labels, "predictions": spec.predictions, "config": config}
        added = metric_fn(**{name: offered[name] for name in names if name in offered}) or {}
        return spec._replace(eval_metric_ops={**spec.eval_metric_ops, **added})

    return Estimator(extended, estimator.model_dir, estimator.config, warm_start_from=estimator._warm_start)
