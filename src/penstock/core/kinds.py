"""Records that describe each source, runtime and model format. Every table of them derives from these.

A record stands beside the code that it describes; `penstock.plugins` finds it by name. A sink needs no record: the
`Sink` itself says what its parts are called.
"""

import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from typing import Protocol

from penstock import plugins
from penstock.core.protocols import Runtime, Sink, Source
from penstock.core.records import ModelFile
from penstock.errors import DeviceError
from penstock.options.records import ReadOptions


@dataclass(frozen=True)
class SourceFormat:
    """Files of one format.

    Args:
        suffixes: How their names end, in lower case with the dot.
        open: Makes the source from paths and the options of reading; it uses the options that concern it.
        is_row_per_file: Each file is a row: one that cannot be read is a failed row, not the end of the job.
        is_last_resort: Files of a folder are taken only where the folder holds no file of another format.
        recognises: Says whether a file whose suffix belongs to no format is of this format.
        open_beside: As `open`; its last argument names a few files of other formats in the same folder, which are left
            out.
    """

    suffixes: tuple[str, ...]
    open: Callable[[Sequence[str], ReadOptions], Source]
    is_row_per_file: bool = False
    is_last_resort: bool = False
    recognises: Callable[[str], bool] | None = None
    open_beside: Callable[[Sequence[str], ReadOptions, Sequence[str]], Source] | None = None


@dataclass(frozen=True)
class FileFacts:
    """What a model's file says without being loaded.

    Args:
        writer: The framework and version that wrote it, as far as the file says.
        num_bytes: What has to be read to load it.
        needs_trust: Sentences that say what the model does that needs trust. Empty for a file that only computes.
        notes: Lines that are shown to the user.
    """

    writer: str | None
    num_bytes: int
    needs_trust: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Recognise(Protocol):
    """Opens a model of one format.

    `own` are modules of its classes, which the user named. None means another format; ModelError means a model of this
    format that is damaged or needs trust.
    """

    def __call__(
        self, location: str, *, trust: bool = False, signature: str | None = None, own: tuple[str, ...] = ()
    ) -> ModelFile | None: ...


@dataclass(frozen=True)
class ModelFormat:
    """Models of one format.

    Args:
        kind: The kind of the `ModelFile` that it gives.
        looks_like: How people recognise it: a suffix with its dot, or a few words.
        recognise: Opens a model of this format.
        facts: What the file of such a model says about itself.
        has_steps: A runtime that `writes_steps` can convert it. (Not so for a function that builds a model: its weights
            are unknown before it runs, and an earlier conversion may hold other weights.)
    """

    kind: str
    looks_like: str
    recognise: Recognise
    facts: Callable[[ModelFile], FileFacts]
    has_steps: bool = False


