"""The description of a Keras model, as `.keras` and `.h5` files hold it: what in it runs code or opens files."""

import builtins
import sys
from collections.abc import Iterator
from typing import Any

from penstock.core import tensorflow_calls
from penstock.core.keras_names import COMPANIONS, NOT_MODELLING, RUN_CODE, WITH_FUNCTIONS
from penstock.models.facts import Malformed
from penstock.models.scan import operations, wire

_KERAS = COMPANIONS | {"keras", "tf_keras"}
_PLAIN_TYPES = frozenset({"__keras_tensor__", "__tensor__", "__numpy__", "__bytes__", "__ellipsis__", "__slice__"})
_MODELLING_UTILITIES = frozenset({"FeatureSpace", "Feature", "Cross"})
_FILES = ("vocabulary", "vocabulary_file", "vocab_file", "idf_weights", "merges", "ckpt_to_load_from")
_NAMES = ("class_name", "registered_name", "spec_name")
"""The keys under which Keras looks for the name of a class: if one does not resolve, the next is tried."""


def needs_trust(config: Any, own: tuple[str, ...] = ()) -> list[str]:
    """Sentences that say what in the description of a model needs trust.

    Compile settings are left out: only `evaluate` and `fit` load them, and check them then. Objects from the modules
    `own` need no trust, because the user named these modules.
    """
    if isinstance(config, dict):
        config = {key: value for key, value in config.items() if key != "compile_config"}
    return list(dict.fromkeys(sentence for item in objects_in(config) for sentence in _reasons(item, own)))


def objects_in(config: Any) -> Iterator[dict[str, Any]]:
    """Every dict in the description, however deep."""
    pending = [config]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            yield item
            pending += reversed(list(item.values()))
        elif isinstance(item, list):
            pending += reversed(item)


def _reasons(item: dict[str, Any], own: tuple[str, ...]) -> Iterator[str]:
    name, inner = item.get("class_name"), item.get("config")
    if not isinstance(name, str):
        return
    settings = inner if isinstance(inner, dict) else {}
    given = {value for key in _NAMES if isinstance(value := item.get(key), str)}
    called = sorted({_last_part(value) for value in given})
    layer = f"layer {settings.get('name', _last_part(name))!r}"
    if "__lambda__" in called or _is_marshalled(settings):
        yield "it contains marshalled Python code"
    for each in called:
        if each in RUN_CODE:
            yield f"{layer} {RUN_CODE[each]}"
        yield from _tensorflow_call(layer, each, settings)
    for key in _FILES:
        if isinstance(settings.get(key), str) and settings[key]:
            yield f"{layer} reads the file {settings[key]!r}"
    # Keras 2 looks up `a.b` as the attribute b of whatever a is in the module. No class that it saved is named so.
    if name == "function":
        given.add(str(inner))
    dotted = sorted(value for value in given if "." in value.rpartition(">")[2])
    if dotted:
        yield f"it names an object by a path: {dotted[0]}"
    if not _is_own(item.get("module"), own):
        yield from _foreign(item, name)


def _foreign(item: dict[str, Any], name: str) -> Iterator[str]:
    """What needs trust in an object that is not from a module that the user named."""
    if name == "function":
        yield from _function(item)
    elif name == "__typespec__":
        yield from _foreign_class(item, str(item.get("spec_name")), (*_KERAS, "tensorflow"))
    elif name not in _PLAIN_TYPES:
        yield from _foreign_class(item, name, tuple(_KERAS))


def _last_part(name: str) -> str:
    """The bare name of a class, without the package that it was registered under or the object that it is part of."""
    return name.rpartition(">")[2].rpartition(".")[2]


def _is_own(module: Any, own: tuple[str, ...]) -> bool:
    return isinstance(module, str) and any(module == name or module.startswith(name + ".") for name in own)


def _is_marshalled(settings: dict[str, Any]) -> bool:
    """Whether a function is given as Keras 2 marshals one: code in base64, alone or with defaults and closure."""
    function = settings.get("function")
    is_listed = isinstance(function, list) and bool(function) and isinstance(function[0], str)
    return is_listed or any(key.endswith("_type") and value == "lambda" for key, value in settings.items())


