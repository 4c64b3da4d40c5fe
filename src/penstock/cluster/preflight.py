"""Checks before work: what a job needs of a node, found out there, and compared with what the driver has.

No framework is imported for this. A node that fits can read the input, has the model, and writes to the output that the
driver has locked, and not to a folder of the same name on a disk of its own.
"""

import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from typing import TypeVar

from penstock.cluster import parcels
from penstock.cluster.node_job import NodeJob
from penstock.core.kinds import installed_version, installed_versions, runtime, runtimes
from penstock.core.node_kinds import Misfit, kind_of
from penstock.core.records import ModelFile
from penstock.core.source import Source
from penstock.errors import DeviceError, InputError, ModelError, OutputError, PenstockError, UsageError, one_line
from penstock.jobs.open import open_model
from penstock.jobs.placement import devices_for
from penstock.models.digest import of_module
from penstock.options.records import PredictOptions
from penstock.pool.devices import inventory
from penstock.runtimes.catalog import choose_runtime
from penstock.sources.files import unchanged
from penstock.sources.files.paths import read_bytes
from penstock.storage.disk import INTERNAL, output_errors
from penstock.storage.places import Place, place_of

_LOOKED_AT = 16
_KERAS = "keras"
_AS_HERE = "as on the driver"
_CHECK = f"{INTERNAL}/check-"
"""The beginning of the names of files that nodes write to the output and remove again, to see that they can."""
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Findings:
    """What a check on a node found.

    Args:
        misfits: What does not fit the job.
        kind: The kind of the node; empty where it has no device or no framework for the job.
        versions: The versions of the packages that run the model there.
        model: The model as it is there: under its own path, or as a parcel.
    """

    misfits: tuple[Misfit, ...]
    kind: str
    versions: dict[str, str]
    model: ModelFile | None = None


def base_versions() -> dict[str, str]:
    """The versions that must agree before any other call: one version may not read what another has pickled."""
    return {
        "Python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "penstock": metadata.version("penstock"),
    }


def modules_of(model: ModelFile, options: PredictOptions) -> dict[str, str]:
    """The user's own modules that a job imports by name, with their digests."""
    functions = (options.preprocess, options.preprocess_row, options.postprocess)
    names = [each.partition(":")[0] for each in functions if isinstance(each, str)]
    if model.kind == "builder" and model.payload is None:
        names.append(model.location.partition(":")[0])
    digests = {name: of_module(name) for name in (*names, *model.custom_objects)}
    return {name: digest for name, digest in digests.items() if digest is not None}


class Comparison:
    """Compares versions that must be alike everywhere: with the driver's or, where it has none, the first node's."""

    def __init__(self) -> None:
        packages = [entry.package for entry in runtimes().values()]
        known = {each.distributions[0]: each.version for each in packages} | {_KERAS: installed_version(_KERAS)}
        self._versions = base_versions() | {name: version for name, version in known.items() if version is not None}

    def misfits(self, versions: dict[str, str]) -> tuple[Misfit, ...]:
        for name, version in versions.items():
            self._versions.setdefault(name, installed_version(name) or version)
        wanted = {name: self._versions[name] for name in versions}
        return tuple(Misfit(name, found, wanted[name]) for name, found in versions.items() if found != wanted[name])


def check(job: NodeJob, name: str) -> Findings:
    """Check everything that a job needs, on the node of this name."""
    misfits: list[Misfit] = []
    kind = ""
    versions: dict[str, str] = {}
    try:
        # A runtime that the user asked for may run the converted step of a model that it cannot load.
        chosen = job.options.runtime or choose_runtime(job.model, None)
        versions = _versions_of(chosen) | installed_versions(job.source.traits.packages)
        kind = kind_of(devices_for(job.options, None, None, chosen)[0], inventory.usable_cores())
    except DeviceError as error:
        misfits.append(Misfit("framework" if not versions else "devices", _said(error), error.hint or "one that fits"))
    misfits += [misfit for misfit in (_of_output(job, name), _of_input(job.source)) if misfit is not None]
    misfits += _of_modules(job.modules)
    model = _located(job)
    if isinstance(model, Misfit):
        misfits.append(model)
        return Findings(tuple(misfits), kind, versions)
    return Findings(tuple(misfits), kind, versions, model)


