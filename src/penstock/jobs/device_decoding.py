"""Which photos the device decodes: as `--decoder` says, or where it pays. If bits depend on it, the recipe has it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal

from penstock.core.job import Job
from penstock.core.records import Device, Placement, Recipe
from penstock.errors import DeviceError, OutputError, UsageError
from penstock.jobs.placement import Setting
from penstock.options.records import PredictOptions
from penstock.options.value_kinds import engine_share
from penstock.sources.images import engine
from penstock.sources.images.engine import EngineDecoder
from penstock.sources.images.resizing import Rendition
from penstock.sources.images.routing import has_same_pixels, may_have_engine

ENGINE_IN_LOADERS = 20.0
"""An engine decodes as many photos as so many loaders (one H200: 12,800 of 500 pixels a second; a loader: 600)."""
_LEFT_OF_A_LOADER = 0.8
"""Loaders also read the photos of the engine, and share their cores with the threads that drive a GPU."""
LEAST_ROWS = 30_000
"""A job with fewer rows does not make up for the time that an engine takes to start."""


def with_decoder(job: Job, setting: Setting, options: PredictOptions, recipe: Recipe | None) -> Job:
    """The job with the decoder that is asked for, or that pays; where the decoder decides bits, with the recipe's.

    Raises:
        DeviceError: The decoder cannot run here.
        OutputError: The job began with another decoder.
        UsageError: The decoder could decode nothing in this job.
    """
    rendition = Rendition.of(options.reading)
    settled = recipe if not has_same_pixels(rendition) else None
    share = _wanted_share(job, setting, options) if settled is None else _settled_share(settled, options.decoder)
    if not share:
        return job
    is_asked_for = options.decoder != "auto" and recipe is None
    problem = _problem_here(setting, options.decoder, is_resumed=settled is not None)
    if problem is not None:
        if settled is not None or is_asked_for:
            raise problem
        return job
    _check_job(job, rendition)
    if options.check:
        raise UsageError(
            "--check compares with answers of a CPU, which has no JPEG engine",
            received=f"--decoder {options.decoder} --check",
            hint="--decoder cpu",
        )
    return replace(job, decoder=EngineDecoder(replace(rendition, engine_share=share), is_asked_for))


def _settled_share(settled: Recipe, decoder: str) -> float:
    """The share that a job began with. A job that began with none, for lack of memory, keeps none even if asked."""
    share = settled.engine_share
    if share and engine_share(decoder) not in (None, share):
        raise OutputError(
            "the job was begun with another decoder, which decides the last bits of pixels",
            received=f"--decoder {decoder}",
            allowed=f"--decoder gpu:{Decimal(str(share)):f}",
        )
    return share


def _wanted_share(job: Job, setting: Setting, options: PredictOptions) -> float:
    asked = engine_share(options.decoder)
    if asked is not None:
        return asked
    is_wanted = options.decoder == "gpu" or _pays(job, setting, options)
    return usual_share(setting.placement) if is_wanted else 0.0


def usual_share(placement: Placement) -> float:
    """The share with which engines and loaders finish at the same time.

    A little more or less makes no difference: ResNet50 on an H200 with 15 loaders did 12,600 images/s with a share of
    0.42, 13,700 with 0.55 and with 0.62, and 13,600 with 0.7.
    """
    engines = ENGINE_IN_LOADERS * len({device.uuid for device in placement.devices})
    return round(engines / (engines + _LEFT_OF_A_LOADER * placement.most_loaders), 2)


def _pays(job: Job, setting: Setting, options: PredictOptions) -> bool:
    """Whether the engine decodes photos of a job that does not ask for it: only where that changes no pixel."""
    rendition = Rendition.of(options.reading)
    may_run = setting.device_kind == "gpu" and not setting.is_live and not options.check
    may_pay = may_run and has_same_pixels(rendition) and _is_fed(job, rendition) and engine.is_installed()
    return may_pay and job.source.traits.is_resumable and _has_rows(job, LEAST_ROWS)


def _has_rows(job: Job, least: int) -> bool:
    spans = job.source.divide(job.batch_size)
    return any(rows >= least for rows in itertools.accumulate(span.rows for span in spans))


def notes_of(job: Job, options: PredictOptions) -> tuple[str, ...]:
    """A line that says what decodes photos; none where loaders decode all of them as asked."""
    if job.decoder is not None:
        return (f"photos: the GPU decodes {job.decoder.share:.0%} of those that it takes, loaders the others",)
    if not options.decoder.startswith("gpu"):
        return ()
    is_same = has_same_pixels(Rendition.of(options.reading))
    why = "which changes no bit" if is_same else "as they have done in this job from its beginning"
    return (f"loaders decode all photos, {why}",)


def _problem_here(setting: Setting, decoder: str, *, is_resumed: bool) -> DeviceError | None:
    """Why no engine can run here; None where only a trial shows it."""
    begun = "the job was begun with a GPU that decodes its JPEGs, and" if is_resumed else f"--decoder {decoder}:"
    if setting.is_live or setting.device_kind != "gpu":
        where = "in this process" if setting.is_live else f"on {setting.placement.devices[0]}"
        return _no_gpu(f"{begun} the model runs {where}", is_resumed=is_resumed)
    if not engine.is_installed():
        return DeviceError(f"{begun} nvJPEG or CuPy is not installed", hint=engine.INSTALL)
    return None


def check_device(options: PredictOptions, find_devices: Callable[[], Sequence[Device]]) -> None:
    """Check, before anything is loaded, that a job for which an engine was asked runs on a GPU.

    Raises:
        DeviceError: The job runs elsewhere.
    """
    if options.decoder.startswith("gpu") and (device := find_devices()[0]).kind != "gpu":
        raise _no_gpu(f"--decoder {options.decoder}: the model runs on {device}", is_resumed=False)


def _no_gpu(problem: str, *, is_resumed: bool) -> DeviceError:
    otherwise = "--decoder cpu; or --devices gpu, with a runtime that `penstock devices` shows for it"
    return DeviceError(
        problem,
        allowed="a model file on an NVIDIA GPU with a JPEG engine",
        hint="go on with it where such a GPU is, and leave --devices out" if is_resumed else otherwise,
    )


def _check_job(job: Job, rendition: Rendition) -> None:
    if not _is_fed(job, rendition):
        raise UsageError(
            "no photo of this job can be decoded on a GPU",
            allowed="encoded images in colour that are fed as they are, resized to one size, without --fast-decode, "
            "and on Arm not by opencv-linear",
            hint="--decoder cpu",
        )


def _is_fed(job: Job, rendition: Rendition) -> bool:
    """Whether an input of the model is fed with photos that an engine may take."""
    if job.preprocess is not None or job.buckets or not may_have_engine(rendition):
        return False
    schema = job.source.schema()
    return any(
        len(each.columns) == 1
        and (column := schema.get(each.columns[0])) is not None
        and column.encoding == "image"
        and each.dtype == "uint8"
        and len(each.shape) == 3
        and None not in each.shape
        and each.shape[2] == 3
        for each in job.bindings
    )
