"""What is said of a training job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import penstock
from penstock.storage.manifest import MANIFEST
from penstock.storage.places import place_of
from tests.unit.storage.test_fit_manifest import SAVED


def test_status_proposes_to_go_on_with_the_machines_that_training_began_on(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).parent.mkdir()
    SAVED.save(place_of(str(tmp_path)))
    assert penstock.status(tmp_path)["hint"] == f"penstock resume {tmp_path}"
    where = {"engine": "ray", "address": "auto", "resources": {"CPU": "4"}, "workers": None}
    replace(SAVED, others=where, workers=2).save(place_of(str(tmp_path)))
    on_ray = "--engine ray --address auto --resources CPU=4 --workers 2"
    assert penstock.status(tmp_path)["hint"] == f"penstock resume {tmp_path} {on_ray}"
