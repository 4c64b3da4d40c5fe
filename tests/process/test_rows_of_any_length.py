"""Lists of different lengths: padded where that changes nothing, answered as if each came alone, in order."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import ENVIRONMENT, Penstock, read_rows, summary_of

ROWS = 500
SCRIPT = Path(__file__).parent.parent / "support" / "answer_one_by_one.py"
KINDS = Path(__file__).parent.parent / "support" / "rows_alone.py"


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, list[int]]]]:
    random = np.random.default_rng(2)
    rows = []
    for number in range(ROWS):
        words = random.integers(1, 50, 120 if number % 50 == 7 else random.integers(1, 40)).tolist()
        rows.append({"words": words, "tokens": words[::-1]})
    path = tmp_path_factory.mktemp("lists") / "rows.parquet"
    kind = pa.list_(pa.int32())
    columns = {name: pa.array([row[name] for row in rows], kind) for name in ("words", "tokens")}
    pq.write_table(pa.table({**columns, "id": range(ROWS)}), path, row_group_size=100)
    return path, rows


SOME = {"words": list(range(0, ROWS, 9)), "tags": list(range(3, ROWS, 31))}
"""Rows that are compared with what Keras answers to each of them alone."""


@pytest.fixture(scope="module")
def alone(
    models: Path, lists: tuple[Path, list[dict[str, list[int]]]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Any]]:
    """What Keras answers to some rows of each model, one by one; on TensorFlow, which compiles nothing for a length."""
    folder, rows = tmp_path_factory.mktemp("alone"), lists[1]
    words = [{"words": rows[row]["words"]} for row in SOME["words"]]
    tokens = [rows[row]["tokens"] for row in SOME["tags"]]
    tags = [{"tokens": each, "token_mask": [1.0] * len(each)} for each in tokens]
    (folder / "words.rows.json").write_text(json.dumps(words))
    (folder / "tags.rows.json").write_text(json.dumps(tags))
    subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), str(models / "words.keras"), str(models / "tags.keras")],
        check=True,
        capture_output=True,
        env=ENVIRONMENT | {"KERAS_BACKEND": "tensorflow"},
    )
    return {name: json.loads((folder / f"{name}.answers.json").read_text()) for name in SOME}


def test_padded_rows_are_answered_as_if_each_came_alone(
    models: Path,
    lists: tuple[Path, list[dict[str, list[int]]]],
    alone: dict[str, list[Any]],
    penstock_run: Penstock,
    tmp_path: Path,
) -> None:
    path, _ = lists
    options = ["--output", tmp_path / "out", "--keep", "id", "--batch-size", 16, "--runtime", "jax", "--json"]
    summary = summary_of(penstock_run("predict", models / "words.keras", path, *options))
    assert summary["failed"] == 0
    (boundaries,) = summary["recipe"]["buckets"]["words"]
    assert boundaries[-1] >= 120
    assert len(boundaries) <= 8
    assert 0 < summary["padding"] < 0.5
    table = read_rows(tmp_path / "out")
    assert table.column("id").to_pylist() == table.column("row").to_pylist() == list(range(ROWS))
    found = np.array(table.column("sense").to_pylist())[SOME["words"]]
    assert np.abs(found - np.array([answer[0] for answer in alone["words"]])).max() < 1e-5


def test_mask_is_made_and_answers_for_each_token_have_the_length_of_their_row(
    models: Path,
    lists: tuple[Path, list[dict[str, list[int]]]],
    alone: dict[str, list[Any]],
    penstock_run: Penstock,
    tmp_path: Path,
) -> None:
    path, rows = lists
    options = ["--output", tmp_path / "out", "--batch-size", 16, "--runtime", "jax"]
    ran = penstock_run("predict", models / "tags.keras", path, *options)
    assert ran.returncode == 0, ran.stderr
    assert "token_mask ← ones where tokens is not padding" in ran.stderr
    tags = read_rows(tmp_path / "out").column("tags").to_pylist()
    assert [len(answer) for answer in tags] == [len(row["tokens"]) for row in rows]
    for row, (expected,) in zip(SOME["tags"], alone["tags"], strict=True):
        assert np.abs(np.array(tags[row]) - np.array(expected)).max() < 1e-5


def test_row_that_is_far_too_long_fails_alone(models: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    # Beyond what a sample of the input shows: the last row, in the last of many spans.
    rows: list[list[int] | None] = [[1, 2, 3]] * 3000
    rows[2500] = [4] * 100_000
    pq.write_table(
        pa.table({"words": pa.array(rows, pa.list_(pa.int32()))}), tmp_path / "rows.parquet", row_group_size=50
    )
    options = ["--output", tmp_path / "out", "--batch-size", 16, "--buckets", "4,8"]
    ran = penstock_run("predict", models / "words.keras", tmp_path / "rows.parquet", *options)
    assert ran.returncode == 3, ran.stderr
    assert read_rows(tmp_path / "out").num_rows == 2999
    (line,) = (tmp_path / "out" / "_penstock" / "failures.jsonl").read_text().splitlines()
    assert json.loads(line)["row"] == 2500
    assert "100,000 values" in line


@pytest.fixture(scope="module")
def series(models: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Series of a few lengths for a model without a mask, and what Keras answers to each of them alone."""
    folder = tmp_path_factory.mktemp("series")
    random = np.random.default_rng(6)
    rows = [random.normal(size=(int(length), 3)).round(4).tolist() for length in random.choice([2, 5, 6, 11], 60)]
    path = folder / "series.jsonl"
    path.write_text("".join(json.dumps({"series": row}) + "\n" for row in rows))
    (folder / "series.rows.json").write_text(json.dumps([{"series": row} for row in rows]))
    subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), str(models / "series.keras")],
        check=True,
        capture_output=True,
        env=ENVIRONMENT | {"KERAS_BACKEND": "tensorflow"},
    )
    answers = json.loads((folder / "series.answers.json").read_text())
    return path, np.array([answer[0] for answer in answers])


