"""What `penstock evaluate` refuses, before any process is started."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from penstock.cli.commands import main
from tests.conftest import Penstock


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    x = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(40, dtype=np.float32)), 4)
    pq.write_table(pa.table({"x": x, "target": list(range(10))}), path)
    return path


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "name their column: --label COLUMN"),
        (("--label", "tarket"), 5, "did you mean 'target'"),
        (("--label", "target", "--weight", "w"), 5, "--weight: 'w'"),
        (("--label", "a", "--label", "b"), 2, "--label is given twice"),
        (("--label", "target", "--metrics", "mse", "--metrics", "mae,mse"), 2, "received: --metrics mse, mae, mse"),
        (("--label", "=y"), 2, "--label is not understood"),
        (("--label", "target", "--part-rows", "5"), 2, "add --output FOLDER"),
        (("--label", "target", "--top-k", "5"), 2, "No such option"),
        (("--label", "target", "--output", "o", "--from-predictions", "o"), 2, "predictions are there already"),
        (("--label", "target", "--from-predictions", "nothing"), 7, "holds no job"),
        (("--label", "@folder"), 2, "no files"),
    ],
)
def test_wrong_calls_say_what_to_do(
    light_models: Path, rows: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    ran = CliRunner().invoke(main, ["evaluate", str(light_models / "double.onnx"), str(rows), *arguments])
    assert ran.exit_code == code, ran.output
    assert said in ran.output


def test_model_and_input_may_be_left_out_only_for_predictions_that_are_there() -> None:
    ran = CliRunner().invoke(main, ["evaluate", "--label", "y"])
    assert ran.exit_code == 2
    assert "MODEL and INPUT are missing" in ran.output


def test_help_groups_what_is_measured() -> None:
    said = CliRunner().invoke(main, ["evaluate", "--help"]).output
    assert "What is measured:" in said
    assert "--from-predictions FOLDER" in said
    assert "--top-k" not in said


def test_predictions_that_were_ranked_are_refused(
    light_models: Path, digits: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    arguments = ("predict", light_models / "digits.onnx", digits / "0.parquet", "--output", output, "--keep", "name")
    assert penstock_run(*arguments, "--argmax", "--limit", 100, "--quiet").returncode == 0
    ran = penstock_run("evaluate", "--from-predictions", output, "--label", "name", "--metrics", "accuracy", "--json")
    assert ran.returncode == 7, ran.stderr
    assert "--argmax" in json.loads(ran.stdout)["received"]
