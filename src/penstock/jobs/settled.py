"""What a started job settles for its manifest, and what a resumed one takes from there: records without processes."""

import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.core import division, kinds
from penstock.core.node_kinds import kind_of
from penstock.core.protocols import Source
from penstock.core.records import Binding, Device, OutputSchema, Recipe
from penstock.errors import DeviceError
from penstock.jobs import output_columns
from penstock.jobs.bring_up import Started
from penstock.jobs.decide import Resumed
from penstock.jobs.placement import devices_for
from penstock.options.records import PredictOptions
from penstock.pool.devices import inventory
from penstock.sources.images import engine
from penstock.storage.manifest import Manifest, NodeKind


@dataclass(frozen=True)
class Settled:
    """All that a manifest takes from a job that was brought up.

    Args:
        source: The input as the model takes it.
        recipe: What decides the bits.
        split: Replicas on each device, and batches in flight in each.
        bindings: Which columns feed which input.
        schema: What is written.
        columns: What is read of the input.
        weights: A digest, for a model that a function built.
        division: The rows of a span, and the most rows where the format needs larger spans.
        part_rows: The most rows of a part.
        is_streamed: Whether spans are not known beforehand and cannot be read again.
        kind: The kind of machine that settled it.
        versions: The versions of what runs it there.
    """

    source: Source
    recipe: Recipe
    split: tuple[int, int]
    bindings: tuple[Binding, ...]
    schema: OutputSchema
    columns: tuple[str, ...]
    weights: str | None
    division: tuple[int, int]
    part_rows: int
    is_streamed: bool
    kind: str
    versions: dict[str, str]

    @property
    def of_kind(self) -> NodeKind:
        """How machines of this kind run the job."""
        return NodeKind(self.recipe, self.split, self.versions)


def kind_here(started: Started) -> str:
    """The kind of this machine, with the devices that a job runs on."""
    return kind_of(started.placement.devices[0], inventory.usable_cores())


def kind_for(manifest: Manifest, options: PredictOptions) -> str:
    """The kind in the manifest whose recipe this machine goes on with: its own, or one with the same kind of device.

    Empty where there is no such kind: then the job goes on as it began, or cannot go on.
    """
    here = {name: _device_for(kind, options) for name, kind in manifest.kinds.items()}
    cores = inventory.usable_cores()
    own = [name for name, device in here.items() if device is not None and kind_of(device, cores) == name]
    return next(iter([*own, *(name for name, device in here.items() if device is not None)]), "")


def can_run(kind: NodeKind, options: PredictOptions) -> bool:
    """Whether this machine has the kind of device that a recipe is for."""
    return _device_for(kind, options) is not None


def _device_for(kind: NodeKind, options: PredictOptions) -> Device | None:
    try:
        device = devices_for(options, kind.recipe, None, kind.recipe.runtime)[0]
    except DeviceError:
        return None
    return device if device.kind == kind.recipe.device_kind else None


def versions_for(recipe: Recipe, packages: Iterable[str]) -> dict[str, str]:
    """The versions that decide the bits of a recipe."""
    return versions(recipe.runtime, packages) | ({"nvjpeg": engine.version()} if recipe.engine_share else {})


def versions(runtime: str, packages: Iterable[str] = ()) -> dict[str, str]:
    """The versions that a manifest records; of `packages`, those that are installed."""
    known = {"python": platform.python_version(), "platform": sys.platform}
    found = {name: kinds.installed_version(name) for name in ("penstock", "numpy", "pyarrow", "keras")}
    found[runtime] = kinds.runtime(runtime).package.version
    told = {name: version or "not installed as a package" for name, version in found.items()}
    return kinds.installed_versions(packages) | known | told


def changed_versions(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """What has another version than when a job began, in words; empty where nothing has.

    >>> changed_versions({"keras": "3.5", "pillow": "11.0"}, {"keras": "3.6", "pillow": "11.0", "jax": "0.5"})
    'keras 3.5 is 3.6 now'
    """
    changed = [name for name in now if name in before and now[name] != before[name]]
    return ", ".join(f"{name} {before[name]} is {now[name]} now" for name in changed)


def settled_by(started: Started) -> Settled:
    """What a started job, with its finisher, settles."""
    schema = output_columns.output_schema(started, started.options)
    part_rows = started.options.part_rows
    return Settled(
        started.source,
        started.recipe,
        started.split,
        started.job.bindings,
        schema,
        started.job.columns,
        started.signature.weights,
        started.division(part_rows),
        part_rows or division.rows_per_part(schema.row_bytes, started.rows_per_second()),
        started.is_streamed,
        kind_here(started),
        versions_for(started.recipe, started.source.traits.packages),
    )


def resumed_from(manifest: Manifest, kind: str = "", *, is_append: bool = False) -> Resumed:
    """What is fixed for a run that goes on with a job, on this kind of node, or appends to it."""
    sample = None if is_append else manifest.spans[manifest.generations[-1].first_span]
    settings = manifest.kind(kind)
    return Resumed(settings.recipe, manifest.bindings, sample, manifest.weights, settings.split)
