"""TensorFlow, Keras, JAX, torch and h5py under their usual names, each imported when it is first used.

An import takes seconds, and a replica must set its environment before it. Where the order matters (in `load` of each
runtime, under `lean_imports`), a plain `import` statement decides when.
"""

import importlib
from typing import Any


class LazyModule:
    """A module that is imported when it is first asked for an attribute. Attributes are always the module's own."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


tf: Any = LazyModule("tensorflow")
keras: Any = LazyModule("keras")
tf_keras: Any = LazyModule("tf_keras")
jax: Any = LazyModule("jax")
torch: Any = LazyModule("torch")
h5py: Any = LazyModule("h5py")
