"""A network that was trained with Keras's own loader, from JPEG files: penstock answers as `model.predict` does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ENVIRONMENT, Penstock, read_rows

REPOSITORY = Path(__file__).parents[2]
NEAR_TIE = 1e-3
"""Pixels are rounded to bytes: a lead that is smaller than this can turn."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    command = [sys.executable, "-m", "tests.support.train_on_photos", str(folder)]
    subprocess.run(command, check=True, capture_output=True, cwd=REPOSITORY, env=ENVIRONMENT)
    return folder


def test_top_class_of_every_photo_is_that_of_keras(trained: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    answers: dict[str, Any] = json.loads((trained / "answers.json").read_text(encoding="utf-8"))
    (trained / "photos" / "labels.csv").write_text("file,label\n", encoding="utf-8")
    output = tmp_path / "out"
    ran = penstock_run(
        "predict", trained / "model.keras", trained / "photos", "--output", output, "--keep", "@folder", "--plan", "off"
    )
    assert ran.returncode == 0, ran.stderr
    assert "left out: 1 file of another kind beside 400 photos (labels.csv)" in ran.stderr
    assert "images are decoded and resized as by keras (stretch)" in ran.stderr
    rows = read_rows(output)
    assert rows.column_names == ["row", "digit", "folder", "path"]
    paths, folders = rows.column("path").to_pylist(), rows.column("folder").to_pylist()
    scores = np.stack([np.asarray(row) for row in rows.column("digit").to_pylist()])
    assert sorted(paths) == sorted(answers)
    assert folders == [Path(path).parent.name for path in paths]
    expected = np.array([answers[path]["scores"] for path in paths])
    tops = expected.argmax(axis=1)
    right = np.mean([f"digit-{top}" == folder for top, folder in zip(tops, folders, strict=True)])
    assert right > 0.8, "the network has learned something"
    differ = {
        path: answers[path]["margin"]
        for path, top, row in zip(paths, tops, scores, strict=True)
        if row.argmax() != top and answers[path]["margin"] >= NEAR_TIE
    }
    assert differ == {}
    assert np.abs(scores - expected).max() < 0.05
