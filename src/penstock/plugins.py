"""Plugins: sources, sinks, runtimes and model formats by name, those of penstock and those of other packages.

A plugin is one object: a record, or a sink. Penstock's own plugins are in the table below. Other packages list theirs
as entry points of the same groups, in the same form:

    [project.entry-points."penstock.sinks"]
    toy = "penstock_toy.sink:SINK"

`names` imports no plugin; `load` imports one, and `load_all` those of a group. A plugin that cannot be imported, or
whose name is taken, is reported together with its package; the others still load.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

from penstock.errors import DeviceError, UsageError, one_line

SOURCES, SINKS, RUNTIMES, MODELS = "penstock.sources", "penstock.sinks", "penstock.runtimes", "penstock.models"

BUILT_IN: Mapping[str, Mapping[str, str]] = {
    SOURCES: {
        "parquet": "penstock.sources.tables.parquet:FORMAT",
        "arrow": "penstock.sources.tables.arrow:FORMAT",
        "npy": "penstock.sources.tables.npy:FORMAT",
        "csv": "penstock.sources.tables.csv:FORMAT",
        "jsonl": "penstock.sources.tables.jsonl:FORMAT",
        "tfrecord": "penstock.sources.tfrecord.files:FORMAT",
        "images": "penstock.sources.images.files:FORMAT",
        "tar": "penstock.sources.tar.files:FORMAT",
        "audio": "penstock.sources.audio.files:FORMAT",
        "text": "penstock.sources.tables.text:FORMAT",
    },
    SINKS: {
        "parquet": "penstock.sinks.parquet:SINK",
        "npy": "penstock.sinks.npy:SINK",
        "jsonl": "penstock.sinks.jsonl:SINK",
        "csv": "penstock.sinks.csv:SINK",
        "arrow": "penstock.sinks.arrow:SINK",
    },
    RUNTIMES: {
        "tensorflow": "penstock.runtimes.tensorflow.runtime:RUNTIME",
        "tensorflow-xla": "penstock.runtimes.tensorflow.runtime:RUNTIME_XLA",
        "jax": "penstock.runtimes.jax.runtime:RUNTIME",
        "torch": "penstock.runtimes.torch:RUNTIME",
        "torch-compiled": "penstock.runtimes.torch:RUNTIME_COMPILED",
        "tf_keras": "penstock.runtimes.keras.tf_keras:RUNTIME",
        "onnx": "penstock.runtimes.onnx.runtime:RUNTIME",
        "onnx-tensorrt": "penstock.runtimes.onnx.runtime:RUNTIME_TENSORRT",
        "openvino": "penstock.runtimes.openvino:RUNTIME",
        "tflite": "penstock.runtimes.tflite:RUNTIME",
        "stablehlo": "penstock.runtimes.jax.stablehlo:RUNTIME",
    },
    MODELS: {
        "keras": "penstock.models.formats.keras:FORMAT",
        "h5": "penstock.models.formats.h5:FORMAT",
        "saved_model": "penstock.models.formats.saved_model:FORMAT",
        "frozen_graph": "penstock.models.formats.frozen_graph:FORMAT",
        "onnx": "penstock.models.formats.onnx:FORMAT",
        "tflite": "penstock.models.formats.tflite:FORMAT",
        "stablehlo": "penstock.models.formats.stablehlo:FORMAT",
        "jax_export": "penstock.models.formats.jax_export:FORMAT",
        "builder": "penstock.models.formats.builder:FORMAT",
    },
}
"""Names in the order in which they are listed and tried; other packages' plugins come after these."""

Kind = TypeVar("Kind")
_log = logging.getLogger("penstock")


@dataclass(frozen=True)
class _Plugin:
    """What another package registers. `package` is its name and version; `value` is `module:attribute`."""

    package: str
    value: str


def names(group: str) -> tuple[str, ...]:
    """The names of a group: penstock's own first, in their order, then other packages', sorted."""
    return (*BUILT_IN[group], *sorted(_others(group)))


def is_known(group: str, name: str) -> bool:
    """Whether a group has this name. Installed packages are searched only for names that are not penstock's own."""
    return name in BUILT_IN[group] or name in _others(group)


def load(group: str, name: str, kind: Any = object) -> Any:
    """The object behind a name, which must be of a kind (a class, or a protocol that can be checked).

    Raises:
        UsageError: The group has no such name.
        DeviceError: The plugin cannot be imported, is of another kind, or two packages use its name.
    """
    built_in = BUILT_IN[group].get(name)
    if built_in is not None:
        return _imported(built_in)
    plugins = _others(group).get(name)
    if plugins is None:
        raise UsageError(f"no such plugin in {group}", received=name, allowed=", ".join(names(group)))
    if len(plugins) > 1:
        raise DeviceError(
            f"two packages bring a plugin of one name to {group}",
            received=f"{name}: {', '.join(plugin.package for plugin in plugins)}",
            hint="uninstall one of them",
        )
    try:
        loaded = _imported(plugins[0].value)
        if not isinstance(loaded, kind):
            raise TypeError(f"this is no {kind.__name__}")
        return loaded
    except (Exception, SystemExit) as error:  # whatever a foreign module does when it is imported
        raise DeviceError(
            f"the plugin {name} of the package {plugins[0].package} cannot be loaded",
            received=f"{plugins[0].value}: {one_line(error)}",
            hint="update or uninstall that package",
        ) from error


@cache
def load_all(group: str, kind: type[Kind]) -> dict[str, Kind]:
    """The objects of a group in the order of `names`. A plugin that cannot be loaded is reported and left out."""
    loaded: dict[str, Kind] = {}
    for name in names(group):
        try:
            loaded[name] = load(group, name, kind)
        except DeviceError as error:
            if name in BUILT_IN[group]:
                raise
            report(error)
    return loaded


def report(error: DeviceError) -> None:
    """Log a warning about a plugin that is left out."""
    _log.warning("%s: %s", error.problem, error.received)


def _imported(value: str) -> Any:
    module, _, attribute = value.partition(":")
    return getattr(import_module(module), attribute)


@cache
def _others(group: str) -> dict[str, tuple[_Plugin, ...]]:
    """What other packages register in a group, by name. They cannot take the name of a plugin of penstock's own."""
    from importlib.metadata import entry_points  # slow to import, and seldom needed

    others: dict[str, tuple[_Plugin, ...]] = {}
    for point in entry_points(group=group):
        package = f"{point.dist.name} {point.dist.version}" if point.dist else "unknown"
        if point.name in BUILT_IN[group]:
            problem = f"the plugin {point.name} of the package {package} is not used"
            report(DeviceError(problem, received=f"{group} has a plugin of this name"))
        else:
            others[point.name] = (*others.get(point.name, ()), _Plugin(package, point.value))
    return others
