"""Who decodes photos: what was asked for, what the job began with, or what pays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.core.decoding import Undecoded
from penstock.core.job import Job
from penstock.core.messages import Asked
from penstock.core.records import Binding, Device, ModelFile, Placement, Recipe, Signature, TensorSpec
from penstock.errors import DeviceError, OutputError
from penstock.jobs import device_decoding
from penstock.jobs.decide import Decision, without_decoder
from penstock.jobs.device_decoding import check_device, notes_of, usual_share, with_decoder
from penstock.jobs.placement import Setting
from penstock.options.records import make_options
from penstock.sources.images import engine
from penstock.sources.images.coefficients import NOT_AS_SUMS
from penstock.sources.images.engine import EngineDecoder
from penstock.sources.images.files import ImageFiles
from tests.support.photos import draw_folder

GPU = Device("gpu", 0, "H200", uuid="GPU-0")
SETTING = Setting(
    "jax", ModelFile("model.keras", "keras", "digest", ("jax",)), 1, Placement((GPU,), 15, 4, most_loaders=15)
)
ON_CPU = replace(SETTING, placement=Placement((Device("cpu", 0, "CPU"),), 1, 1))
RECIPE = Recipe("jax", "gpu", 4, 1)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """12 photos, where 12 are many, for a GPU that has an engine."""
    draw_folder(tmp_path, 12)
    monkeypatch.setattr(device_decoding, "LEAST_ROWS", 12)
    monkeypatch.setattr(engine, "is_installed", lambda: True)
    source = ImageFiles(sorted(map(str, tmp_path.iterdir())))
    return Job(source, (Binding("x", ("image",), "uint8", (32, 40, 3)),), (), 4)


def share_of(job: Job, *, setting: Setting = SETTING, recipe: Recipe | None = None, **asked: Any) -> float:
    decided = with_decoder(job, setting, make_options(asked), recipe)
    return decided.decoder.share if decided.decoder is not None else 0.0


def test_engines_and_loaders_are_done_at_the_same_time() -> None:
    second = replace(GPU, index=1, uuid="GPU-1")
    assert usual_share(SETTING.placement) == pytest.approx(0.62, abs=0.01)
    assert usual_share(replace(SETTING.placement, devices=(GPU, GPU))) == usual_share(SETTING.placement)
    assert usual_share(Placement((GPU, second), 30, 4, most_loaders=30)) == usual_share(SETTING.placement)
    assert usual_share(Placement((GPU,), 63, 4, most_loaders=63)) < 0.3


@pytest.mark.parametrize(
    ("interpolation", "is_same"),
    [
        ("pillow-bilinear", True),
        ("pillow-bicubic", True),
        ("pillow-lanczos", True),
        ("torchvision", True),
        ("opencv-linear", False),
        ("opencv-area", False),
        ("keras", False),
    ],
)
def test_unasked_an_engine_decodes_only_what_it_makes_the_same_pixels_of(
    job: Job, interpolation: str, is_same: bool
) -> None:
    assert share_of(job, interpolation=interpolation) == (usual_share(SETTING.placement) if is_same else 0)
    assert not share_of(job, interpolation=interpolation, decoder="cpu")
    if interpolation not in NOT_AS_SUMS:
        assert share_of(job, interpolation=interpolation, decoder="gpu") == usual_share(SETTING.placement)
        assert share_of(job, interpolation=interpolation, decoder="gpu:0.3") == 0.3


def test_unasked_there_is_no_engine_in_a_short_job_on_a_cpu_without_its_library_or_with_a_check(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert share_of(job, interpolation="torchvision")
    assert not share_of(job, interpolation="torchvision", setting=ON_CPU)
    assert not share_of(job, interpolation="torchvision", check=True)
    with monkeypatch.context() as changed:
        changed.setattr(device_decoding, "LEAST_ROWS", 13)
        assert not share_of(job, interpolation="torchvision")
    monkeypatch.setattr(engine, "is_installed", lambda: False)
    assert not share_of(job, interpolation="torchvision")
    with pytest.raises(DeviceError, match="nvJPEG or CuPy is not installed"):
        share_of(job, decoder="gpu")


def test_a_resumed_job_has_the_share_that_it_began_with(job: Job) -> None:
    """Where its pixels are other ones; else who decodes is decided anew."""
    begun = replace(RECIPE, engine_share=0.4)
    assert not share_of(job, recipe=begun, decoder="cpu", interpolation="torchvision")
    assert share_of(job, recipe=RECIPE, interpolation="torchvision") == usual_share(SETTING.placement)
    assert not share_of(job, recipe=RECIPE, interpolation="torchvision", decoder="gpu", setting=ON_CPU)
    with pytest.raises(DeviceError, match="begun with a GPU that decodes its JPEGs, and the model runs on cpu:0"):
        share_of(job, recipe=begun, setting=ON_CPU)
    for decoder in ("auto", "gpu", "gpu:0.4"):
        assert share_of(job, recipe=begun, decoder=decoder) == 0.4
        assert not share_of(job, recipe=RECIPE, decoder=decoder)
    for decoder in ("cpu", "gpu:0.5"):
        with pytest.raises(OutputError, match="begun with another decoder"):
            share_of(job, recipe=begun, decoder=decoder)


@pytest.mark.parametrize("interpolation", ["torchvision", "keras"])
def test_a_recipe_has_the_share_only_where_bits_depend_on_it(job: Job, interpolation: str) -> None:
    options = make_options({"interpolation": interpolation, "decoder": "gpu:0.5"})
    decided = with_decoder(job, SETTING, options, None)
    signature = Signature((TensorSpec("x", "uint8", (32, 40, 3)),), (TensorSpec("y", "float32", ()),))
    begun = Decision(
        decided,
        SETTING,
        signature,
        options,
        is_resumed=False,
        is_size_settled=True,
        asked=Asked(),
        sample=next(iter(job.source.divide(4))),
        notes=notes_of(decided, options),
    )
    assert begun.recipe.engine_share == (0.5 if interpolation == "keras" else 0)
    assert begun.notes == ("photos: the GPU decodes 50% of those that it takes, loaders the others",)
    error = Undecoded("gpu:0 does not", received="no memory")
    without = without_decoder(begun, error)
    assert without.job.decoder is None
    assert without.notes == ("loaders decode all photos: gpu:0 does not (no memory)",)
    again = replace(begun, is_resumed=True)
    if interpolation == "torchvision":
        assert without_decoder(again, error).job.decoder is None
    else:
        with pytest.raises(DeviceError, match="begun with a GPU that decodes"):
            without_decoder(again, error)


def test_only_an_engine_that_was_asked_for_must_run(job: Job) -> None:
    for decoder in ("auto", "gpu"):
        decided = with_decoder(job, SETTING, make_options({"interpolation": "torchvision", "decoder": decoder}), None)
        assert isinstance(decided.decoder, EngineDecoder)
        assert decided.decoder.is_asked_for == (decoder == "gpu")


def test_an_engine_is_refused_before_anything_is_loaded_where_there_is_no_gpu() -> None:
    with pytest.raises(DeviceError, match=r"--decoder gpu:0\.5: the model runs on cpu:0"):
        check_device(make_options({"decoder": "gpu:0.5"}), lambda: [Device("cpu", 0)])
    check_device(make_options({"decoder": "gpu"}), lambda: [Device("gpu", 0)])
    check_device(make_options({}), lambda: [Device("cpu", 0)])
