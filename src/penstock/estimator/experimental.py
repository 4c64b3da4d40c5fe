"""`tf.estimator.experimental`: what of it does not need code that left TensorFlow."""

from collections.abc import Callable
from typing import Any

from penstock.estimator.calling import argument_names
from penstock.estimator.canned import EXPERIMENTAL, find
from penstock.estimator.early_stopping import (
    make_early_stopping_hook,
    make_stop_at_checkpoint_step_hook,
    read_eval_metrics,
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
)
from penstock.estimator.export import build_raw_supervised_input_receiver_fn
from penstock.estimator.refusals import WrongValue
from penstock.runtimes.frameworks import tf

__all__ = [
    "build_raw_supervised_input_receiver_fn",
    "call_logit_fn",
    "make_early_stopping_hook",
    "make_stop_at_checkpoint_step_hook",
    "read_eval_metrics",
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
]


def __getattr__(name: str) -> Any:
    return find(name, EXPERIMENTAL)


def call_logit_fn(logit_fn: Callable[..., Any], features: Any, mode: str, params: Any, config: Any) -> Any:
    """Call a `logit_fn` with those of `mode`, `params` and `config` that it takes."""
    offered = {"mode": mode, "params": params, "config": config}
    given = {name: offered[name] for name in argument_names(logit_fn) if name in offered}
    logits = logit_fn(features=features, **given)
    tensors = list(logits.values()) if isinstance(logits, dict) else [logits]
    if not all(isinstance(tensor, tf.Tensor) for tensor in tensors):
        raise WrongValue("logit_fn must return a tensor, or a dict of them", received=repr(logits))
    return logits
