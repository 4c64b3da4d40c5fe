"""Tables as people have them: functions that make new columns, missing values, bad rows, guesses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Penstock, read_rows, summary_of

ROWS = [[round(0.5 * row + place, 2) for place in range(4)] for row in range(40)]
FUNCTIONS = """
import numpy as np

def stacked(block):
    return {"x": np.stack([block[name] for name in "abcd"], axis=1).astype("float32")}

def of_lists(block):
    return {"new": block["v"] * 2}
"""


def write_table(path: Path, rows: list[list[Any]], names: str = "abcd") -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    else:
        between = "\t" if path.suffix == ".tsv" else ","
        path.write_text("\n".join(between.join(map(str, row)) for row in [list(names), *rows]) + "\n")
    return path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    return tmp_path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_function_may_give_a_column_that_a_text_file_lacks(
    light_models: Path, penstock_run: Penstock, place: Path, suffix: str
) -> None:
    rows: list[list[Any]] = [*ROWS[:20], ["oops" if suffix != ".jsonl" else "7", 1, 2, 3], *ROWS[20:]]
    table = write_table(place / f"rows{suffix}", rows)
    ran = penstock_run(
        "predict", light_models / "double.onnx", table, "-o", place / "out",
        "--preprocess", "functions:stacked", "--json", cwd=place,
    )  # fmt: skip
    summary = summary_of(ran)
    assert (ran.returncode, summary["rows"], summary["failed"]) == (3, 40, 1), ran.stderr
    answers = read_rows(place / "out")
    assert answers.column("doubled").to_pylist() == (np.array(ROWS, np.float32) * 2).tolist()


def test_lists_of_json_lines_reach_a_function_as_an_array(
    light_models: Path, penstock_run: Penstock, place: Path
) -> None:
    table = write_table(place / "rows.jsonl", [[row] for row in ROWS], "v")
    ran = penstock_run(
        "predict", light_models / "double.onnx", table, "-o", place / "out",
        "--preprocess", "functions:of_lists", "--json", cwd=place,
    )  # fmt: skip
    assert summary_of(ran)["failed"] == 0
    assert read_rows(place / "out").column("doubled").to_pylist() == (np.array(ROWS, np.float32) * 4).tolist()
