"""Which photos are decoded on the device: asked for by `--decoder`, and fixed in the recipe."""

from __future__ import annotations

from dataclasses import replace

from penstock.core.job import Job
from penstock.core.records import Recipe
from penstock.errors import DeviceError, OutputError, UsageError
from penstock.jobs.placement import Setting
from penstock.options.records import PredictOptions
from penstock.options.value_kinds import engine_share
from penstock.sources.images import engine
from penstock.sources.images.engine import EngineDecoder
from penstock.sources.images.resizing import Rendition
from penstock.sources.images.routing import may_have_engine


def with_decoder(job: Job, setting: Setting, options: PredictOptions, recipe: Recipe | None) -> Job:
    """The job with the decoder that is asked for, or, of a resumed one, with that of its recipe.

    Raises:
        DeviceError: It cannot run here.
        OutputError: The job began with another one.
        UsageError: Nothing in this job could be decoded by it.
    """
    share = engine_share(options.decoder) if recipe is None else recipe.engine_share
    # A job that began without it, for want of memory, goes on so when it is asked for again.
    if recipe is not None and share and options.decoder != "auto" and engine_share(options.decoder) != share:
        raise OutputError(
            "the job was begun with another decoder, which decides the last bits of pixels",
            received=f"--decoder {options.decoder}",
            allowed=_in_words(share),
        )
    if not share:
        return job
    rendition = replace(Rendition.of(options.reading), engine_share=share)
    _check_here(setting, share, is_resumed=recipe is not None)
    _check_job(job, rendition)
    if options.check:
        raise UsageError(
            "--check compares with answers of a CPU, which has no JPEG engine",
            received=f"{_in_words(share)} --check",
            hint="--decoder cpu",
        )
    return replace(job, decoder=EngineDecoder(rendition))


def notes_of(options: PredictOptions, recipe: Recipe | None) -> tuple[str, ...]:
    """What a resumed job does otherwise than it is asked to."""
    is_without = recipe is not None and not recipe.engine_share and engine_share(options.decoder) > 0
    return ("loaders decode all photos, as they have done in this job from its beginning",) if is_without else ()


def _in_words(share: float) -> str:
    return "--decoder cpu" if not share else "--decoder gpu" if share == 1 else f"--decoder gpu:{share:g}"


def _check_here(setting: Setting, share: float, *, is_resumed: bool) -> None:
    begun = "the job was begun with a GPU that decodes its JPEGs, and" if is_resumed else f"{_in_words(share)}:"
    if setting.is_live or setting.device_kind != "gpu":
        where = "in this process" if setting.is_live else f"on {setting.placement.devices[0]}"
        raise DeviceError(
            f"{begun} the model runs {where}",
            allowed="a model file on a GPU",
            hint="run it on a machine with a GPU" if is_resumed else "--decoder cpu, or --devices gpu",
        )
    if not engine.is_installed():
        raise DeviceError(f"{begun} nvJPEG or CuPy is not installed", hint=engine.INSTALL)


def _check_job(job: Job, rendition: Rendition) -> None:
    schema = job.source.schema()
    is_fed = any(
        len(each.columns) == 1
        and (column := schema.get(each.columns[0])) is not None
        and column.encoding == "image"
        and each.dtype == "uint8"
        and len(each.shape) == 3
        and None not in each.shape
        and each.shape[2] == 3
        for each in job.bindings
    )
    if not is_fed or job.preprocess is not None or job.buckets or not may_have_engine(rendition):
        raise UsageError(
            "no photo of this job can be decoded on a GPU",
            allowed="encoded images in colour that are fed as they are, resized to one size, without --fast-decode, "
            "and on Arm not by opencv-linear",
            hint="--decoder cpu",
        )
