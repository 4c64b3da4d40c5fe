"""Exports of tf.estimator, written by TensorFlow 2.15: what they answer here is what the original answered."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tests.conftest import ENVIRONMENT, Penstock, read_rows
from tests.support import tfrecord_writer

EXPORTS = Path(__file__).parents[1] / "data" / "estimator"
FEATURES = ("sepal_length", "sepal_width", "petal_length", "petal_width")


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    with np.load(EXPORTS / "iris_expected.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def flowers(expected: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same flowers as Parquet, CSV and TFRecord, with a number for each."""
    folder = tmp_path_factory.mktemp("flowers")
    table = pa.table({"id": range(150), **{name: expected[name] for name in FEATURES}})
    pq.write_table(table, folder / "flowers.parquet")
    pa.csv.write_csv(table, folder / "flowers.csv")
    records = [
        tfrecord_writer.example({name: tfrecord_writer.Floats([row[name]]) for name in FEATURES})
        for row in table.to_pylist()
    ]
    tfrecord_writer.write(folder / "flowers.tfrecord", records)
    return folder


def check(probabilities: Any, classes: Any, expected: dict[str, Any]) -> None:
    np.testing.assert_allclose(np.stack(probabilities), expected["probabilities"], rtol=0, atol=1e-6)
    assert [name for (name,) in classes] == expected["classes"].tolist()


@pytest.mark.parametrize(
    ("export", "data"),
    [("export_parsing", "parquet"), ("export_parsing", "tfrecord"), ("export_raw", "csv")],
)
def test_the_shell_gives_what_the_estimator_gave(
    flowers: Path, penstock_run: Penstock, tmp_path: Path, expected: dict[str, Any], export: str, data: str
) -> None:
    ran = penstock_run(
        "predict", EXPORTS / export, flowers / f"flowers.{data}", "--signature", "predict", "--devices", "cpu:3",
        "--batch-size", 32, "--output", tmp_path / "out", *(["--keep", "id"] if data != "tfrecord" else []),
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    table = read_rows(tmp_path / "out")
    check(table.column("probabilities").to_numpy(), table.column("classes").to_pylist(), expected)
    if data != "tfrecord":
        assert table.column("id").to_pylist() == list(range(150))


SCRIPT = """
import json, sys
import numpy as np, penstock

arrays = dict(np.load(sys.argv[1] + "/iris_expected.npz"))
columns = {name: arrays[name] for name in json.loads(sys.argv[2])}
answers = {}
for export in ("export_parsing", "export_raw"):
    given = penstock.predict(f"{sys.argv[1]}/{export}", columns, signature="predict", devices="cpu:3", batch_size=32)
    classes = [[name.decode() if isinstance(name, bytes) else str(name) for name in row] for row in given["classes"]]
    answers[export] = [given["probabilities"].tolist(), classes]
assert "tensorflow" not in sys.modules
print(json.dumps(answers))
"""


def test_python_gives_what_the_estimator_gave_from_a_dict_of_columns(expected: dict[str, Any]) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(EXPORTS), json.dumps(FEATURES)],
        capture_output=True, text=True, env=ENVIRONMENT, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    for probabilities, classes in json.loads(ran.stdout).values():
        check(probabilities, classes, expected)


def test_a_missing_feature_is_named_with_its_dtype(flowers: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    table = pq.read_table(flowers / "flowers.parquet").drop_columns(["petal_width"])
    pq.write_table(table, tmp_path / "flowers.parquet")
    ran = penstock_run(
        "predict", EXPORTS / "export_parsing", tmp_path / "flowers.parquet", "--output", tmp_path / "out"
    )
    assert ran.returncode == 5
    assert "petal_width float32[1]" in ran.stderr
    assert "--input petal_width=" in ran.stderr
