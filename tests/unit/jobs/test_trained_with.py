"""A job says where it feeds a model otherwise than training did."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from penstock.core.records import Binding
from penstock.jobs.steps import as_request
from penstock.jobs.trained_with import fed_otherwise, inputs_of_training
from penstock.options.records import make_options
from penstock.sources.python.memory import InMemory
from penstock.storage.fit_manifest import RESULT, FitManifest
from penstock.storage.places import place_of

LINE = "the model was trained with {}, and this job feeds it otherwise: give the same options"


def trained(folder: Path, **given: object) -> str:
    """The path of a model beside the manifest of a training job."""
    (folder / "_penstock").mkdir(exist_ok=True)
    request = as_request(make_options(given))
    (folder / "model.keras").touch()
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
    lines = fed_otherwise(trained(tmp_path, **then), as_request(make_options(now)))
    assert lines == ([LINE.format(told)] if told else [])


def fed_by(*columns: str) -> list[Binding]:
    return [Binding("x", columns, "float32", (len(columns),))]


@pytest.mark.parametrize(
    ("given", "then", "now", "told"),
    [
        ({}, ["f0", "f1"], ["f0", "f1"], ""),
        ({}, ["f0", "f1"], ["f1", "f0"], "--input x=f0,f1"),
        ({"x": ("b", "a")}, ["b", "a"], ["a", "b"], "--input x=b,a"),
        ({"x": ("f*",)}, ["f0", "f1"], ["a", "b"], "--input x=f*"),
        ({"x": ("b", "a")}, ["b", "a"], ["x"], ""),
        ({}, [f"p{n}" for n in range(9)], ["p8"], "--input x=p0,p1,… 6 more …,p8"),
    ],
    ids=["same", "reordered", "reordered-given", "others", "stacked-by-the-user", "many"],
)
def test_other_columns_are_named(
    tmp_path: Path, given: dict[str, object], then: list[str], now: list[str], told: str
) -> None:
    model = trained(tmp_path, inputs=given)
    (tmp_path / RESULT).write_text(json.dumps({"inputs": {"x": then}}))
    lines = fed_otherwise(model, as_request(make_options({})), fed_by(*now))
    assert lines == ([LINE.format(told)] if told else [])


def test_inputs_are_those_of_training_where_none_are_given(tmp_path: Path) -> None:
    model = trained(tmp_path, inputs={"x": ("b", "a")})
    source = InMemory({name: np.zeros(2, np.float32) for name in ("a", "b", "f0")})
    options, lines = inputs_of_training(model, source, make_options({}))
    assert options.inputs == {"x": ("b", "a")}
    assert lines == ["inputs are fed as in training: --input x=b,a"]
    assert inputs_of_training(str(tmp_path / "other"), source, make_options({}))[1] == []
    given = make_options({"inputs": {"x": ("a", "b")}})
    assert inputs_of_training(model, source, given) == (given, [])


def test_inputs_of_training_are_not_taken_where_they_mean_nothing(tmp_path: Path) -> None:
    model = trained(tmp_path, inputs={"x": ("b", "a")})
    options, other = make_options({}), make_options({"preprocess": "json:dumps"})
    source = InMemory({"f0": np.zeros(2, np.float32), "a": np.zeros(2, np.float32)})
    assert inputs_of_training(model, source, options) == (options, [])
    source = InMemory({"b": np.zeros(2, np.float32), "a": np.zeros(2, np.float32)})
    assert inputs_of_training(model, source, other) == (other, [])
    model = trained(tmp_path, inputs={"x": ("b", "a")}, preprocess="json:dumps")
    assert inputs_of_training(model, source, other)[0].inputs == {"x": ("b", "a")}
    assert inputs_of_training(model, source, options) == (options, [])


def test_models_of_others_and_damaged_manifests_say_nothing(tmp_path: Path) -> None:
    options = as_request(make_options({"preset": "scale-1-1"}))
    assert fed_otherwise(str(tmp_path / "model.keras"), options) == fed_otherwise(None, options) == []
    assert fed_otherwise("s3://models/model.keras", options) == []
    model = trained(tmp_path)
    assert len(fed_otherwise(model, options)) == 1
    (tmp_path / "_penstock" / "manifest.json").write_text('{"kind": "fit", "checksum": 0, "body": "{}"}')
    assert fed_otherwise(model, options) == []
