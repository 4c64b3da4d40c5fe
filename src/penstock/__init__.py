"""Penstock: TensorFlow and Keras models run over large data and trained on them, on every device there is.

>>> import penstock
>>> y = penstock.predict(model, x)                                            # doctest: +SKIP
>>> penstock.predict("model.keras", "rows.parquet", output="predictions/")    # doctest: +SKIP

Importing this imports no framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "DeviceError",
    "Evaluation",
    "InputError",
    "Interrupted",
    "ModelError",
    "OutOfMemory",
    "OutputError",
    "PenstockError",
    "RefusedByRuntime",
    "Rows",
    "Summary",
    "TooManyFailures",
    "UsageError",
    "WorkersDied",
    "__version__",
    "devices",
    "evaluate",
    "fit",
    "inspect",
    "plan",
    "predict",
    "resume",
    "retry",
    "status",
    "stream",
    "verify",
]

if TYPE_CHECKING:
    from penstock.api import (
        Evaluation,
        devices,
        evaluate,
        fit,
        inspect,
        plan,
        predict,
        resume,
        retry,
        status,
        stream,
        verify,
    )
    from penstock.errors import (
        DeviceError,
        InputError,
        Interrupted,
        ModelError,
        OutOfMemory,
        OutputError,
        PenstockError,
        RefusedByRuntime,
        TooManyFailures,
        UsageError,
        WorkersDied,
    )
    from penstock.sources.python.streaming import Rows
    from penstock.telemetry.summary import Summary


def __getattr__(name: str) -> Any:
    # Lazily, so that `import penstock` and `penstock --help` answer in a blink.
    if name not in __all__:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    from penstock import api, errors
    from penstock.options.spelling import for_python

    value = getattr(api if hasattr(api, name) else errors, name)
    # The shell calls the same functions, and spells its options differently.
    globals()[name] = value if isinstance(value, type) else for_python(value)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)
