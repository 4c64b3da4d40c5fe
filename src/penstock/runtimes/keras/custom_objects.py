"""A model's own classes and functions, from the modules that the user names."""

import importlib
import inspect
import re
import sys
from collections.abc import Sequence
from typing import Any

from penstock.errors import ModelError, one_line

_NOT_CUSTOM = ("builtins", "collections", "jax", "keras", "math", "numpy", "tensorflow", "tf_keras", "torch", "typing")
_MISSING = re.compile(
    r"(?:Unknown [a-z ]+: |Could not locate (?:class|function) |Could not interpret [a-z ]+ identifier: )'?([\w.>]*\w)"
)


def import_custom_objects(modules: Sequence[str]) -> dict[str, Any]:
    """Import modules, so that they can register their objects, and return their classes and functions by name.

    Raises:
        ModelError: A module cannot be imported.
    """
    objects: dict[str, Any] = {}
    for name in modules:
        try:
            module = importlib.import_module(name)
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # in a replica, which ignores SIGINT
            raise ModelError(
                "the module with the custom objects does not import",
                received=f"--custom-objects {name}: {one_line(error)}",
                hint="it must be importable from the folder you are in, or from PYTHONPATH",
            ) from error
        objects |= {key: value for key, value in vars(module).items() if _is_custom(key, value)}
    return objects


def _is_custom(name: str, value: Any) -> bool:
    if name.startswith("_") or not (inspect.isclass(value) or inspect.isfunction(value)):
        return False
    package = str(value.__module__).partition(".")[0]
    # A model may not name functions that the module imported for itself, such as subprocess.run.
    is_common = package in sys.stdlib_module_names and package != "__main__"
    return package not in _NOT_CUSTOM and not is_common


def missing_object(error: BaseException) -> str | None:
    """The name of the class or function that a framework did not find; None for other errors."""
    match = _MISSING.search(str(error))
    return match[1].rpartition(">")[2] if match else None


def not_found(location: str, name: str, modules: Sequence[str]) -> ModelError:
    given = f"; --custom-objects {', '.join(modules)} has no {name}" if modules else ""
    return ModelError(
        "the model has a class or function of its own",
        received=f"{location}: {name!r} is not known{given}",
        hint=f"--custom-objects MODULE, a module in which {name} is defined or registered",
    )
