"""`tf.estimator.experimental`: early stopping, and all else that needs no code that was removed from TensorFlow.

Early stopping is done by session hooks of training that look at the evaluations so far.
"""

import glob
import operator
import os
from collections.abc import Callable
from typing import Any

from penstock.estimator.calling import argument_names
from penstock.estimator.canned import EXPERIMENTAL, find
from penstock.estimator.estimator import Estimator
from penstock.estimator.evaluating import metrics_of_events
from penstock.estimator.export import build_raw_supervised_input_receiver_fn
from penstock.estimator.refusals import WrongType, WrongValue
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

Rule = Callable[[list[tuple[int, float]]], bool]
"""A function that decides whether to stop, from (step, metric) of all evaluations so far."""
Better = Callable[[float, float], bool]


def __getattr__(name: str) -> Any:
    return find(name, EXPERIMENTAL)


def call_logit_fn(logit_fn: Callable[..., Any], features: Any, mode: str, params: Any, config: Any) -> Any:
    """Call a `logit_fn`. Of `mode`, `params` and `config` it gets those that it takes."""
    offered = {"mode": mode, "params": params, "config": config}
    given = {name: offered[name] for name in argument_names(logit_fn) if name in offered}
    logits = logit_fn(features=features, **given)
    tensors = list(logits.values()) if isinstance(logits, dict) else [logits]
    if not all(isinstance(tensor, tf.Tensor) for tensor in tensors):
        raise WrongValue("logit_fn must return a tensor, or a dict of them", received=repr(logits))
    return logits


def make_early_stopping_hook(
    estimator: Estimator,
    should_stop_fn: Callable[[], bool],
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> Any:
    """A hook that stops training when `should_stop_fn` returns True."""
    if not isinstance(estimator, Estimator):
        raise WrongType("estimator must be an Estimator", received=type(estimator).__name__)
    if run_every_secs is not None and run_every_steps is not None:
        raise WrongValue("run_every_secs or run_every_steps", received=f"{run_every_secs} and {run_every_steps}")
    if not callable(should_stop_fn):
        raise WrongType("should_stop_fn must be a function", received=repr(should_stop_fn))
    train = tf.compat.v1.train

    class StopsEarly(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
        def begin(self) -> None:
            self._timer = train.SecondOrStepTimer(every_secs=run_every_secs, every_steps=run_every_steps)
            self._step = train.get_global_step()

        def before_run(self, run_context: Any) -> Any:
            return train.SessionRunArgs(self._step)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            step = run_values.results
            if self._timer.should_trigger_for_step(step):
                self._timer.update_last_triggered_step(step)
                if should_stop_fn():
                    run_context.request_stop()

    return StopsEarly()


def make_stop_at_checkpoint_step_hook(
    estimator: Estimator, last_step: int, wait_after_file_check_secs: int = 30
) -> Any:
    """A hook that stops at a step, counted with the steps of earlier runs."""
    return tf.compat.v1.train.StopAtStepHook(last_step=last_step)


def read_eval_metrics(eval_dir: str) -> dict[int, dict[str, float]]:
    """The metrics of every evaluation, by its step, in the order of steps."""
    by_step: dict[int, dict[str, float]] = {}
    for path in sorted(glob.glob(os.path.join(glob.escape(eval_dir), "events.out.tfevents.*"))):
        for step, metrics in metrics_of_events(path):
            by_step.setdefault(step, {}).update(metrics)
    return dict(sorted(by_step.items()))


def stop_if_higher_hook(
    estimator: Estimator,
    metric_name: str,
    threshold: float,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> Any:
    """Stop when a metric is above `threshold`."""
    rule = _crosses(operator.gt, threshold)
    return _stops_by(rule, estimator, metric_name, eval_dir, min_steps, run_every_secs, run_every_steps)


def stop_if_lower_hook(
    estimator: Estimator,
    metric_name: str,
    threshold: float,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> Any:
    """Stop when a metric is below `threshold`."""
    rule = _crosses(operator.lt, threshold)
    return _stops_by(rule, estimator, metric_name, eval_dir, min_steps, run_every_secs, run_every_steps)


def stop_if_no_increase_hook(
    estimator: Estimator,
    metric_name: str,
    max_steps_without_increase: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> Any:
    """Stop when a metric has not grown for so many steps."""
    rule = _is_stuck(operator.gt, max_steps_without_increase)
    return _stops_by(rule, estimator, metric_name, eval_dir, min_steps, run_every_secs, run_every_steps)


def stop_if_no_decrease_hook(
    estimator: Estimator,
    metric_name: str,
    max_steps_without_decrease: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> Any:
    """Stop when a metric has not shrunk for so many steps."""
    rule = _is_stuck(operator.lt, max_steps_without_decrease)
    return _stops_by(rule, estimator, metric_name, eval_dir, min_steps, run_every_secs, run_every_steps)


def _stops_by(
    rule: Rule,
    estimator: Estimator,
    metric: str,
    eval_dir: str | None,
    min_steps: int,
    run_every_secs: float | None,
    run_every_steps: int | None,
) -> Any:
    folder = eval_dir or estimator.eval_dir()

    def should_stop() -> bool:
        return rule(
            [(step, metrics[metric]) for step, metrics in read_eval_metrics(folder).items() if step >= min_steps]
        )

    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


def _crosses(is_beyond: Better, threshold: float) -> Rule:
    return lambda values: any(is_beyond(value, threshold) for _, value in values)


def _is_stuck(is_better: Better, most_steps: int) -> Rule:
    def rule(values: list[tuple[int, float]]) -> bool:
        best: tuple[int, float] | None = None
        for step, value in values:
            if best is None or is_better(value, best[1]):
                best = (step, value)
            if step - best[0] >= most_steps:
                return True
        return False

    return rule
