"""Backends of Keras, and the kinds of models that it loads."""

from __future__ import annotations

from penstock.core import kinds
from penstock.errors import DeviceError
from penstock.options.fit_records import BACKENDS
from penstock.runtimes.catalog import is_installed

MODEL_KINDS = ("keras", "h5", "builder")
"""Kinds of model files from which Keras makes a model that it can train and compile."""


def backend_for(runtime: str | None) -> str:
    """The backend of Keras to use: `runtime` where it is one and is installed, else the best that is installed.

    Raises:
        DeviceError: No framework of Keras is installed.
    """
    for name in (*([runtime] if runtime in BACKENDS else []), *BACKENDS):
        if is_installed(name):
            return name
    raise DeviceError(
        "training and metrics are those of Keras, and none of its frameworks is installed",
        received=f"not installed: {', '.join(BACKENDS)}",
        hint=kinds.runtime(BACKENDS[0]).package.install,
    )
