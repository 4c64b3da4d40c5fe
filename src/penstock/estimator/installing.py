"""`install()`: old code that says `tf.estimator` finds this package there, in this process."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

from penstock.errors import DeviceError
from penstock.estimator.legacy_keras import prefer_legacy_keras

_PARTS = ("export", "experimental", "inputs", "tpu")


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
    prefer_legacy_keras()
    import tensorflow as tf

    import penstock.estimator as doorway

    for parent in (tf, tf.compat.v1, tf.compat.v2):
        parent.estimator = doorway
    for prefix in ("tensorflow", "tensorflow.compat.v1", "tensorflow.compat.v2", "tensorflow_estimator"):
        _answer_as(f"{prefix}.estimator", doorway)
    if "tensorflow_estimator" not in sys.modules:  # one that is installed does not import with this TensorFlow
        _stand_in_package(doorway)


def _answer_as(name: str, doorway: ModuleType) -> None:
    """`import NAME` and `from NAME.export import …` find the package and its parts."""
    sys.modules[name] = doorway
    for part in _PARTS:
        sys.modules[f"{name}.{part}"] = importlib.import_module(f"{doorway.__name__}.{part}")


def _stand_in_package(doorway: Any) -> None:
    """`import tensorflow_estimator` finds a package whose `estimator` is the doorway."""
    package = ModuleType("tensorflow_estimator", "Left TensorFlow with 2.16; this is penstock's doorway.")
    package.__path__ = []
    package.estimator = doorway  # type: ignore[attr-defined]
    sys.modules["tensorflow_estimator"] = package
