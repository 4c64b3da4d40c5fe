"""`install()`: puts this package where old code in this process looks for `tf.estimator`."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from penstock.errors import DeviceError
from penstock.estimator.canned import LeftTensorFlow
from penstock.estimator.legacy_keras import SWITCH, SharedChange

_PARTS = ("export", "experimental", "inputs", "tpu")
_STANDS_IN = "tensorflow_estimator"
_ABSENT = object()


def install() -> None:
    """Put this package in the place of `tf.estimator` and `tf.compat.v1.estimator`.

    Call it before old code is imported, and best before TensorFlow is: then `tf.keras` is the older Keras too
    (`tf_keras`), as graphs of TensorFlow 1 need it. Calling it again changes nothing.

    >>> import penstock.estimator
    >>> penstock.estimator.install()                            # doctest: +SKIP
    >>> import tensorflow as tf                                 # doctest: +SKIP
    >>> tf.estimator.Estimator                                  # doctest: +SKIP
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise DeviceError("tensorflow is not installed", hint="pip install 'penstock[tensorflow]' tf_keras")
    _prefer_legacy_keras()
    _put_in_place()
    _Installed.is_for_good = True


class _Installed:
    is_for_good = False


@contextmanager
def _in_place() -> Iterator[None]:
    before = _put_in_place()
    try:
        yield
    finally:
        if not _Installed.is_for_good:
            _put_back(before)


doorway_in_place = SharedChange(_in_place)
"""Inside this context, `tf.estimator` is this package. Afterwards it is as before, unless `install()` was called."""


def _prefer_legacy_keras() -> None:
    """Let `tf.keras` be `tf_keras` in this process from here on, unless `tf.keras` was used before.

    If TensorFlow is not imported yet, this also suppresses its log lines at the start.
    """
    os.environ[SWITCH] = "1"
    if "tensorflow" not in sys.modules:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


class _Before(NamedTuple):
    """The value that the package replaced; `_ABSENT` where there was none."""

    attributes: list[tuple[Any, Any]]
    modules: dict[str, Any]


def _put_in_place() -> _Before:
    """Put the package where old code looks for it."""
    import tensorflow as tf

    doorway = sys.modules["penstock.estimator"]
    parents = (tf, tf.compat.v1, tf.compat.v2)
    modules: dict[str, Any] = {}
    for prefix in ("tensorflow", "tensorflow.compat.v1", "tensorflow.compat.v2", _STANDS_IN):
        modules[f"{prefix}.estimator"] = doorway
        for part in _PARTS:
            modules[f"{prefix}.estimator.{part}"] = importlib.import_module(f"{doorway.__name__}.{part}")
    if _STANDS_IN not in sys.modules:  # an installed tensorflow_estimator cannot be imported with this TensorFlow
        modules |= _stand_in_package(doorway)
    before = _Before(
        [(parent, vars(parent).get("estimator", _ABSENT)) for parent in parents],
        {name: sys.modules.get(name, _ABSENT) for name in modules},
    )
    for parent in parents:
        parent.estimator = doorway
    sys.modules.update(modules)
    return before


def _put_back(before: _Before) -> None:
    for parent, value in before.attributes:
        if value is _ABSENT:
            del parent.estimator
        else:
            parent.estimator = value
    for name, module in before.modules.items():
        if module is _ABSENT:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = module


def _stand_in_package(doorway: Any) -> dict[str, ModuleType]:
    """The modules that `import tensorflow_estimator` then finds: a package whose `estimator` is this one.

    `tf.keras.estimator.model_to_estimator` looks for `python.estimator.keras_lib` in it.
    """
    made = {}
    for name in (_STANDS_IN, f"{_STANDS_IN}.python", f"{_STANDS_IN}.python.estimator"):
        made[name] = ModuleType(name, "Left TensorFlow with 2.16; this is penstock's doorway.")
        made[name].__path__ = []
    keras_lib = ModuleType(f"{_STANDS_IN}.python.estimator.keras_lib")
    keras_lib.model_to_estimator = _refuse_keras_model  # type: ignore[attr-defined]
    made[_STANDS_IN].estimator = doorway  # type: ignore[attr-defined]
    made[f"{_STANDS_IN}.python.estimator"].keras_lib = keras_lib  # type: ignore[attr-defined]
    return {**made, keras_lib.__name__: keras_lib}


def _refuse_keras_model(*arguments: object, **named: object) -> NoReturn:
    raise LeftTensorFlow(
        "tf.keras.estimator.model_to_estimator cannot be called here: its code left TensorFlow with 2.16",
        allowed="Estimator(model_fn, …) with a model_fn that calls the Keras model",
        hint="a Keras model runs on every device without an Estimator: `penstock predict model.keras DATA --output O`",
    )
