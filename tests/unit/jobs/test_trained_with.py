"""A job says where it feeds a model otherwise than training did."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.jobs.steps import as_request
from penstock.jobs.trained_with import fed_otherwise
from penstock.options.records import make_options
from penstock.storage.fit_manifest import FitManifest
from penstock.storage.places import place_of


def trained(folder: Path, **given: object) -> str:
    """The path of a model beside the manifest of a training job."""
    (folder / "_penstock").mkdir(exist_ok=True)
    request = as_request(make_options(given))
    FitManifest(request, {}, "", "", (), "cpu:1", 1, "jax").save(place_of(str(folder)))
    return str(folder / "model.keras")


@pytest.mark.parametrize(
    ("then", "now", "told"),
    [
        ({}, {}, ""),
        ({"preset": "scale-1-1"}, {"preset": "scale-1-1"}, ""),
        ({"scale": (0.5, 1.0), "fast_decode": True}, {}, "--scale 0.5,1 --fast-decode"),
        ({"image_size": (24, 32)}, {"image_size": (32, 32)}, "--image-size 24x32"),
        ({}, {"preset": "scale-1-1", "resize": "crop"}, "no --preset --resize stretch"),
        ({"preprocess": "json:dumps"}, {"preprocess": "json:loads"}, "--preprocess json:dumps"),
    ],
)
def test_options_that_differ_are_named(
    tmp_path: Path, then: dict[str, object], now: dict[str, object], told: str
) -> None:
    lines = fed_otherwise(trained(tmp_path, **then), make_options(now))
    assert lines == (
        [f"the model was trained with {told}, and this job feeds it otherwise: give the same options"] if told else []
    )


def test_models_of_others_and_damaged_manifests_say_nothing(tmp_path: Path) -> None:
    options = make_options({"preset": "scale-1-1"})
    assert fed_otherwise(str(tmp_path / "model.keras"), options) == fed_otherwise(None, options) == []
    assert fed_otherwise("s3://models/model.keras", options) == []
    model = trained(tmp_path)
    assert len(fed_otherwise(model, options)) == 1
    (tmp_path / "_penstock" / "manifest.json").write_text('{"kind": "fit", "checksum": 0, "body": "{}"}')
    assert fed_otherwise(model, options) == []
