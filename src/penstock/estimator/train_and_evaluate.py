"""`train_and_evaluate`: training and evaluation in turns, in this process; every new checkpoint is evaluated."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from penstock.estimator.estimator import Estimator
from penstock.estimator.placing import check_alone
from penstock.estimator.refusals import WrongType, WrongValue
from penstock.estimator.run_config import RunConfig
from penstock.estimator.saved_models import Exporter
from penstock.estimator.spec import check_hooks, check_listeners
from penstock.estimator.tf_config import TaskType
from penstock.runtimes.frameworks import tf


class _TrainFields(NamedTuple):
    input_fn: Callable[..., Any]
    max_steps: int | None
    hooks: tuple[Any, ...]
    saving_listeners: tuple[Any, ...]


class TrainSpec(_TrainFields):
    """What `train_and_evaluate` trains.

    Args:
        input_fn: As in `Estimator.train`.
        max_steps: The global step to stop at; None trains to the end of the input.
        hooks: Session hooks.
        saving_listeners: Called around every checkpoint.
    """

    __slots__ = ()

    def __new__(
        cls, input_fn: Callable[..., Any], max_steps: int | None = None, hooks: Any = None, saving_listeners: Any = None
    ) -> TrainSpec:
        _check_input_fn(input_fn)
        if max_steps is not None and max_steps <= 0:
            raise WrongValue("max_steps must be positive", received=f"max_steps={max_steps}")
        return super().__new__(cls, input_fn, max_steps, check_hooks(hooks), check_listeners(saving_listeners))


class _EvalFields(NamedTuple):
    input_fn: Callable[..., Any]
    steps: int | None
    name: str | None
    hooks: tuple[Any, ...]
    exporters: tuple[Exporter, ...]
    start_delay_secs: float
    throttle_secs: float


class EvalSpec(_EvalFields):
    """What `train_and_evaluate` evaluates.

    Args:
        input_fn: As in `Estimator.evaluate`.
        steps: Batches of an evaluation; None takes all.
        name: Keeps these evaluations apart from others in TensorBoard.
        hooks: Session hooks.
        exporters: Called after every evaluation.
        start_delay_secs: Accepted; there is one process.
        throttle_secs: The least number of seconds between two evaluations, except for the one at the end.
    """

    __slots__ = ()

    def __new__(
        cls,
        input_fn: Callable[..., Any],
        steps: int | None = 100,
        name: str | None = None,
        hooks: Any = None,
        exporters: Any = None,
        start_delay_secs: float = 120,
        throttle_secs: float = 600,
    ) -> EvalSpec:
        _check_input_fn(input_fn)
        if steps is not None and steps <= 0:
            raise WrongValue("steps must be positive", received=f"steps={steps}")
        if name is not None and not isinstance(name, str):
            raise WrongType("name must be text", received=f"name={name!r}")
        for label, seconds in (("start_delay_secs", start_delay_secs), ("throttle_secs", throttle_secs)):
            if seconds < 0:
                raise WrongValue(f"{label} must not be negative", received=f"{label}={seconds}")
        return super().__new__(
            cls,
            input_fn,
            steps,
            name,
            check_hooks(hooks),
            _check_exporters(exporters),
            start_delay_secs,
            throttle_secs,
        )


def train_and_evaluate(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[dict[str, Any] | None, list[Any] | None]:
    """Train, and evaluate the checkpoints that are saved during training. Returns the last metrics and exports."""
    for name, value, kind in (
        ("estimator", estimator, Estimator),
        ("train_spec", train_spec, TrainSpec),
        ("eval_spec", eval_spec, EvalSpec),
    ):
        if not isinstance(value, kind):
            raise WrongType(f"{name} must be of type {kind.__name__}", received=type(value).__name__)
    _check_evaluator(estimator.config)
    check_alone(estimator.config)
    turns = _Turns(estimator, eval_spec, train_spec.max_steps)
    estimator.train(
        train_spec.input_fn,
        max_steps=train_spec.max_steps,
        hooks=train_spec.hooks,
        saving_listeners=(*train_spec.saving_listeners, _listener(turns)),
    )
    return turns.metrics, turns.exports


class _Turns:
    """Decides which checkpoints are evaluated: not the first, none too soon after another, and always the last."""

    def __init__(self, estimator: Estimator, spec: EvalSpec, max_steps: int | None) -> None:
        self._estimator = estimator
        self._spec = spec
        self._max_steps = max_steps
        self._last_time: float | None = None
        self._last_step: int | None = None
        self._has_saved = False
        self.metrics: dict[str, Any] | None = None
        self.exports: list[Any] | None = None

    def saved(self, step: int) -> None:
        if not self._has_saved:  # this is the checkpoint at the beginning of training
            self._has_saved = True
            return
        is_due = self._last_time is None or time.monotonic() - self._last_time >= self._spec.throttle_secs
        if is_due and step != self._last_step:
            self.evaluate(step)

    def ended(self, step: int) -> None:
        if step != self._last_step:
            self.evaluate(step)

    def evaluate(self, step: int) -> None:
        self._last_time, self._last_step = time.monotonic(), step
        checkpoint = self._estimator.latest_checkpoint()
        assert checkpoint is not None, "called when a checkpoint was saved"
        spec = self._spec
        self.metrics = self._estimator.evaluate(
            spec.input_fn, steps=spec.steps, hooks=spec.hooks, checkpoint_path=checkpoint, name=spec.name
        )
        is_final = self._max_steps is not None and self.metrics["global_step"] >= self._max_steps
        self.exports = [
            exporter.export(
                estimator=self._estimator,
                export_path=os.path.join(self._estimator.model_dir, "export", exporter.name),
                checkpoint_path=checkpoint,
                eval_result=self.metrics,
                is_the_final_export=is_final,
            )
            for exporter in spec.exporters
        ]


def _listener(turns: _Turns) -> Any:
    class EvaluatesCheckpoints(tf.compat.v1.train.CheckpointSaverListener):  # type: ignore[misc]
        def after_save(self, session: Any, global_step_value: int) -> None:
            turns.saved(int(global_step_value))

        def end(self, session: Any, global_step_value: int) -> None:
            turns.ended(int(global_step_value))

    return EvaluatesCheckpoints()


def _check_evaluator(config: RunConfig) -> None:
    if config.task_type == TaskType.EVALUATOR and config.task_id != 0:
        raise WrongValue(
            "there is one evaluator in a cluster", received=f"task index {config.task_id} in TF_CONFIG", allowed="0"
        )


def _check_input_fn(input_fn: Any) -> None:
    if not callable(input_fn):
        raise WrongType("input_fn must be a function", received=repr(input_fn))


def _check_exporters(exporters: Any) -> tuple[Exporter, ...]:
    if not exporters:
        return ()
    checked = tuple(exporters) if isinstance(exporters, Iterable) else (exporters,)
    for exporter in checked:
        if not isinstance(exporter, Exporter):
            raise WrongType("exporters must be Exporter instances", received=repr(exporter))
    names = [exporter.name for exporter in checked]
    if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise WrongValue("every exporter has a name of its own", received=str(names))
    return checked
