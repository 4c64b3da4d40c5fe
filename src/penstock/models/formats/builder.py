"""Functions that build a Keras model: `module:function` in the shell, a function in Python."""

import re
from collections.abc import Callable
from typing import Any

import cloudpickle

from penstock.core.kinds import FileFacts, ModelFormat
from penstock.core.records import ModelFile
from penstock.errors import ModelError
from penstock.models import digest

_RUNTIMES = ("tensorflow", "jax", "torch", "tf_keras")


def recognise(
    location: str, *, trust: bool = False, signature: str | None = None, own: tuple[str, ...] = ()
) -> ModelFile | None:
    """The model behind `module:function`; None for anything of another form."""
    match = re.fullmatch(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)", location)
    if match is None:
        return None
    module_digest = digest.of_module(match[1])
    if module_digest is None:
        raise ModelError(
            "no such module",
            received=location,
            hint="it must be importable from the folder you are in, or from PYTHONPATH",
        )
    return ModelFile("builder", location, module_digest, _RUNTIMES, trust=trust)


def from_function(function: Callable[[], Any]) -> ModelFile:
    """The model that a function builds. The function travels by value: it need not be importable."""
    payload = cloudpickle.dumps(function)
    name = getattr(function, "__qualname__", type(function).__name__)
    # A pickle differs from process to process, so the digest is a name; the weights are compared once they are built.
    return ModelFile("builder", name, f"function {name}", _RUNTIMES, payload=payload)


def facts(file: ModelFile) -> FileFacts:
    """What is known of a function without calling it: nothing. It needs no trust, because the user named it."""
    return FileFacts(None, 0, notes=("it is built by a function",))


FORMAT = ModelFormat("builder", "module:function that builds a Keras model", recognise, facts)
