"""What Keras may do while it loads a file: the second line of defence, after the scan of the file itself.

The description in a file names classes and functions, which Keras finds. For a file that is not trusted, it finds only
Keras's own classes for modelling, registered ones, and those that the user named. It imports nothing, unmarshals
nothing, and of TensorFlow's functions calls only those that compute. No file, trusted or not, may make weights that are
far larger than the file.
"""

import importlib
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from penstock.core import tensorflow_calls
from penstock.core.keras_names import COMPANIONS, NOT_MODELLING, RUN_CODE, WITH_FUNCTIONS
from penstock.core.records import ModelFile
from penstock.errors import ModelError
from penstock.runtimes.frameworks import tf

_MOST_NUMBERS = 256 << 20
_MOST_NUMBERS_PER_BYTE = 64
"""A file may make this many weights for each of its bytes, since zeros compress well; `_MOST_NUMBERS` in any case."""

_KERAS_2 = ("tf_keras.src", "tensorflow.python.keras")

Retrieve = Callable[..., Any]


@contextmanager
def guarded(library: str, file: ModelFile) -> Iterator[None]:
    """Guard the loading of a file by Keras 3 (`keras`) or by `tf_keras`.

    Raises:
        ModelError: The file asked for something that is not allowed. It replaces Keras's own error.
    """
    guard = _Guard(library, file)
    with ExitStack() as changes:
        for owner, name, value in guard.replacements():
            changes.enter_context(_replaced(owner, name, value))
        try:
            yield
        except Exception:
            if guard.refusal is not None:
                raise guard.refusal from None
            raise


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class _Guard:
    def __init__(self, library: str, file: ModelFile) -> None:
        self.refusal: ModelError | None = None
        self._library = library
        self._file = file
        self._num_numbers = 0
        self._most_numbers = max(_MOST_NUMBERS, _MOST_NUMBERS_PER_BYTE * os.path.getsize(file.location))

    def replacements(self) -> Iterator[tuple[Any, str, Any]]:
        """The replacements inside Keras: owner, name, value."""
        layer = sys.modules[self._library].layers.Layer
        yield layer, "add_weight", self._limited(layer.add_weight)
        if self._file.trust:
            return
        saving = importlib.import_module(f"{self._library}.src.saving.serialization_lib")
        yield saving, "_retrieve_class_or_fn", self._checked(saving._retrieve_class_or_fn)
        yield saving, "importlib", SimpleNamespace(import_module=self._already_imported)
        for name in ("keras.src.utils.python_utils", *(f"{each}.utils.generic_utils" for each in _KERAS_2)):
            if name in sys.modules:
                yield sys.modules[name], "func_load", self._refuse_code
        if self._library == "tf_keras":
            layers = importlib.import_module("tf_keras.src.layers.core.tf_op_layer")
            yield layers, "get_symbol_from_name", self._checked_symbol(layers.get_symbol_from_name)

    def _refuse(self, what: str) -> ModelError:
        self.refusal = ModelError(
            "the model can run code or reach files, and is not trusted",
            received=f"{self._file.location}: {what}",
            hint="if you trust where it came from: --trust-model",
        )
        return self.refusal

    def _checked(self, retrieve: Retrieve) -> Retrieve:
        def checked(
            name: Any,
            registered_name: Any,
            module: Any,
            obj_type: str,
            full_config: Any,
            custom_objects: Mapping[str, Any] | None = None,
        ) -> Any:
            for given in (name, registered_name):
                if isinstance(given, str) and "." in given.rpartition(">")[2]:
                    raise self._refuse(f"it names an object by a path: {given}")
            retrieved = retrieve(name, registered_name, module, obj_type, full_config, custom_objects)
            if not self._is_known(retrieved, custom_objects or {}):
                raise self._refuse(f"it asks for {module}.{name}")
            return retrieved

        return checked

    def _is_known(self, retrieved: Any, custom_objects: Mapping[str, Any]) -> bool:
        if any(retrieved is each for each in custom_objects.values()):
            return True
        home = str(getattr(retrieved, "__module__", None))
        if self._is_own(home):
            return True
        package, *rest = (part for part in home.split(".") if part != "src")
        if package == "tensorflow":
            return _is_type_spec(retrieved)
        if package != self._library and package not in COMPANIONS:
            return False
        if not NOT_MODELLING.isdisjoint(rest):
            return False
        if isinstance(retrieved, type):
            return retrieved.__name__ not in RUN_CODE
        return isinstance(retrieved, FunctionType) and bool(rest) and rest[0] in WITH_FUNCTIONS

    def _is_own(self, module: str) -> bool:
        return any(module == name or module.startswith(name + ".") for name in self._file.custom_objects)

    def _already_imported(self, name: str) -> ModuleType:
        """A module that is imported already, if classes may be found in it; an empty module for any other name."""
        package = name.partition(".")[0]
        if package in COMPANIONS and _is_beside(package, self._library):
            importlib.import_module(package)
        if package in (self._library, "tensorflow", *COMPANIONS) or self._is_own(name):
            return sys.modules.get(name) or ModuleType(name)
        return ModuleType(name)

    def _checked_symbol(self, get_symbol: Callable[[str], Any]) -> Callable[[str], Any]:
        def checked(symbol: str) -> Any:
            if tensorflow_calls.only_computes(symbol) or tensorflow_calls.path_of(symbol) == "RaggedTensor":
                return get_symbol(symbol)
            raise self._refuse(f"it calls tf.{tensorflow_calls.path_of(symbol)}")

        return checked

    def _refuse_code(self, *_: Any, **__: Any) -> Any:
        raise self._refuse("it contains marshalled Python code")

    def _limited(self, add_weight: Callable[..., Any]) -> Callable[..., Any]:
        """`add_weight` with a limit: it counts the numbers in all weights, and refuses before it makes too many."""
        names = add_weight.__code__.co_varnames

        def limited(layer: Any, *args: Any, **kwargs: Any) -> Any:
            shape = {**dict(zip(names[1:], args, strict=False)), **kwargs}.get("shape")
            self._num_numbers += math.prod(_lengths(shape))
            if self._num_numbers > self._most_numbers:
                self.refusal = ModelError(
                    "the model declares weights far beyond what its file holds",
                    received=f"{self._file.location}: more than {self._num_numbers:,} numbers",
                )
                raise self.refusal
            return add_weight(layer, *args, **kwargs)

        return limited


def _lengths(shape: Any) -> list[int]:
    """The known lengths in a shape. A shape may be a number, a tuple or an object of TensorFlow's."""
    try:
        return [int(length) for length in shape if length is not None]
    except (TypeError, ValueError):
        return [shape] if isinstance(shape, int) else []


def _is_type_spec(retrieved: Any) -> bool:
    is_of_keras = str(retrieved.__module__).startswith("tensorflow.python.keras")
    return isinstance(retrieved, type) and issubclass(retrieved, tf.TypeSpec) and not is_of_keras


def _is_beside(package: str, library: str) -> bool:
    """Whether a package is installed beside Keras. A folder of its name in the user's working folder does not count."""
    other, own = importlib.util.find_spec(package), importlib.util.find_spec(library)
    if other is None or own is None or other.origin is None or own.origin is None:
        return False
    return os.path.dirname(os.path.dirname(other.origin)) == os.path.dirname(os.path.dirname(own.origin))
