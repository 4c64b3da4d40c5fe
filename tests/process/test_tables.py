"""Tables as people have them: functions that make new columns, missing values, bad rows, guesses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
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


def test_limit_of_failures_is_looked_at_again_at_the_end(
    light_models: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    rows: list[list[Any]] = [*ROWS[:20], ["n/a", 1, 2, 3], *ROWS[20:]]
    table, out = write_table(tmp_path / "rows.csv", rows), tmp_path / "out"
    options = ["--input", "x=a,b,c,d", "--max-failures", 0]
    for _ in ("the run", "the job that is finished already"):
        ran = penstock_run("predict", light_models / "double.onnx", table, "-o", out, *options)
        assert ran.returncode == 4, ran.stderr
        assert "received: 1 of 41 rows" in ran.stderr
        assert "allowed: 0%" in ran.stderr
        assert "failures.jsonl" in ran.stderr
    assert read_rows(out).num_rows == 40
    assert penstock_run("resume", out, "--max-failures", 0.5).returncode == 3


def test_job_of_which_every_row_failed_is_told_whatever_is_allowed(
    light_models: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    rows: list[list[Any]] = [[row, "", 2.5, 3.5] if row % 2 else ["", row, 2.5, 3.5] for row in range(9)]
    table = write_table(tmp_path / "rows.csv", rows)
    options = ["--input", "x=a,b,c,d", "--max-failures", 1]
    ran = penstock_run("predict", light_models / "double.onnx", table, "-o", tmp_path / "out", *options)
    assert ran.returncode == 4, ran.stderr
    assert "received: all 9 rows" in ran.stderr


def test_what_feeds_which_input_is_shown_once_in_every_run(
    light_models: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    lines = ["label,f0,f1,f2,f3,row_id", *(",".join(map(str, [1, *row, 7])) for row in ROWS)]
    path.write_text("\n".join(lines) + "\n")
    ran = penstock_run("predict", light_models / "double.onnx", path, "-o", tmp_path / "guessed")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("input: x ← f0, f1, f2, f3, float32[4] (guessed)") == 1
    assert read_rows(tmp_path / "guessed").column("doubled").to_pylist() == (np.array(ROWS, "f4") * 2).tolist()
    ran = penstock_run("predict", light_models / "double.onnx", path, "-o", tmp_path / "given", "--input", "x=f*")
    assert ran.stderr.count("input: x ← f0, f1, f2, f3, float32[4] (as given)") == 1


def test_csv_without_a_header_is_recognised(light_models: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("".join(",".join(map(str, row)) + "\n" for row in ROWS))
    command = ["predict", light_models / "double.onnx", tmp_path / "rows.csv", "-o", tmp_path / "out"]
    ran = penstock_run(*command)
    assert ran.returncode == 5, ran.stderr
    assert "seems to have no header" in ran.stderr
    assert penstock_run(*command, "--header", "no").returncode == 0
    assert read_rows(tmp_path / "out").num_rows == len(ROWS)


def test_missing_values_are_what_the_rule_says_and_nan_predictions_are_counted(
    light_models: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    rows: list[list[Any]] = [*ROWS[:20], ["n/a", 1, 2, 3], ["nan", 1, 2, 3], *ROWS[20:]]
    table = write_table(tmp_path / "rows.csv", rows)
    command = ["predict", light_models / "double.onnx", table, "--input", "x=a,b,c,d", "--json"]
    ran = penstock_run(*command, "-o", tmp_path / "fail")
    summary = summary_of(ran)
    assert (ran.returncode, summary["rows"], summary["failed"], summary["not_finite"]) == (3, 41, 1, 1)
    assert "column 'a' is missing: 'n/a'" in (tmp_path / "fail/_penstock/failures.jsonl").read_text()
    ran = penstock_run(*command, "-o", tmp_path / "nan", "--nulls", "nan")
    summary = summary_of(ran)
    assert (ran.returncode, summary["rows"], summary["failed"], summary["not_finite"]) == (0, 42, 0, 2)
    answers = np.array(read_rows(tmp_path / "nan").column("doubled").to_pylist())
    np.testing.assert_array_equal(answers[20:22], [[np.nan, 2, 4, 6]] * 2)
    again = penstock_run(*command, "-o", tmp_path / "nan", "--nulls", "0")
    assert again.returncode == 7, again.stderr
    assert "nulls=" in again.stderr
    assert penstock_run("resume", tmp_path / "nan").returncode == 0


@pytest.mark.parametrize(
    ("name", "line"),
    [("rows.csv", "1,2,3\n"), ("rows.csv", "1\n"), ("rows.jsonl", '{"a": 1, "b": 2\n'), ("rows.jsonl", "[1]{}\n")],
)
def test_line_that_cannot_be_read_is_one_failed_row(light_models: Path, tmp_path: Path, name: str, line: str) -> None:
    path = write_table(tmp_path / name, ROWS)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:9], line, *lines[9:]]))
    inputs = {"x": ["a", "b", "c", "d"]}
    with pytest.warns(UserWarning, match="1 of 41 rows failed and are left out"):
        answers = penstock.predict(light_models / "double.onnx", path, inputs=inputs, plan="off", on_error="skip")
    np.testing.assert_array_equal(answers, np.array(ROWS, "f4") * 2)
