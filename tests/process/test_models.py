"""Every kind of model, by column names, against what its own framework answers."""

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

RNG = np.random.default_rng(9)


def write_table(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def keras_answers(model: Path, script: str, tmp_path: Path) -> dict[str, Any]:
    """What Keras itself predicts, from a process of its own: `script` sets `answers`."""
    code = (
        "import json, numpy as np\n"
        "from penstock.core.records import ModelFile\n"
        "from penstock.runtimes.environment import lean_imports\n"
        "with lean_imports(ModelFile('keras', '', '', ()), 'tensorflow'): import keras\n"
        f"model = keras.saving.load_model({str(model)!r})\n{script}\n"
        "print('ANSWERS' + json.dumps({k: np.asarray(v).tolist() for k, v in answers.items()}))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, cwd=tmp_path, check=False
    )
    assert ran.returncode == 0, ran.stderr
    answers: dict[str, Any] = json.loads(ran.stdout.partition("ANSWERS")[2])
    return answers


@pytest.fixture(scope="module")
def two_by_two(models: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A table of what two_by_two.keras takes, and what Keras predicts from it."""
    folder = tmp_path_factory.mktemp("two_by_two")
    left, right = RNG.normal(size=(500, 4)).astype("f4"), RNG.normal(size=(500, 3)).astype("f4")
    columns: dict[str, Any] = {f"l{i}": left[:, i] for i in range(4)}
    columns["side"] = pa.FixedSizeListArray.from_arrays(pa.array(right.reshape(-1)), 3)
    np.save(folder / "left.npy", left)
    np.save(folder / "right.npy", right)
    expected = keras_answers(
        models / "two_by_two.keras",
        "answers = model.predict({'left': np.load('left.npy'), 'right': np.load('right.npy')}, verbose=0)",
        folder,
    )
    return write_table(folder / "rows.parquet", **columns), expected


@pytest.mark.parametrize("runtime", ["tensorflow", "jax"])
def test_several_inputs_and_outputs_by_column_names(
    models: Path, penstock_run: Penstock, two_by_two: tuple[Path, dict[str, Any]], tmp_path: Path, runtime: str
) -> None:
    rows, expected = two_by_two
    ran = penstock_run(
        "predict", models / "two_by_two.keras", rows, "--output", tmp_path / "out",
        "--input", "left=l*", "--input", "right=side", "--runtime", runtime,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    table = read_rows(tmp_path / "out")
    assert set(table.column_names) == {"row", "total", "pair"}
    for name in ("total", "pair"):
        np.testing.assert_allclose(np.stack(table.column(name).to_numpy()), expected[name], rtol=1e-5, atol=1e-6)


def test_both_signatures_of_a_saved_model(models: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    x = RNG.normal(size=(300, 4)).astype("f4")
    np.save(tmp_path / "x.npy", x)
    for signature in ("double", "project"):
        ran = penstock_run(
            "predict", models / "two_signatures", tmp_path / "x.npy", "--signature", signature,
            "--output", tmp_path / signature,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
    doubled = read_rows(tmp_path / "double").column("doubled")
    np.testing.assert_array_equal(np.stack(doubled.to_numpy()), x * 2)
    projected = read_rows(tmp_path / "project")
    assert set(projected.column_names) == {"row", "projected", "length"}
    np.testing.assert_allclose(projected.column("length").to_numpy(), np.linalg.norm(x, axis=1), rtol=1e-5)


def test_a_saved_model_with_several_signatures_asks_which(models: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((3, 4), "f4"))
    ran = penstock_run("predict", models / "two_signatures", tmp_path / "x.npy", "--output", tmp_path / "out")
    assert ran.returncode == 6
    assert "double, project" in ran.stderr
    assert "--signature" in ran.stderr


def test_a_fixed_batch_is_padded_and_trimmed(models: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    x = RNG.normal(size=(21, 4)).astype("f4")
    np.save(tmp_path / "x.npy", x)
    ran = penstock_run(
        "predict", models / "fixed_batch", tmp_path / "x.npy", "--signature", "half", "--output", tmp_path / "out",
        "--json",
    )  # fmt: skip
    assert summary_of(ran)["recipe"]["batch_size"] == 8
    np.testing.assert_array_equal(np.stack(read_rows(tmp_path / "out").column("halved").to_numpy()), x / 2)


def test_strings_in_and_out(models: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id,text\n1,abc\n2,\n3,Grüße\n", encoding="utf-8")
    ran = penstock_run(
        "predict", models / "fixed_batch", tmp_path / "rows.csv", "--signature", "shout", "--input", "text=text",
        "--keep", "id", "--output", tmp_path / "out", "--rename", "length=bytes",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    rows = read_rows(tmp_path / "out").to_pylist()
    assert [row["shouted"] for row in rows] == ["ABC", "", "GRüßE"]
    assert [row["bytes"] for row in rows] == [3, 0, 7]
    assert [row["id"] for row in rows] == [1, 2, 3]


def test_rows_that_the_model_rejects_are_recorded_and_take_no_other_down(
    models: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    ids = np.arange(1000) % 100
    bad = [3, 500, 501, 998]
    ids[bad] = 100_000
    write_table(tmp_path / "rows.parquet", id=pa.array(ids, pa.int32()))
    ran = penstock_run(
        "predict", models / "embedding.keras", tmp_path / "rows.parquet", "--output", tmp_path / "out",
        "--runtime", "tensorflow", "--json",
    )  # fmt: skip
    assert ran.returncode == 3, ran.stderr
    assert summary_of(ran)["failed"] == 4
    failures = [json.loads(line) for line in (tmp_path / "out/_penstock/failures.jsonl").read_text().splitlines()]
    assert [failure["row"] for failure in failures] == bad
    assert all(failure["stage"] == "predict" and failure["reason"] for failure in failures)
    rows = read_rows(tmp_path / "out").column("row").to_pylist()
    assert rows == [row for row in range(1000) if row not in bad]


def test_nulls_and_ragged_rows_are_recorded(light_models: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    lists: list[list[float] | None] = [[1.0, 2.0, 3.0, 4.0]] * 200
    lists[10], lists[20] = None, [1.0, 2.0]
    write_table(tmp_path / "rows.parquet", x=pa.array(lists, pa.list_(pa.float32())))
    ran = penstock_run("predict", light_models / "double.onnx", tmp_path / "rows.parquet", "--output", tmp_path / "out")
    assert ran.returncode == 3, ran.stderr
    reasons = (tmp_path / "out/_penstock/failures.jsonl").read_text()
    assert "is null" in reasons
    assert "has 2 values, not 4" in reasons
    assert read_rows(tmp_path / "out").num_rows == 198


def test_too_many_failures_stop_the_job(light_models: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    values: list[float | None] = [1.0, None] * 500
    write_table(tmp_path / "rows.parquet", **{f"f{n}": pa.array(values) for n in range(4)})
    ran = penstock_run("predict", light_models / "double.onnx", tmp_path / "rows.parquet", "--output", tmp_path / "out")
    assert ran.returncode == 4
    assert "500 of the first 1,000 rows" in ran.stderr


def test_module_and_function_build_the_model(penstock_run: Penstock, tmp_path: Path) -> None:
    (tmp_path / "zoo.py").write_text(
        "import keras\n\ndef scorer():\n    x = keras.Input((2,), name='x')\n"
        "    return keras.Model(x, keras.layers.Dense(1, kernel_initializer='ones', name='sum')(x))\n",
        encoding="utf-8",
    )
    np.savez(tmp_path / "rows.npz", x=np.array([[1, 2], [3, 4]], "f4"), id=np.array([7, 8]))
    ran = penstock_run(
        "predict", "zoo:scorer", "rows.npz", "--output", "out", "--keep", "id", "--format", "jsonl",
        "--runtime", "jax", cwd=tmp_path,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    lines = (tmp_path / "out/part-00000000.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"row": 0, "sum": [3.0], "id": 7},
        {"row": 1, "sum": [7.0], "id": 8},
    ]


def test_a_model_with_code_in_it_needs_trust(models: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 4), "f4"))
    arguments = ["predict", models / "lambda.keras", tmp_path / "x.npy", "--output", tmp_path / "out"]
    ran = penstock_run(*arguments)
    assert ran.returncode == 6
    assert "--trust-model" in ran.stderr
    assert not (tmp_path / "out").exists()
    assert penstock_run(*arguments, "--trust-model").returncode == 0
