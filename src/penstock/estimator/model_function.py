"""A `model_fn` with all it needs to be built in any process."""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from penstock.errors import DeviceError, ModelError, PenstockError, one_line
from penstock.estimator.calling import Called, argument_names, begin_graph, call_model_fn, user_code
from penstock.estimator.checkpoints import check_initial_values
from penstock.estimator.installing import install
from penstock.estimator.legacy_keras import quiet
from penstock.estimator.refusals import WrongValue, also_model_error
from penstock.estimator.run_config import RunConfig
from penstock.estimator.spec import EstimatorSpec, ModeKeys
from penstock.runtimes.frameworks import tf
from penstock.runtimes.tensorflow.restoring import NoCheckpoint, find_checkpoint, initial_values, newest_checkpoint

OUTPUT = "output"
"""The name of a prediction that is a single tensor, if a name is needed."""
_NOT_THE_USERS = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")) + (
    os.path.dirname(os.path.dirname(__file__)),
)


@dataclass(frozen=True)
class ModelFunction:
    """A `model_fn`, and the arguments of its calls.

    Args:
        name: The name that is shown; `module:function` if the function is to be imported by this name.
        model_fn: The function itself, which is pickled by value; None where only the name is known.
        params: What the `model_fn` gets as `params`.
        config: What it gets as `config`; None gives a plain one.
        model_dir: The folder whose latest checkpoint is restored.
        checkpoint: A checkpoint, or a folder, that is restored instead.
        warm_start: The arguments of `tf.compat.v1.train.warm_start`, where there is no checkpoint.
        predict_keys: The keys of a dict of predictions that are kept; empty for all.
    """

    name: str
    model_fn: Callable[..., Any] | None = None
    params: Any = None
    config: RunConfig | None = None
    model_dir: str | None = None
    checkpoint: str | None = None
    warm_start: Any = None
    predict_keys: tuple[str, ...] = ()

    @property
    def called(self) -> Called:
        """The function and its arguments. The params are a copy, since a `model_fn` may change them."""
        assert self.model_fn is not None
        return Called(self.model_fn, copy.deepcopy(self.params), self.config or RunConfig())

    def resolved(self) -> ModelFunction:
        """A copy with the function itself, which is imported if only its name is known.

        Only replicas call this, because it replaces `tf.estimator` by this package for the rest of the process.

        Raises:
            ModelError: The module does not import, has no such function, or it is neither a `model_fn` nor returns an
                Estimator.
        """
        install()
        if self.model_fn is not None:
            return self
        function = self._imported()
        if "features" in argument_names(function):
            return replace(self, model_fn=function, config=self.config or RunConfig(model_dir=self.model_dir))
        required = [p.name for p in inspect.signature(function).parameters.values() if _is_required(p)]
        if required:
            raise self._neither(f"a function of {', '.join(required)}")
        with self.explained("the function failed"), user_code():
            made = function()
        if not isinstance(made, HasModelFunction):
            raise self._neither(f"a function that returns {type(made).__name__}")
        return self._completed(made._as_model_function())

    def find_checkpoint(self) -> str | None:
        """The checkpoint to restore; None where there is none. Later, `build` raises an error if the model needs one.

        Raises:
            NoCheckpoint: There is no such checkpoint as the user named.
        """
        if self.checkpoint is not None:
            return find_checkpoint(self.checkpoint)
        return None if self.model_dir is None else newest_checkpoint(self.model_dir)

    def begin(self) -> None:
        """Seed the default graph, and give it its global step. Call this before `input_fn`."""
        begin_graph(self.called.config)

    def start_warm(self) -> None:
        """Initialise the variables of the default graph with the values of another model."""
        if self.warm_start is not None:
            with quiet():
                tf.compat.v1.train.warm_start(*self.warm_start)

    def build(self, features: Any) -> EstimatorSpec:
        """Call the `model_fn` for predictions in the default graph.

        Raises:
            ModelError: The function raised an error, or its result has no predictions.
            NoCheckpoint: The model needs a checkpoint, and there is none.
        """
        with self.explained("the model_fn failed"), user_code():
            spec = call_model_fn(self.called, features, None, ModeKeys.PREDICT)
        if spec.mode != ModeKeys.PREDICT or spec.predictions is None:
            raise ModelError(
                "the model_fn has no predictions",
                received=f"{self.name} returned an EstimatorSpec for mode={spec.mode!r}",
                allowed="EstimatorSpec(mode, predictions=…) when it is called with mode=ModeKeys.PREDICT",
            )
        if self.warm_start is None and self.find_checkpoint() is None:
            self._check_untrained(spec.scaffold)
        return spec

    def choose(self, predictions: Any) -> Any:
        """The predictions that `predict_keys` names.

        Raises:
            WrongValue: None of them is there, or there is only a single tensor, which has no name.
        """
        if not self.predict_keys:
            return predictions
        if not isinstance(predictions, Mapping):
            raise WrongValue(
                "predict_keys name predictions of a dict, and the model_fn predicts a single tensor",
                received=f"predict_keys={list(self.predict_keys)}",
            )
        chosen = {key: value for key, value in predictions.items() if key in self.predict_keys}
        if not chosen:
            raise WrongValue(
                "there is none of these predictions",
                received=f"predict_keys={list(self.predict_keys)}",
                allowed=", ".join(map(str, predictions)),
            )
        return chosen

    def named(self, predictions: Any) -> dict[str, Any]:
        """The wanted predictions by name, also where there is a single one."""
        chosen = self.choose(predictions)
        if isinstance(chosen, Mapping):
            return {str(name): tensor for name, tensor in chosen.items()}
        return {OUTPUT: chosen}

    @contextmanager
    def explained(self, problem: str) -> Iterator[None]:
        """A context for the user's own code. An exception becomes an error that names the line and keeps its class."""
        try:
            yield
        except (ModelError, DeviceError):
            raise
        except Exception as error:
            received = f"{_place(error, self.name)}: {one_line(error)}"
            if isinstance(error, PenstockError):
                problem = f"{problem}: {error.problem}"
                received = f"{_place(error, self.name)}: {error.received or error.hint}"
            raise also_model_error(error, problem, received) from error

    def _check_untrained(self, scaffold: Any) -> None:
        if self.model_dir is not None:
            check_initial_values(scaffold, self.model_dir)
        elif initial_values(scaffold).random:
            raise NoCheckpoint(
                "it is not known where the checkpoint is",
                received=self.name,
                hint="--checkpoint DIR names the model_dir of the trained model",
            )

    def _imported(self) -> Any:
        module, _, function = self.name.partition(":")
        try:
            with self.explained("the module does not import"), user_code():
                imported = importlib.import_module(module)
        except (SystemExit, KeyboardInterrupt) as error:  # in a replica, which ignores SIGINT
            raise ModelError("the module does not import", received=f"{self.name}: {one_line(error)}") from error
        try:
            return getattr(imported, function)
        except AttributeError:
            functions = [name for name, value in vars(imported).items() if inspect.isfunction(value)]
            raise ModelError(
                "the module has no such function", received=self.name, allowed=", ".join(functions[:12]) or "none"
            ) from None

    def _completed(self, own: ModelFunction) -> ModelFunction:
        """The settings of an Estimator, overridden by those of this function."""
        params = own.params
        if self.params:
            params = {**params, **self.params} if isinstance(params, Mapping) else self.params
        return replace(
            own,
            name=self.name,
            params=params,
            checkpoint=self.checkpoint,
            model_dir=self.model_dir or own.model_dir,
            predict_keys=self.predict_keys,
        )

    def _neither(self, received: str) -> ModelError:
        return ModelError(
            "this is not a model_fn",
            received=f"{self.name} is {received}",
            allowed="model_fn(features, labels, mode, params, config), or a function without arguments that returns "
            "a penstock.estimator.Estimator",
        )


@runtime_checkable
class HasModelFunction(Protocol):
    """An Estimator, with only the method that predicting needs."""

    def _as_model_function(self) -> ModelFunction:
        """Its `model_fn`, with the arguments of its calls."""
        ...


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in (
        parameter.VAR_POSITIONAL,
        parameter.VAR_KEYWORD,
    )


def _place(error: BaseException, name: str) -> str:
    """The line of the user's code in which an error arose."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(_NOT_THE_USERS):
            return f"{os.path.basename(frame.filename)}, line {frame.lineno}"
    return name
