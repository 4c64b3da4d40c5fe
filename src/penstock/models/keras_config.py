"""The description of a Keras model, as `.keras` and `.h5` files hold it: what in it runs code or opens files."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

from penstock.models import operations, wire
from penstock.models.facts import Malformed

_KERAS = frozenset({"keras", "keras_hub", "keras_cv", "keras_nlp", "keras_rs", "tf_keras"})
_PLAIN_TYPES = frozenset(
    {"__keras_tensor__", "__tensor__", "__numpy__", "__bytes__", "__ellipsis__", "__slice__", "__typespec__"}
)
_NOT_MODELLING = frozenset(
    {"utils", "saving", "config", "datasets", "callbacks", "export", "visualization", "wrappers"}
)
"""Parts of Keras whose functions read, write, download or configure."""
_MODELLING_UTILITIES = frozenset({"FeatureSpace", "Feature", "Cross"})
_DANGEROUS_BUILTINS = re.compile(
    "eval|exec|compile|open|__import__|input|breakpoint|[gs]etattr|delattr|globals|locals|vars|exit|quit|help|memoryview"
)
_RUN_CODE = {
    "Lambda": "is a Lambda",
    "TFSMLayer": "loads a SavedModel from another place",
    "TorchModuleWrapper": "unpickles a torch module",
    "JaxLayer": "calls a Python function",
    "FlaxLayer": "calls a Python function",
    "LegacyTFLayer": "calls a Python function",
}
_VOCABULARIES = ("vocabulary", "vocabulary_file", "idf_weights")
_TF_CALLS = frozenset({"TFOpLambda", "SlicingOpLambda", "ClassMethod"})
_TF_NAMESPACES = re.compile(
    "math|nn|image|linalg|strings|signal|ragged|sparse|random|sets|bitwise|quantization|dtypes|audio"
    "|__operators__|keras|experimental|raw_ops"
)
_TF_REACHING = re.compile(r"py_func|numpy_function|load_|save|write|read_file|matching_files|gfile|print$|exec|eval$")


def needs_trust(config: Any, own: tuple[str, ...] = ()) -> list[str]:
    """Sentences: what in the description of a model needs trust. Compiling is left out: it is never loaded.

    What comes from the modules `own` is fine: the user named them.
    """
    if isinstance(config, dict):
        config = {key: value for key, value in config.items() if key != "compile_config"}
    described = (item for item in _objects(config) if item.get("module") not in own)
    return list(dict.fromkeys(sentence for item in described for sentence in _reasons(item)))


def _objects(config: Any) -> Iterator[dict[str, Any]]:
    """Every dict in the description, however deep."""
    pending = [config]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            yield item
            pending += reversed(list(item.values()))
        elif isinstance(item, list):
            pending += reversed(item)


def _reasons(item: dict[str, Any]) -> Iterator[str]:
    name, inner = item.get("class_name"), item.get("config")
    if not isinstance(name, str):
        return
    settings = inner if isinstance(inner, dict) else {}
    # A class may be registered under a package: what it is called within it decides.
    called = name.rpartition(">")[2]
    layer = f"layer {settings.get('name', called)!r}"
    if name == "__lambda__" or _is_marshalled(settings.get("function")):
        yield "it contains marshalled Python code"
    if called in _RUN_CODE:
        yield f"{layer} {_RUN_CODE[called]}"
    for key in _VOCABULARIES:
        if isinstance(settings.get(key), str) and settings[key]:
            yield f"{layer} reads the file {settings[key]!r}"
    if called in _TF_CALLS:
        yield from _tensorflow_call(layer, settings)
    if called == "TensorFlowOpLayer":
        yield from _tensorflow_node(layer, settings.get("node_def"))
    if name == "function":
        yield from _function(item)
    elif name not in _PLAIN_TYPES:
        yield from _foreign_class(item)


def _is_marshalled(function: Any) -> bool:
    """Whether a function is given as Keras 2 marshals one: code in base64, defaults, closure."""
    return isinstance(function, list) and bool(function) and isinstance(function[0], str)


def _function(item: dict[str, Any]) -> Iterator[str]:
    """A function by name: Keras looks it up among its own; older ones import any module that is named."""
    module, name = str(item.get("module") or "builtins"), str(item.get("config"))
    package, *rest = module.split(".")
    if package == "builtins":
        if _DANGEROUS_BUILTINS.fullmatch(name):
            yield f"it calls the Python function {name}"
    elif package not in _KERAS:
        if not _is_registered(item):
            yield f"it calls the function {module}.{name}"
    elif not _NOT_MODELLING.isdisjoint(rest):
        yield f"it calls the function {module}.{name}"


def _foreign_class(item: dict[str, Any]) -> Iterator[str]:
    module = item.get("module")
    if not module:
        return  # looked up among Keras' own classes and those that were registered
    package, *rest = str(module).split(".")
    if package in _KERAS:
        if not _NOT_MODELLING.isdisjoint(rest) and item["class_name"] not in _MODELLING_UTILITIES:
            yield f"it makes an object of the class {module}.{item['class_name']}"
    elif not _is_registered(item):
        yield f"it makes an object of the class {module}.{item['class_name']}"


def _is_registered(item: dict[str, Any]) -> bool:
    """Whether an object was registered by its own code, which must be there: `--custom-objects` brings it.

    A name alone proves nothing where the module is one that every Python has.
    """
    package = str(item.get("module") or "").partition(".")[0]
    is_own = package not in sys.stdlib_module_names or package in ("__main__", "builtins")
    return ">" in str(item.get("registered_name") or "") and is_own


def _tensorflow_call(layer: str, settings: dict[str, Any]) -> Iterator[str]:
    """A layer around a function of TensorFlow, named by its path in the package."""
    symbol = settings.get("function") or settings.get("cls_symbol")
    if not isinstance(symbol, str):
        yield f"{layer} calls something that is not named"
        return
    path = symbol.removeprefix("tf.").removeprefix("compat.v1.").removeprefix("_api.v2.")
    namespace, _, rest = path.rpartition(".")
    is_harmless = not namespace or _TF_NAMESPACES.fullmatch(path.partition(".")[0]) or path.startswith("io.decode_")
    if not is_harmless or _TF_REACHING.search(path.lower()) or operations.why(rest):
        yield f"{layer} calls tf.{path}"


def _tensorflow_node(layer: str, node: Any) -> Iterator[str]:
    """A layer around one operation, as early TensorFlow 2 wrote them: a node in JSON, or in the wire format."""
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
        if why is not None or name in operations.PRINTING | operations.DEBUGGING | operations.WITH_MODULE:
            yield f"{layer} {why or 'reaches beyond the graph'}: {name}"


def least_parameters(config: Any) -> int:
    """A lower bound of how many numbers the weights of a described model hold, from what its layers declare."""
    total = 0
    for item in _objects(config):
        settings = item.get("config")
        if not isinstance(settings, dict) or not isinstance(item.get("class_name"), str):
            continue
        outputs = _whole(settings.get("units")) or _whole(settings.get("filters"))
        if outputs:
            total += outputs * _last_dimension(item)
        total += _whole(settings.get("input_dim")) * _whole(settings.get("output_dim"))
    return total


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _last_dimension(item: dict[str, Any]) -> int:
    """How long the rows are that a layer was built for; 1 where the description does not say."""
    build = item.get("build_config")
    shape = build.get("input_shape") if isinstance(build, dict) else None
    last = shape[-1] if isinstance(shape, list) and shape else None
    return _whole(last) or 1