@pytest.mark.parametrize("runtime", ["tensorflow", "jax"])
def test_rows_that_padding_would_change_are_batched_with_others_of_their_length(
    models: Path, series: tuple[Path, Any], runtime: str, penstock_run: Penstock, tmp_path: Path
) -> None:
    path, alone = series
    options = ["--output", tmp_path / "out", "--batch-size", 16, "--runtime", runtime, "--json", "--check"]
    ran = penstock_run("predict", models / "series.keras", path, *options)
    summary = summary_of(ran)
    assert summary["recipe"]["is_padded"] is False
    assert "padding changes the answers" in ran.stderr
    assert ("jax compiles once for each size" in ran.stderr) == (runtime == "jax")
    found = np.array(read_rows(tmp_path / "out").column("trend").to_pylist())
    assert np.abs(found - alone).max() < 1e-6


def test_check_finds_what_padding_changed(
    models: Path, series: tuple[Path, Any], penstock_run: Penstock, tmp_path: Path
) -> None:
    options = ["--output", tmp_path / "out", "--padding", "always", "--check"]
    ran = penstock_run("predict", models / "series.keras", series[0], *options)
    assert ran.returncode == 6, ran.stderr
    assert "the answers are not those of the model's own framework" in ran.stderr
    assert not (tmp_path / "out").exists()


def test_rows_too_short_for_the_model_fail_alone(models: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    path = tmp_path / "series.jsonl"
    rows = [[[1.0, 0.5, float(number)]] * (1 if number == 3 else 6) for number in range(8)]
    path.write_text("".join(json.dumps({"series": row}) + "\n" for row in rows))
    ran = penstock_run("predict", models / "window.keras", path, "--output", tmp_path / "out", "--max-failures", 1)
    assert ran.returncode == 3, ran.stderr
    (line,) = (tmp_path / "out" / "_penstock" / "failures.jsonl").read_text().splitlines()
    assert json.loads(line)["row"] == 3
    assert read_rows(tmp_path / "out").column("row").to_pylist() == [0, 1, 2, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("backend", "examples", "kinds"),
    [
        pytest.param("tensorflow", 2, [], id="tensorflow"),
        pytest.param(
            "jax",
            1,
            ["lstm", "bidirectional", "words, masked lstm", "convolution, maximum"],
            id="jax",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_answer_to_a_row_never_depends_on_its_neighbours(backend: str, examples: int, kinds: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, str(KINDS), str(examples), *kinds],
        capture_output=True,
        text=True,
        env=ENVIRONMENT | {"KERAS_BACKEND": backend},
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert len(found) == (len(kinds) or 24)
    for kind, seen in found.items():
        assert seen["rows"] >= 8 * examples, kind
        assert seen["worst"] <= 1e-4 * seen["spread"], kind