def installed_version(distribution: str) -> str | None:
    """The version of the distribution with this name in a package index; None where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def installed_versions(distributions: Iterable[str]) -> dict[str, str]:
    """The versions of those that are installed."""
    found = {name: installed_version(name) for name in distributions}
    return {name: version for name, version in found.items() if version is not None}


@dataclass(frozen=True)
class Package:
    """The library behind a runtime.

    Args:
        modules: What is imported; one of them is enough.
        distributions: What they are called in a package index, in the same order.
        install: The line that installs it.
    """

    modules: tuple[str, ...]
    distributions: tuple[str, ...]
    install: str

    @property
    def is_installed(self) -> bool:
        """Found out without importing it."""
        return self.version is not None

    @property
    def version(self) -> str | None:
        for module, distribution in zip(self.modules, self.distributions, strict=True):
            # Another distribution may bring the module: onnxruntime-gpu.
            if _is_there(module) and (version := installed_version(distribution)) is not None:
                return version
        return None

    @property
    def described(self) -> str:
        """What is installed, by its own name: `onnxruntime 1.31.1`."""
        modules = zip(self.modules, self.distributions, strict=True)
        names = [distribution for module, distribution in modules if _is_there(module)]
        return f"{names[0]} {self.version}" if names else "nothing"


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # the package that a module is in is missing, or was half imported
        return False


CONVERTER = Package(("tf2onnx",), ("tf2onnx",), "pip install 'penstock[convert]'")
"""What writes the step of a runtime as ONNX, for the runtimes that read that."""


@dataclass(frozen=True)
class RuntimeEntry:
    """A way to execute models.

    Args:
        make: Makes the runtime. Neither this nor importing the record imports a framework.
        package: The library that it needs.
        device_kinds: Where it runs.
        kinds: Kinds of models that it executes besides those whose formats name it.
        variant_of: A runtime whose models it executes, in its own way.
        rank: By kind of device, its place in the order in which a plan tries runtimes, the lowest first. A plan does
            not try a runtime that has no rank there.
        usual_gain: How many times as fast as TensorFlow it usually is on a CPU, by what rows look like
            (`core.tuning.family`): a search expects this before it has measured anything.
        gpu_probe: Python code that prints how many GPUs the library sees.
        loader: The library that loads the models. Where one runtime cannot load a model, others with this loader
            cannot either.
        compiles_each_size: It compiles anew for each shape of batches: rows of many sizes keep it busy.
        reads_steps: It executes steps that were converted to ONNX.
        writes_steps: Its steps can be converted to ONNX.
        narrows: The dtypes of inputs that it cuts down to fewer bits.
        has_float64: It computes in float64 where the model does.
    """

    make: Callable[[], Runtime]
    package: Package
    device_kinds: tuple[str, ...] = ("gpu", "cpu")
    kinds: tuple[str, ...] = ()
    variant_of: str | None = None
    rank: Mapping[str, int] = field(default_factory=dict)
    usual_gain: Mapping[str, float] = field(default_factory=dict)
    gpu_probe: str | None = None
    loader: str | None = None
    compiles_each_size: bool = False
    reads_steps: bool = False
    writes_steps: bool = False
    narrows: tuple[str, ...] = ()
    has_float64: bool = True


def sink(name: str) -> Sink:
    """The sink of `--format`."""
    made: Sink = plugins.load(plugins.SINKS, name, Sink)
    return made


def runtime(name: str) -> RuntimeEntry:
    """The runtime of `--runtime`."""
    entry: RuntimeEntry = plugins.load(plugins.RUNTIMES, name, RuntimeEntry)
    return entry


def runtimes() -> dict[str, RuntimeEntry]:
    """All runtimes by name."""
    return plugins.load_all(plugins.RUNTIMES, RuntimeEntry)


def missing_to_convert() -> str | None:
    """What is not installed and is needed to convert steps, and how to install it; None where all is there.

    Conversion needs a runtime that writes steps, and the converter.
    """
    writers = [entry.package for entry in runtimes().values() if entry.writes_steps]
    needed = [next((package for package in writers if package.is_installed), writers[0]), CONVERTER]
    missing = [package for package in needed if not package.is_installed]
    names = " and ".join(package.distributions[0] for package in missing)
    return f"{names}: {', '.join(package.install for package in missing)}" if missing else None


@cache
def source_formats() -> dict[str, SourceFormat]:
    """All formats of sources by name. If two formats have a suffix, the first one gets it, and this is reported."""
    formats = plugins.load_all(plugins.SOURCES, SourceFormat)
    owners: dict[str, str] = {}
    for name, each in formats.items():
        for suffix in each.suffixes:
            if owners.setdefault(suffix, name) != name:
                problem = f"the source {name} does not read {suffix} files"
                plugins.report(DeviceError(problem, received=f"the source {owners[suffix]} reads them"))
    return formats


def model_formats() -> dict[str, ModelFormat]:
    """All formats of models by name, in the order in which they are tried."""
    return plugins.load_all(plugins.MODELS, ModelFormat)
