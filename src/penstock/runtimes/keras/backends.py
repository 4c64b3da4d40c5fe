"""Runtimes that are backends of Keras."""

from __future__ import annotations

from penstock.core import kinds
from penstock.errors import DeviceError
from penstock.options.fit_records import BACKENDS
from penstock.runtimes.catalog import is_installed


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