def remove_checks(place: Place) -> None:
    """Remove what nodes that died during their check have left."""
    with contextlib.suppress(OutputError, OSError):  # the run ends with an error of its own then
        place.remove([name for name in place.sizes(INTERNAL) if name.startswith(_CHECK)])


def _versions_of(chosen: str) -> dict[str, str]:
    package = runtime(chosen).package
    if not package.is_installed:
        raise DeviceError(f"{package.distributions[0]} is not installed", hint=package.install)
    keras = installed_version(_KERAS) if runtime(chosen).loader == _KERAS else None
    return {package.distributions[0]: package.version or ""} | ({_KERAS: keras} if keras is not None else {})


def _of_output(job: NodeJob, name: str) -> Misfit | None:
    """Check that a node sees the folder that the driver has locked, and may write there."""
    place = place_of(job.output)
    wanted = f"{job.output} of the driver: a folder that all nodes share, or a URL"
    try:
        with output_errors():
            if place.mark() != job.mark:
                return Misfit("output", "not the same folder, or none", wanted, OutputError)
            probe = f"{_CHECK}{name}"
            place.write(probe, b"penstock\n")
            place.remove([probe])
    except OutputError as error:
        return Misfit("output", _said(error), "a place to write to", OutputError)
    return None


def _of_input(source: Source) -> Misfit | None:
    """Check that some of the files of the input can be read, and are as the driver listed them."""
    try:
        for path in _some(source.paths):
            read_bytes(path, 0, 1)
    except PenstockError as error:
        return Misfit("input", _said(error), "readable under the same path or URL", InputError)
    except OSError as error:
        found = f"{path}: {error.strerror or one_line(error)}"
        return Misfit("input", found, "readable under the same path or URL", InputError)
    changed = unchanged.find_changed(_some(source.fragments()))
    if changed is not None:
        found = f"{changed.problem.rpartition(': ')[2]}: {changed.received}"
        return Misfit("input", found, _AS_HERE, InputError)
    return None


def _of_modules(modules: dict[str, str]) -> list[Misfit]:
    for name, digest in modules.items():
        if of_module(name) is None:
            parcels.make_importable(digest)
    found = {name: of_module(name) for name in modules}
    said = {name: "not found" if found[name] is None else "other content" for name in modules}
    others = [name for name in modules if found[name] != modules[name]]
    return [
        Misfit(f"module {name}", said[name], _AS_HERE, UsageError, modules[name] if found[name] is None else "")
        for name in others
    ]


def _located(job: NodeJob) -> ModelFile | Misfit:
    """The model as it is on this machine, with the same content; or as it travels with the job."""
    if job.model.payload is not None:
        return job.model
    own = job.model.location
    sent = parcels.kept(job.model.digest, os.path.basename(own))
    found: list[str] = []
    for location in filter(None, (own, sent)):
        try:
            _, digest, _ = open_model(location, job.options)
        except PenstockError as error:
            found.append(_said(error))
        else:
            if digest == job.model.digest:
                return replace(job.model, location=location)
            found.append(f"{location}: other content")
    return Misfit("model", found[0], _AS_HERE, ModelError, job.model.digest)


def _some(items: Sequence[_Item]) -> list[_Item]:
    """The first, the last, and some between them."""
    if len(items) <= _LOOKED_AT:
        return list(items)
    return [items[number * (len(items) - 1) // (_LOOKED_AT - 1)] for number in range(_LOOKED_AT)]


def _said(error: PenstockError) -> str:
    return ": ".join(filter(None, (error.problem, error.received)))
