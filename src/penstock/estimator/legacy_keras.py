"""Process state that old code needs: the Keras of its time, and no warnings about deprecated names."""

import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

SWITCH = "TF_USE_LEGACY_KERAS"
"""The variable of the environment by which TensorFlow decides."""
_LEGACY = "__internal__.legacy."


class SharedChange:
    """Change of process state that threads share: the first thread to enter makes it, the last to leave undoes it.

    No thread waits for another to leave: two of them may be in at the same time, and one may come in twice.

    Args:
        change: Makes the change when it is entered, and undoes it when it is left.
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
        yield  # as in processes of our own: decided from the start
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
"""While this is open, `tf.keras`, `tf.compat.v1.keras`, `tf.compat.v1.layers` and `tf.compat.v1.nn.rnn_cell` are those
of tf_keras. Afterwards they are what they were.

TensorFlow decides at the first use of each name which Keras stands behind it, by a variable of the environment. In a
process of the user's it may have decided for Keras 3 already, which has no `tf.compat.v1.layers` and does not build
graphs of TensorFlow 1. So each name gets a new, undecided loader for the time being: nothing is imported unless it is
used.
"""


def _is_keras_3(module: Any) -> bool:
    known = vars(module)  # asking the loader itself would make it decide
    return known.get("_tfll_keras_version") == "keras_3" or str(known.get("__name__", "")).startswith("keras.")


def _keras_names() -> list[tuple[Any, str, Any]]:
    """Every module attribute that leads to Keras, with an undecided loader."""
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
    """What TensorFlow logs about deprecated names and arguments is known by its template; other warnings stay."""
    template = str(record.msg)
    return not (
        (template.startswith("From %s: ") and "is deprecated" in template)
        or template.startswith("Please fix your imports. Module %s has been moved")
    )


quiet = SharedChange(_quiet)
"""While this is open, TensorFlow does not warn about old code, unless its logger was set to another level."""
