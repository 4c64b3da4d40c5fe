"""Around the user's functions: the Keras of their time, no warnings about old code, errors that tell what to do."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sys
import warnings
from collections.abc import Iterator

from penstock.errors import DeviceError, ModelError, PenstockError, one_line
from penstock.estimator.swapped_keras import keras_of_its_time

SWITCH = "TF_USE_LEGACY_KERAS"
_OF_KERAS_3 = ("keras 3", "keras.src", "kerastensor", "keras tensor", "keras operation", "keras model")


def prefer_legacy_keras() -> None:
    """From here on `tf.keras` is `tf_keras` in this process, unless it was touched before.

    Where TensorFlow is not imported yet, its start is made quiet too.
    """
    os.environ[SWITCH] = "1"
    if "tensorflow" not in sys.modules:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


@contextlib.contextmanager
def user_code(seed: int | None = None) -> Iterator[None]:
    """Around calls of `input_fn` and `model_fn`; what is random in them follows from `seed`, where there is one."""
    try:
        with keras_of_its_time(), quiet(), _seeded(seed):
            yield
    except PenstockError:
        raise
    except (AttributeError, ImportError, TypeError, ValueError, NotImplementedError) as error:
        text = str(error).lower()
        if isinstance(error, ImportError) and ("tf_keras" in text or "keras cannot be imported" in text):
            raise DeviceError(
                "this model_fn needs tf_keras", received=one_line(error), hint="pip install tf_keras"
            ) from error
        if "keras" in sys.modules and any(words in text for words in _OF_KERAS_3):
            raise ModelError(
                "this model_fn needs the older Keras, and its code holds Keras 3",
                received=one_line(error),
                hint="call penstock.estimator.install() before the first `import tensorflow` or `from tensorflow.keras "
                f"import …`, or start with {SWITCH}=1 in the environment",
            ) from error
        raise


@contextlib.contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Initializers of Keras take their seeds from Python's own generator, not from the graph's seed."""
    state = random.getstate()
    if seed is not None:
        random.seed(seed)
    try:
        yield
    finally:
        if seed is not None:
            random.setstate(state)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """TensorFlow's warnings about old code do not reach people who run old code, unless they asked to hear more."""
    logger = logging.getLogger("tensorflow")
    level = logger.level
    is_default = level in (logging.NOTSET, logging.WARNING)
    if is_default:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"`?tf\.(compat\.v1\.)?(layers|nn|keras|get_)")
            warnings.filterwarnings("ignore", message=r".*`(layer|tf|Model)\.[\w.]+` is deprecated")
            warnings.filterwarnings("ignore", message=r"To make it possible to preserve tf\.data options")
            warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"(tensorflow|tf_keras|keras)\b")
            yield
    finally:
        if is_default:
            logger.setLevel(level)
