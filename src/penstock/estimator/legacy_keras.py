"""Around the user's functions: the names and the Keras of their time, and errors that say what to do."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import random
import warnings
from collections.abc import Iterator

from penstock.errors import DeviceError, ModelError, PenstockError, one_line
from penstock.estimator.installing import doorway_in_place
from penstock.estimator.shared_change import SharedChange
from penstock.estimator.swapped_keras import SWITCH, keras_of_its_time

_OF_KERAS_3 = "keras."


@contextlib.contextmanager
def user_code(seed: int | None = None) -> Iterator[None]:
    """Around calls of `input_fn` and `model_fn`; what is random in them follows from `seed`, where there is one."""
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
    place = error.__traceback__
    while place is not None:
        if str(place.tb_frame.f_globals.get("__name__", "")).startswith(_OF_KERAS_3):
            return True
        place = place.tb_next
    return False


@contextlib.contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Initializers of Keras take their seeds from Python's own generator, not from the graph's seed."""
    if seed is None:
        yield
        return
    with _generator_kept():
        random.seed(seed)
        yield


@contextlib.contextmanager
def _kept() -> Iterator[None]:
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


_generator_kept = SharedChange(_kept)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("tensorflow")
    is_default = logger.level in (logging.NOTSET, logging.WARNING)
    if is_default:
        logger.addFilter(_is_not_about_old_code)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"`?tf\.(compat\.v1\.)?(layers|nn|keras|get_)")
            warnings.filterwarnings("ignore", message=r".*`(layer|tf|Model)\.[\w.]+` is deprecated")
            warnings.filterwarnings("ignore", message=r"To make it possible to preserve tf\.data options")
            warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"(tensorflow|tf_keras|keras)\b")
            yield
    finally:
        logger.removeFilter(_is_not_about_old_code)


def _is_not_about_old_code(record: logging.LogRecord) -> bool:
    """What TensorFlow logs about deprecated names and arguments is known by its template; other warnings stay."""
    template = str(record.msg)
    return not (
        (template.startswith("From %s: ") and "is deprecated" in template)
        or template.startswith("Please fix your imports. Module %s has been moved")
    )


quiet = SharedChange(_quiet)
"""TensorFlow's warnings about old code do not reach people who run old code, unless they asked to hear more."""
