"""Process state that old code needs: an older Keras, and no warnings about deprecated names."""

import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

SWITCH = "TF_USE_LEGACY_KERAS"
"""The environment variable with which TensorFlow chooses between Keras 3 and tf_keras."""
_LEGACY = "__internal__.legacy."


class SharedChange:
    """A change of process state for several threads: the first thread that enters makes it, the last one undoes it.

    No thread waits until another leaves: two threads may be inside at the same time, and one may enter twice.

    Args:
        change: A context that makes the change, and undoes it at its end.
    """

    def __init__(self, change: Callable[[], AbstractContextManager[None]]) -> None:
        self._change = change
        self._lock = threading.RLock()
        self._users = 0
        self._made: AbstractContextManager[None] | None = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._users:
                made = self._change()
                made.__enter__()
                self._made = made
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users and self._made is not None:
                    made, self._made = self._made, None
                    made.__exit__(None, None, None)


@contextmanager
def _swapped() -> Iterator[None]:
    before = os.environ.get(SWITCH)
    if before in ("1", "true", "True") and not any(
        map(_is_keras_3, (vars(at)[name] for at, name, _ in _keras_names()))
    ):
        yield  # in processes of our own, the choice is made from the start
        return
    os.environ[SWITCH] = "1"
    replaced = [(module, name, vars(module)[name]) for module, name, _ in _keras_names()]
    for module, name, loader in _keras_names():
        setattr(module, name, loader)
    try:
        yield
    finally:
        for module, name, was in replaced:
            setattr(module, name, was)
        if before is None:
            del os.environ[SWITCH]
        else:
            os.environ[SWITCH] = before


keras_of_its_time = SharedChange(_swapped)
"""Inside this context, `tf.keras`, `tf.compat.v1.keras`, `tf.compat.v1.layers` and `tf.compat.v1.nn.rnn_cell` are those
of tf_keras. Afterwards they are as before.

At the first use of each name, TensorFlow reads an environment variable to choose the Keras behind it. In the user's
process it may have chosen Keras 3 already, which has no `tf.compat.v1.layers` and does not build graphs of TensorFlow
1. So each name gets a new loader for this time, which has not chosen yet: nothing is imported unless it is used.
"""


def _is_keras_3(module: Any) -> bool:
    known = vars(module)  # reading an attribute of the loader would make it choose
    return known.get("_tfll_keras_version") == "keras_3" or str(known.get("__name__", "")).startswith("keras.")


def _keras_names() -> list[tuple[Any, str, Any]]:
    """Every module attribute that leads to Keras, with a loader that has not chosen yet."""
    import tensorflow as tf
    from tensorflow.python.util.lazy_loader import KerasLazyLoader

    v1, v2 = tf.compat.v1, tf.compat.v2
    return [
        (tf, "keras", KerasLazyLoader({})),
        (v2, "keras", KerasLazyLoader({}, mode="v2")),
        (v1, "keras", KerasLazyLoader({}, mode="v1")),
        (v1, "layers", KerasLazyLoader({}, mode="v1", submodule=_LEGACY + "layers", name="layers")),
        (v1.nn, "rnn_cell", KerasLazyLoader({}, mode="v1", submodule=_LEGACY + "rnn_cell", name="rnn_cell")),
    ]


@contextmanager
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
    """Whether a log record is not a warning about deprecated names or arguments, which its template shows."""
    template = str(record.msg)
    return not (
        (template.startswith("From %s: ") and "is deprecated" in template)
        or template.startswith("Please fix your imports. Module %s has been moved")
    )


quiet = SharedChange(_quiet)
"""Inside this context, TensorFlow does not warn about old code, unless its logger was set to another level."""
