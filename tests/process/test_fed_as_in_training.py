"""A model that `fit` wrote is fed as in training, or the job says what differs."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.jobs.steps import as_request
from penstock.options.records import make_options
from penstock.storage.fit_manifest import RESULT, FitManifest
from penstock.storage.places import place_of
from tests.conftest import Penstock, summary_of

ROWS = {name: np.arange(4, dtype=np.float32) + 10 * place for place, name in enumerate("abcd")}
OTHERWISE = "the model was trained with --input x=d,c,b,a, and this job feeds it otherwise: give the same options"


@pytest.fixture
def trained(light_models: Path, tmp_path: Path) -> Path:
    """A model beside the manifest of a training job that was fed columns in an order of its own."""
    (tmp_path / "trained" / "_penstock").mkdir(parents=True)
    request = as_request(make_options({"inputs": {"x": ("d", "c", "b", "a")}}))
    FitManifest(request, {}, "", "", (), "cpu:1", 1, "jax").save(place_of(str(tmp_path / "trained")))
    (tmp_path / "trained" / RESULT).write_text('{"inputs": {"x": ["d", "c", "b", "a"]}}')
    return Path(shutil.copy(light_models / "double.onnx", tmp_path / "trained" / "model.onnx"))


def doubled(columns: str) -> list[list[float]]:
    return [[2.0 * float(ROWS[name][row]) for name in columns] for row in range(4)]


def test_columns_go_to_inputs_as_in_training_and_others_are_warned_about(trained: Path) -> None:
    assert penstock.predict(trained, ROWS).tolist() == doubled("dcba")
    with pytest.warns(UserWarning, match=OTHERWISE):
        assert penstock.predict(trained, ROWS, inputs={"x": tuple("abcd")}).tolist() == doubled("abcd")
    with pytest.warns(UserWarning, match=OTHERWISE):
        blocks = list(penstock.stream(trained, ROWS, inputs={"x": tuple("abcd")}))
    assert np.concatenate([block["doubled"] for block in blocks]).tolist() == doubled("abcd")


def test_predictions_that_are_written_say_how_they_were_fed(
    trained: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    pq.write_table(pa.table(ROWS), tmp_path / "rows.parquet")
    line = ("predict", trained, tmp_path / "rows.parquet", "--json", "-o")
    ran = penstock_run(*line, tmp_path / "same")
    assert summary_of(ran)["rows"] == 4
    assert "inputs are fed as in training: --input x=d,c,b,a" in ran.stderr
    assert pq.read_table(tmp_path / "same")["doubled"].to_pylist() == doubled("dcba")
    assert summary_of(penstock_run(*line, tmp_path / "same"))["rows_before"] == 4, "the same job, finished"
    assert OTHERWISE in penstock_run(*line, tmp_path / "other", "--input", "x=a,b,c,d").stderr
