"""Calls of the user's two functions: their arguments, their results, and the process state that they need."""

import functools
import importlib.util
import inspect
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from penstock.errors import DeviceError, ModelError, PenstockError, one_line
from penstock.estimator.installing import doorway_in_place
from penstock.estimator.legacy_keras import SWITCH, SharedChange, keras_of_its_time, quiet
from penstock.estimator.refusals import WrongValue
from penstock.estimator.run_config import RunConfig
from penstock.estimator.spec import EstimatorSpec
from penstock.runtimes.frameworks import tf

LOG = logging.getLogger("penstock.estimator")

MODEL_FN_TAKES = ("features", "labels", "mode", "params", "config")


class Called(NamedTuple):
    """The `model_fn`, and the arguments that both functions get besides their tensors."""

    model_fn: Callable[..., Any]
    params: Any
    config: RunConfig


class Input(NamedTuple):
    """What an `input_fn` returned, as tensors of the graph, and the hooks that start it."""

    features: Any
    labels: Any
    hooks: tuple[Any, ...]


def argument_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """The arguments that a function takes by name, without those that a `partial` has bound."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    bound = set(function.keywords) if isinstance(function, functools.partial) else set()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(p.name for p in parameters if p.kind in by_name and p.name not in bound)


def check_model_fn(model_fn: Any, params: Any) -> None:
    """Refuse a `model_fn` that cannot be called as Estimators do."""
    if model_fn is None:
        raise WrongValue("model_fn is missing", hint="Estimator(model_fn, …)")
    names = argument_names(model_fn)
    allowed = ", ".join(MODEL_FN_TAKES)
    if "features" not in names:
        raise WrongValue("model_fn must take `features`", received=f"{model_fn} ({', '.join(names)})", allowed=allowed)
    if params is not None and "params" not in names:
        raise WrongValue("model_fn takes no `params`, but the Estimator was given some", received=f"params={params!r}")
    others = [name for name in names if name not in (*MODEL_FN_TAKES, "self")]
    if others:
        raise WrongValue("model_fn takes what no one gives it", received=", ".join(others), allowed=allowed)


def call_model_fn(called: Called, features: Any, labels: Any, mode: str) -> EstimatorSpec:
    """Build the operations of `mode` in the default graph."""
    names = argument_names(called.model_fn)
    offered = {"mode": mode, "params": called.params, "config": called.config}
    given = {name: value for name, value in offered.items() if name in names}
    if "labels" in names:
        given["labels"] = labels
    elif labels is not None:
        raise WrongValue("model_fn takes no labels, but input_fn returns some", hint="add the argument `labels`")
    spec = called.model_fn(features=features, **given)
    if not isinstance(spec, EstimatorSpec):
        as_spec = getattr(spec, "as_estimator_spec", None)
        if as_spec is None:
            raise WrongValue("model_fn must return an EstimatorSpec", received=repr(spec)[:200])
        spec = as_spec()
        assert isinstance(spec, EstimatorSpec)
    return spec


def call_input_fn(called: Called, input_fn: Callable[..., Any], mode: str, input_context: Any = None) -> Any:
    """Call the user's function, with its operations on the CPU. It returns a dataset, or tensors."""
    names = argument_names(input_fn)
    offered = {"mode": mode, "params": called.params, "config": called.config}
    given = {name: value for name, value in offered.items() if name in names}
    if input_context is not None and "input_context" in names:
        given["input_context"] = input_context
    with tf.device("/cpu:0"):
        return input_fn(**given)


def take_input(called: Called, input_fn: Callable[..., Any], mode: str) -> Input:
    """The tensors of one batch: the next element of a dataset, or the tensors that the function returned."""
    result = call_input_fn(called, input_fn, mode)
    hooks: tuple[Any, ...] = ()
    if isinstance(result, tf.data.Dataset):
        iterator = tf.compat.v1.data.make_initializable_iterator(result)
        hooks = (starts_iterator(lambda: iterator.initializer),)
        result = iterator.get_next()
    return Input(*split_element(result), hooks)


def split_element(element: Any) -> tuple[Any, Any]:
    """(features, labels) of an element; labels are None where there are none."""
    if not isinstance(element, (list, tuple)):
        return element, None
    if len(element) != 2:
        raise WrongValue(
            "input_fn must return features, or (features, labels)", received=f"{len(element)} values", allowed="1 or 2"
        )
    return element[0], element[1]


def starts_iterator(initializer: Callable[[], Any]) -> Any:
    """A session hook that initialises an iterator whenever a session is made."""

    class StartsIterator(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
        def begin(self) -> None:
            self._operation = initializer()

        def after_create_session(self, session: Any, coord: Any) -> None:
            session.run(self._operation)

    return StartsIterator()


def begin_graph(config: RunConfig) -> Any:
    """Seed the default graph, and give it a global step; returns the step."""
    tf.compat.v1.set_random_seed(config.tf_random_seed)
    return tf.compat.v1.train.create_global_step()


@contextmanager
def user_code(seed: int | None = None) -> Iterator[None]:
    """Context for calls of `input_fn` and `model_fn`. If a `seed` is given, it decides their random numbers."""
    try:
        with doorway_in_place(), keras_of_its_time(), quiet(), _seeded(seed):
            yield
    except PenstockError:
        raise
    except (AttributeError, ImportError, TypeError, ValueError, NotImplementedError) as error:
        if importlib.util.find_spec("tf_keras") is None and isinstance(error, (ImportError, AttributeError)):
            raise DeviceError(
                "this model_fn needs tf_keras", received=one_line(error), hint="pip install tf_keras"
            ) from error
        if _arose_in_keras_3(error):
            raise ModelError(
                "this model_fn needs the older Keras, and its code holds Keras 3",
                received=one_line(error),
                hint="call penstock.estimator.install() before the first `import tensorflow` or `from tensorflow.keras "
                f"import …`, or start with {SWITCH}=1 in the environment",
            ) from error
        raise


def _arose_in_keras_3(error: BaseException) -> bool:
    frame = error.__traceback__
    while frame is not None:
        if str(frame.tb_frame.f_globals.get("__name__", "")).startswith("keras."):
            return True
        frame = frame.tb_next
    return False


@contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Seed Python's own generator: Keras's initializers take their seeds from it, not from the graph."""
    if seed is None:
        yield
        return
    with _generator_kept():
        random.seed(seed)
        yield


@contextmanager
def _kept() -> Iterator[None]:
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


_generator_kept = SharedChange(_kept)
