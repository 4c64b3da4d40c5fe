"""The manifest of a training job: read back as it was written, refused where it was changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.core.records import Fragment
from penstock.errors import OutputError
from penstock.storage.fit_manifest import FitManifest, load_fit_manifest
from penstock.storage.manifest import MANIFEST, load_manifest
from penstock.storage.places import Place, place_of

SAVED = FitManifest(
    request={"model": "model.keras", "data": ["rows.parquet"], "epochs": 2},
    others={"loaders": None},
    model_digest="0123",
    fingerprint="4567",
    fragments=(Fragment("rows.parquet", 10, 20),),
    devices="cpu:1",
    threads=2,
    backend="jax",
    classes=("cat", "dog"),
    versions={"penstock": "1"},
)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = place_of(str(tmp_path))
    (tmp_path / MANIFEST).parent.mkdir()
    SAVED.save(place)
    return place


def test_it_is_read_back_as_it_was_written(place: Place) -> None:
    assert load_fit_manifest(place) == SAVED


def test_one_that_was_edited_is_refused(place: Place, tmp_path: Path) -> None:
    path = tmp_path / MANIFEST
    path.write_bytes(path.read_bytes().replace(b'"epochs": 2', b'"epochs": 3'))
    with pytest.raises(OutputError, match="cannot be used") as caught:
        load_fit_manifest(place)
    assert "it was changed since penstock wrote it" in str(caught.value.received)


def test_one_of_the_first_version_is_named_as_such(place: Place, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(json.dumps({"checksum": 1, "body": "{}", "kind": "fit"}), encoding="utf-8")
    with pytest.raises(OutputError, match="cannot be used") as caught:
        load_fit_manifest(place)
    assert "version 1, not 2" in str(caught.value.received)


def test_a_folder_with_a_training_job_holds_no_predictions(place: Place) -> None:
    with pytest.raises(OutputError, match="the folder holds a training job"):
        load_manifest(place)
