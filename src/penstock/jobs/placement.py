"""Placement: the devices, replicas, threads and loaders of a job. Of these only threads may change an answer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from penstock.core import kinds
from penstock.core.job import Job
from penstock.core.plans import Choice
from penstock.core.records import STRING, Device, ModelFile, Placement, Recipe
from penstock.jobs.run_context import RunContext
from penstock.models.belongings import num_bytes
from penstock.options.records import DeviceRequest, PredictOptions
from penstock.pool.devices import inventory as devices
from penstock.pool.devices.lease import take
from penstock.runtimes.keras.live import LiveModel

_MOST_LOADER_THREADS = 8
_MOST_LOADERS_AT_FIRST = 32
"""The most loaders that feed a GPU at first; more start when it waits for data."""
_GPU_LANES = 4
_LEAST_GPU_BYTES = 1 << 29


@dataclass(frozen=True)
class Setting:
    """How the model is held: the runtime, the file that it loads, its threads and its placement."""

    runtime: str
    model: ModelFile | None
    """The file that processes load; None for a live model, which runs in this process."""
    threads: int
    placement: Placement

    @property
    def is_live(self) -> bool:
        return self.model is None

    @property
    def device_kind(self) -> str:
        return self.placement.devices[0].kind

    def choice(self, batch_size: int, lanes: int) -> Choice:
        """The choice of this setting, with batches of this size, so many of them in flight."""
        assert self.model is not None
        converted = self.model.location if self.model.kind == "converted" else None
        replicas, precision = self.placement.replicas_per_device, self.model.precision
        return Choice(self.runtime, batch_size, self.threads, replicas, lanes, precision, converted)

    def placed(self, **changes: Any) -> Setting:
        """The setting with some fields of its placement changed."""
        return replace(self, placement=replace(self.placement, **changes))


def devices_for(options: PredictOptions, recipe: Recipe | None, choice: Choice | None, runtime: str) -> list[Device]:
    """One device for each replica."""
    request = _devices_wanted(options, recipe, runtime)
    replicas = options.replicas_per_device or (choice.replicas if choice is not None else 1)
    if options.replicas_per_device is None:
        if request.cpu_replicas is not None:
            replicas = 1  # cpu:4 says how many
        elif recipe is not None and recipe.device_kind == "cpu":
            # The recipe fixes the threads of a replica: there are as many replicas as fill the cores.
            replicas = max(1, devices.usable_cores() // recipe.threads)
    return devices.choose(request, replicas, options.memory_fraction)


def threads_for(options: PredictOptions, recipe: Recipe | None, choice: Choice | None, placement: Placement) -> int:
    if recipe is not None:
        return recipe.threads
    if choice is not None:
        return choice.threads
    return options.threads or devices.share_of_cores(placement.replicas)


def _devices_wanted(options: PredictOptions, recipe: Recipe | None, runtime: str) -> DeviceRequest:
    """The devices that were asked for. Where none were, a resumed run stays on the kind of device it began on."""
    if recipe is not None and options.devices.kind == "all":
        return DeviceRequest(recipe.device_kind)
    if options.devices.kind == "all" and "gpu" not in kinds.runtime(runtime).device_kinds:
        return DeviceRequest("cpu")
    return options.devices


@contextlib.contextmanager
def leased(chosen: list[Device], model: ModelFile, fraction: float, context: RunContext) -> Iterator[list[Device]]:
    """Reserve the memory of GPUs that other runs leave free, while the block lasts. A CPU needs no lease.

    Raises:
        DeviceError: The model does not fit, or not in so many replicas.
    """
    least = _LEAST_GPU_BYTES + 2 * num_bytes(model.location)
    with contextlib.ExitStack() as leases:
        bytes_of: dict[str | None, int] = {}
        for device in {device.uuid: device for device in chosen if device.kind == "gpu"}.values():
            lease = take(
                device,
                least_bytes=least,
                fraction=fraction,
                say=context.note,
                is_stopped=lambda: context.stop.is_raised,
            )
            leases.callback(lease.close)
            bytes_of[device.uuid] = lease.num_bytes
        shared = [
            replace(each, memory_limit=bytes_of[each.uuid] // sum(other.uuid == each.uuid for other in chosen))
            if each.kind == "gpu"
            else each
            for each in chosen
        ]
        devices.check_room(shared, least)
        yield shared


def with_loaders(placement: Placement, job: Job, wanted: int | None) -> Placement:
    """The placement with loaders: threads of the replicas where libraries read, processes where Python code runs for
    every row (images, audio, the user's function).

    On a CPU loaders take cores from the model, so there are few until replicas wait for data. A GPU is fed from
    many cores at once.
    """
    if not needs_processes(job):
        return placement if wanted is None else replace(placement, loaders=wanted)
    cores = devices.usable_cores()
    if wanted is not None:
        start = most = wanted
    elif placement.devices[0].kind == "gpu":
        most = max(1, cores - placement.replicas)
        start = min(most, _MOST_LOADERS_AT_FIRST)
    else:
        start, most = max(1, cores // 4), cores
    return replace(placement, loaders=start, most_loaders=most, has_loader_processes=True)


def needs_processes(job: Job) -> bool:
    """Whether loading runs Python code for every row."""
    if job.preprocess is not None or job.source.traits.runs_python:
        return True
    schema = job.source.schema()
    fed = [schema[name] for binding in job.bindings if binding.dtype != STRING for name in binding.columns]
    return any(spec.encoding is not None for spec in fed)


def placement_on(chosen: list[Device], choice: Choice | None = None) -> Placement:
    """A replica on each device, with the threads that read and run side by side in it.

    Reading releases the GIL, so loaders up to the replica's share of the cores help; on a CPU they share the cores
    with the model, and two lanes are enough to hide the copies.
    """
    share = devices.share_of_cores(len(chosen))
    lanes = _GPU_LANES if chosen[0].kind == "gpu" else min(2, share)
    if choice is not None:
        lanes = choice.lanes
    return Placement(tuple(chosen), loaders=min(_MOST_LOADER_THREADS, max(1, share)), lanes=lanes)


def embedded_placement(model: LiveModel) -> Placement:
    # Two lanes even on one core: while one converts its answer, the other computes.
    lanes = _GPU_LANES if model.devices[0].kind == "gpu" else 2
    return Placement(tuple(model.devices), loaders=1, lanes=lanes)
