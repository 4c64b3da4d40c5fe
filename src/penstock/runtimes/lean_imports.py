"""Frameworks import other libraries only to see whether they are there. In a replica nobody needs them.

TensorFlow and Keras together pull in scikit-learn, SciPy, pandas, IPython and JAX where these are installed: a third of
the processor time that starting a replica takes (measured: 5.3 s with them, 3.2 s without).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.core.records import ModelFile

UNNEEDED = ("sklearn", "scipy", "pandas", "IPython", "jax", "torch", "tensorflow")


@contextmanager
def lean_imports(file: ModelFile, *needed: str) -> Iterator[None]:
    """While this is open, the libraries that only look in seem not to be installed. Afterwards they import as ever.

    A builder is the user's own code, which may want any of them from its framework: nothing is hidden from it, nor from
    the modules of custom objects.
    """
    hidden = [name for name in UNNEEDED if name not in needed and name not in sys.modules]
    if file.kind in ("builder", "estimator") or file.custom_objects:
        hidden = []
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)