def _function(item: dict[str, Any]) -> Iterator[str]:
    """What needs trust in a function given by name: Keras looks among its own, but older versions import any module."""
    module, name = str(item.get("module") or "builtins"), str(item.get("config"))
    package, *rest = (part for part in module.split(".") if part != "src")
    if package == "builtins":
        # Keras writes this for its own functions, none of which is called like one of Python.
        if hasattr(builtins, name):
            yield f"it calls the Python function {name}"
    elif package in ("keras", "tf_keras"):
        if not rest or rest[0] not in WITH_FUNCTIONS or not NOT_MODELLING.isdisjoint(rest):
            yield f"it calls the function {module}.{name}"
    elif package in _KERAS:
        if not NOT_MODELLING.isdisjoint(rest):
            yield f"it calls the function {module}.{name}"
    elif not _is_registered(item, name):
        yield f"it calls the function {module}.{name}"


def _foreign_class(item: dict[str, Any], name: str, packages: tuple[str, ...]) -> Iterator[str]:
    module = item.get("module")
    if not module:
        return  # looked up among Keras' own classes and those that were registered
    package, *rest = str(module).split(".")
    if package in packages:
        if not NOT_MODELLING.isdisjoint(rest) and name not in _MODELLING_UTILITIES:
            yield f"it makes an object of the class {module}.{name}"
    elif not _is_registered(item, name):
        yield f"it makes an object of the class {module}.{name}"


def _is_registered(item: dict[str, Any], name: str) -> bool:
    """Whether an object has a registered name, which its own code must register: `--custom-objects` loads that code.

    Keras imports nothing for such a name: it finds only what the user's modules registered. The name proves nothing if
    the object's module is in Python's standard library or in TensorFlow.
    """
    package = str(item.get("module") or "").partition(".")[0]
    is_common = package in sys.stdlib_module_names and package != "__main__"
    registered = str(item.get("registered_name") or "")
    is_so_called = ">" in registered and _last_part(registered) == _last_part(name)
    return is_so_called and not is_common and package != "tensorflow"


def _tensorflow_call(layer: str, kind: str, settings: dict[str, Any]) -> Iterator[str]:
    """What needs trust in a layer that calls a TensorFlow function, given by its path in the package, or a method."""
    if kind == "TensorFlowOpLayer":
        yield from _tensorflow_node(layer, settings.get("node_def"))
    elif kind in ("TFOpLambda", "SlicingOpLambda"):
        symbol = settings.get("function")
        if not isinstance(symbol, str):
            yield f"{layer} calls something that is not named"
        elif not tensorflow_calls.only_computes(symbol):
            yield f"{layer} calls tf.{tensorflow_calls.path_of(symbol)}"
    elif kind == "ClassMethod":
        symbol, method = str(settings.get("cls_symbol")), str(settings.get("method_name"))
        if not tensorflow_calls.makes_a_tensor(symbol, method):
            yield f"{layer} calls tf.{tensorflow_calls.path_of(symbol)}.{method}"
    elif kind in ("InstanceMethod", "InstanceProperty"):
        attribute = str(settings.get("attr_name"))
        if not tensorflow_calls.is_of_tensors(attribute):
            yield f"{layer} uses the attribute {attribute} of a tensor"


def _tensorflow_node(layer: str, node: Any) -> Iterator[str]:
    """What needs trust in a layer around one operation, which early TensorFlow 2 wrote as JSON or as wire format."""
    if isinstance(node, dict):
        names = [str(node.get("op"))]
    elif isinstance(node, str):
        try:
            names = wire.texts(memoryview(node.encode("utf-8", "surrogateescape")), 2)
        except (Malformed, UnicodeEncodeError):
            names = []
    else:
        names = []
    if not names:
        yield f"{layer} wraps an operation that cannot be read"
    for name in names:
        why = operations.why(name)
        if why is not None or name in operations.BY_ATTRIBUTES:
            yield f"{layer} {why or 'reaches beyond the graph'}: {name}"
