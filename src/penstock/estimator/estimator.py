"""`Estimator`, a `model_fn` with a folder of checkpoints, and `add_metrics`, which adds metrics to one."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from penstock.estimator.calling import LOG, Called, argument_names, call_model_fn, check_model_fn
from penstock.estimator.checkpoints import check_path, global_step_of, settings_of
from penstock.estimator.evaluating import Evaluation, evaluate
from penstock.estimator.model_function import ModelFunction
from penstock.estimator.placing import check_alone
from penstock.estimator.predicting import predict
from penstock.estimator.refusals import WrongValue
from penstock.estimator.run_config import RunConfig, path_to_str
from penstock.estimator.saved_models import Export, export
from penstock.estimator.spec import EstimatorSpec, ModeKeys, check_hooks, check_listeners
from penstock.estimator.training import Training, train
from penstock.runtimes.frameworks import tf
from penstock.runtimes.tensorflow.restoring import find_checkpoint, newest_checkpoint, no_such_variable

InputFn = Callable[..., Any]

_METRIC_FN_TAKES = ("features", "labels", "predictions", "config")
_MAY_BE_OVERRIDDEN = {"model_fn", "latest_checkpoint", "_export_all"}


class Estimator:
    """A model that a function describes, trained, evaluated, exported, and run on every device.

    Args:
        model_fn: Takes `features`, and any of `labels`, `mode`, `params` and `config`; returns an `EstimatorSpec`.
        model_dir: The folder of its checkpoints. None takes the one of `config`, or a new temporary folder.
        config: How it runs.
        params: What `model_fn` and `input_fn` get as `params`.
        warm_start_from: A checkpoint, a folder of them, a SavedModel, or `WarmStartSettings` to begin training with.

    It makes its own `tf.compat.v1` graphs: the user's eager code is not affected.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: Any = None,
        config: RunConfig | None = None,
        params: Any = None,
        warm_start_from: Any = None,
    ) -> None:
        _refuse_overrides(self)
        if config is not None and not isinstance(config, RunConfig):
            raise WrongValue("config must be a RunConfig", received=repr(config))
        check_model_fn(model_fn, params)
        self._config = _with_model_dir(config, path_to_str(model_dir))
        self._model_fn = model_fn
        self._params = copy.deepcopy(params or {})
        self._warm_start = settings_of(warm_start_from)

    @property
    def model_dir(self) -> str:
        return str(self._config.model_dir)

    @property
    def config(self) -> RunConfig:
        return copy.deepcopy(self._config)

    @property
    def params(self) -> Any:
        return copy.deepcopy(self._params)

    @property
    def model_fn(self) -> Callable[..., EstimatorSpec]:
        """The `model_fn` with the parameters of this Estimator."""

        def bound(features: Any, labels: Any, mode: str, config: RunConfig) -> EstimatorSpec:
            return call_model_fn(Called(self._model_fn, self.params, config), features, labels, mode)

        return bound

    def latest_checkpoint(self) -> str | None:
        """The newest checkpoint of `model_dir`, or None."""
        return newest_checkpoint(self.model_dir)

    def get_variable_names(self) -> list[str]:
        """The names of all variables in the newest checkpoint."""
        return [name for name, _ in tf.train.list_variables(find_checkpoint(self.model_dir))]

    def get_variable_value(self, name: str) -> Any:
        """The value of one variable in the newest checkpoint."""
        checkpoint = find_checkpoint(self.model_dir)
        reader = tf.train.load_checkpoint(checkpoint)
        if not reader.has_tensor(name):
            raise no_such_variable(checkpoint, name)
        return reader.get_tensor(name)

    def eval_dir(self, name: str | None = None) -> str:
        """The folder into which the events of evaluations are written."""
        return os.path.join(self.model_dir, f"eval_{name}" if name else "eval")

    def train(
        self,
        input_fn: InputFn,
        hooks: Any = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Any = None,
    ) -> Estimator:
        """Train on the devices of `config`, from the newest checkpoint on.

        Args:
            input_fn: Returns a dataset of (features, labels), or tensors. Several devices share the batches of it.
            hooks: Session hooks.
            steps: How many steps to train from here; None trains to the end of the input.
            max_steps: The global step to stop at. If it is reached already, nothing is done.
            saving_listeners: Called around every checkpoint.
        """
        check_alone(self._config)
        if steps is not None and max_steps is not None:
            raise WrongValue("steps or max_steps, not both", received=f"steps={steps}, max_steps={max_steps}")
        _check_steps("steps", steps)
        _check_steps("max_steps", max_steps)
        if max_steps is not None and global_step_of(self.model_dir) >= max_steps:
            LOG.info("no training: max_steps is reached")
            return self
        loss = train(
            Training(
                self._called(),
                input_fn,
                [*check_hooks(hooks), *_stop_hooks(steps, max_steps)],
                list(check_listeners(saving_listeners)),
                self._warm_start,
            )
        )
        LOG.info("loss of the last step: %s", loss)
        return self

    def evaluate(
        self,
        input_fn: InputFn,
        steps: int | None = None,
        hooks: Any = None,
        checkpoint_path: Any = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """The metrics of a checkpoint over the input, with `loss` and `global_step`.

        Args:
            input_fn: Returns a dataset of (features, labels), or tensors.
            steps: How many batches to evaluate; None takes all.
            hooks: Session hooks.
            checkpoint_path: Another checkpoint than the newest.
            name: Keeps these evaluations apart from others in TensorBoard.

        Raises:
            NoCheckpoint: There is none, and variables would be random numbers.
        """
        _check_steps("steps", steps)
        checkpoint = check_path(checkpoint_path) or self.latest_checkpoint()
        return evaluate(
            Evaluation(
                self._called(),
                input_fn,
                steps,
                list(check_hooks(hooks)),
                checkpoint,
                self._warm_start,
                self.eval_dir(name),
            )
        )

    def predict(
        self,
        input_fn: InputFn,
        predict_keys: Any = None,
        hooks: Any = None,
        checkpoint_path: Any = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Predictions, lazily and in the order of the input, on every device.

        Args:
            input_fn: Returns a dataset of features, or tensors; labels are left out.
            predict_keys: The predictions to compute; None takes all.
            hooks: Session hooks.
            checkpoint_path: Another checkpoint than the newest.
            yield_single_examples: Yield rows; else whole batches.
        """
        return predict(
            self._as_model_function(),
            input_fn,
            predict_keys=predict_keys,
            hooks=list(check_hooks(hooks)),
            checkpoint_path=check_path(checkpoint_path),
            yield_single_examples=yield_single_examples,
        )

    def export_saved_model(
        self,
        export_dir_base: Any,
        serving_input_receiver_fn: Callable[[], Any] | None,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: Any = None,
        experimental_mode: str = ModeKeys.PREDICT,
    ) -> bytes:
        """Write `export_dir_base/TIMESTAMP/`, a SavedModel with the signatures of `export_outputs`; returns its path.

        Args:
            export_dir_base: The folder of exports.
            serving_input_receiver_fn: Says what is fed; see `penstock.estimator.export`.
            assets_extra: Path below `assets.extra` to a file that is copied there.
            as_text: Write `saved_model.pbtxt`.
            checkpoint_path: Another checkpoint than the newest.
            experimental_mode: Export the graph of another mode.
        """
        if serving_input_receiver_fn is None:
            raise _no_receiver()
        receivers = {experimental_mode: serving_input_receiver_fn}
        return self._export_all(export_dir_base, receivers, assets_extra, as_text, checkpoint_path)

    def experimental_export_all_saved_models(
        self,
        export_dir_base: Any,
        input_receiver_fn_map: Mapping[str, Callable[[], Any]],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: Any = None,
    ) -> bytes:
        """Write one SavedModel with the graphs of several modes."""
        return self._export_all(export_dir_base, input_receiver_fn_map, assets_extra, as_text, checkpoint_path)

    def export_savedmodel(
        self,
        export_dir_base: Any,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: Any = None,
        strip_default_attrs: bool = False,
    ) -> bytes:
        """The older name of `export_saved_model`. By default it keeps attributes that have default values."""
        if serving_input_receiver_fn is None:
            raise _no_receiver()
        receivers = {ModeKeys.PREDICT: serving_input_receiver_fn}
        return self._export_all(
            export_dir_base, receivers, assets_extra, as_text, checkpoint_path, strip_default_attrs=strip_default_attrs
        )

    def _export_all(
        self,
        base: Any,
        receivers: Mapping[str, Callable[[], Any]],
        assets_extra: Mapping[str, str] | None,
        as_text: bool,
        checkpoint_path: Any,
        *,
        strip_default_attrs: bool = True,
    ) -> bytes:
        checkpoint = check_path(checkpoint_path) or self.latest_checkpoint()
        if checkpoint is None and self._warm_start is not None:
            checkpoint = check_path(self._warm_start.ckpt_to_initialize_from)
        checkpoint = checkpoint or find_checkpoint(self.model_dir)
        job = Export(self._called(), receivers, checkpoint, as_text, assets_extra, strip_default_attrs)
        # The path is bytes, as in the original: old scripts call `.decode()` on it.
        return os.fsencode(export(job, os.fsdecode(base)))

    def _called(self) -> Called:
        return Called(self._model_fn, self.params, self.config)

    def _as_model_function(self) -> ModelFunction:
        called = self._called()
        name = getattr(called.model_fn, "__qualname__", type(called.model_fn).__name__)
        return ModelFunction(
            name, called.model_fn, called.params, called.config, self.model_dir, warm_start=self._warm_start
        )


def add_metrics(estimator: Estimator, metric_fn: Callable[..., dict[str, Any]]) -> Estimator:
    """An Estimator like the given one, whose evaluations also compute the metrics of `metric_fn`.

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


def _no_receiver() -> WrongValue:
    return WrongValue("serving_input_receiver_fn is missing", hint="penstock.estimator.export builds some")


def _with_model_dir(config: RunConfig | None, model_dir: str | None) -> RunConfig:
    config = RunConfig() if config is None else config
    if model_dir and config.model_dir and config.model_dir != model_dir:
        raise WrongValue(
            "model_dir differs between the Estimator and its config",
            received=f"{model_dir!r} and {config.model_dir!r}",
        )
    if model_dir or config.model_dir:
        return config.replace(model_dir=model_dir or config.model_dir)
    temporary = tempfile.mkdtemp(prefix="penstock-estimator-")
    LOG.warning("no model_dir: checkpoints go to %s", temporary)
    return config.replace(model_dir=temporary)


def _refuse_overrides(estimator: Estimator) -> None:
    own = {name for name in vars(Estimator) if not name.startswith("__")} - _MAY_BE_OVERRIDDEN
    overridden = sorted(own & set(vars(type(estimator)))) if type(estimator) is not Estimator else []
    if overridden:
        raise WrongValue(
            "a subclass of Estimator must not override its members",
            received=f"{type(estimator).__name__}: {', '.join(overridden)}",
            hint="what differs belongs into model_fn",
        )


def _check_steps(name: str, steps: int | None) -> None:
    if steps is not None and steps <= 0:
        raise WrongValue(f"{name} must be positive", received=f"{name}={steps}", allowed="1, 2, 3, …")


def _stop_hooks(steps: int | None, max_steps: int | None) -> list[Any]:
    if steps is None and max_steps is None:
        return []
    return [tf.compat.v1.train.StopAtStepHook(steps, max_steps)]
