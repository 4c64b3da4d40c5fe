"""What bad input gets: the problem, what was received, what is allowed; its own exit code; no stack trace."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from tests.conftest import Penstock
from tests.support import onnx_models


@pytest.fixture
def x_npy(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", np.ones((10, 64), np.uint8))
    return tmp_path / "x.npy"


def check(ran: object, code: int, *texts: str) -> None:
    returncode, stderr = getattr(ran, "returncode", None), getattr(ran, "stderr", "")
    assert returncode == code, stderr
    for text in texts:
        assert text in stderr, stderr
    assert stderr.count("error:") == 1


def test_no_such_input(light_models: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    ran = penstock_run("predict", light_models / "digits.onnx", tmp_path / "nowhere", "--output", tmp_path / "out")
    check(ran, 5, "no such file or folder", "nowhere")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "problem"),
    [(["part1", "part2"], "no such file or folder"), ([" "], "no such file or folder"), ([""], "is empty")],
    ids=["names", "a space", "nothing"],
)
def test_argument_that_is_no_file_is_not_a_text_for_the_model(
    penstock_run: Penstock, tmp_path: Path, given: list[str], problem: str
) -> None:
    text = {"text": ("STRING", ["rows"])}
    model = onnx_models.save(
        tmp_path / "m.onnx", [onnx_models.node("Identity", ["text"], ["same"])], text, {"same": text["text"]}
    )
    check(penstock_run("predict", model, *given, "--output", tmp_path / "out"), 5, problem, given[0])
    assert not (tmp_path / "out").exists()


def test_glob_without_a_match(light_models: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    ran = penstock_run("predict", light_models / "digits.onnx", tmp_path / "*.parquet", "--output", tmp_path / "out")
    check(ran, 5, "the glob matches no file")


def test_unknown_format(light_models: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    (tmp_path / "rows.xlsx").write_bytes(b"PK")
    ran = penstock_run("predict", light_models / "digits.onnx", tmp_path / "rows.xlsx", "--output", tmp_path / "out")
    check(ran, 5, "unknown format", "rows.xlsx", ".parquet")


@pytest.mark.parametrize("flag", ["--runtime", "--format", "--padding"])
def test_unknown_choice_is_refused_by_its_flag(penstock_run: Penstock, tmp_path: Path, flag: str) -> None:
    ran = penstock_run("predict", tmp_path / "m.onnx", tmp_path / "x.npy", "--output", tmp_path / "out", flag, "nope")
    assert ran.returncode == 2
    assert f"Invalid value for '{flag}': 'nope' is not one of " in ran.stderr


@pytest.mark.parametrize("name", ["empty.npy", "empty.parquet", "empty.csv", "empty.jsonl"])
def test_empty_input(light_models: Path, penstock_run: Penstock, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith("npy"):
        np.save(path, np.empty((0, 64), np.uint8))
    elif name.endswith("parquet"):
        pq.write_table(pa.table({"x": pa.array([], pa.float32())}), path)
    else:
        path.write_text("x\n" if name.endswith("csv") else "", encoding="utf-8")
    ran = penstock_run("predict", light_models / "double.onnx", path, "--output", tmp_path / "out")
    assert ran.returncode == 5, ran.stderr
    assert name in ran.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["cut.npy", "cut.parquet", "cut.npz"])
def test_truncated_file_is_named(light_models: Path, penstock_run: Penstock, tmp_path: Path, name: str) -> None:
    path, x = tmp_path / name, np.ones((1000, 64), np.uint8)
    if name.endswith("npy"):
        np.save(path, x)
    elif name.endswith("npz"):
        np.savez(path, x=x)
    else:
        pq.write_table(pa.table({"x": x[:, 0]}), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    ran = penstock_run("predict", light_models / "digits.onnx", path, "--output", tmp_path / "out")
    check(ran, 5, name, "damaged")


def test_missing_column(light_models: Path, penstock_run: Penstock, digits: Path, tmp_path: Path) -> None:
    ran = penstock_run(
        "predict", light_models / "digits.onnx", digits, "--output", tmp_path / "out", "--input", "pixels=pixel"
    )
    check(ran, 5, "no such column", "did you mean 'pixels'?")
    assert not (tmp_path / "out").exists()


def test_ambiguous_columns(light_models: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    x = np.ones((10, 4), "f4")
    np.savez(tmp_path / "rows.npz", first=x, second=x)
    ran = penstock_run("predict", light_models / "double.onnx", tmp_path / "rows.npz", "--output", tmp_path / "out")
    check(ran, 5, "several columns could feed", "first, second", "--input x=first")


def test_wrong_shape(light_models: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((10, 63), np.uint8))
    ran = penstock_run("predict", light_models / "digits.onnx", tmp_path / "x.npy", "--output", tmp_path / "out")
    check(ran, 5, "uint8[63]", "float32[64]")


def test_wrong_dtype(models: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id\nabc\n", encoding="utf-8")
    ran = penstock_run(
        "predict", models / "embedding.keras", tmp_path / "rows.csv", "--output", tmp_path / "out", "--runtime", "jax"
    )
    check(ran, 5, "string", "int32[1]")


def test_model_that_is_not_there(x_npy: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    check(penstock_run("predict", tmp_path / "no.keras", x_npy, "--output", tmp_path / "out"), 6, "no such model")
    check(penstock_run("predict", "no_module:build", x_npy, "--output", tmp_path / "out"), 6, "no such module")


def test_model_that_does_not_load(x_npy: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    (tmp_path / "bad.keras").write_bytes(b"not a zip")
    ran = penstock_run("predict", tmp_path / "bad.keras", x_npy, "--output", tmp_path / "out")
    check(ran, 6, "damaged")
    (tmp_path / "zoo.py").write_text("def build():\n    raise ValueError('no weights today')\n", encoding="utf-8")
    ran = penstock_run("predict", "zoo:build", x_npy, "--output", "out", "--runtime", "jax", cwd=tmp_path)
    check(ran, 6, "ValueError: no weights today")
    assert not (tmp_path / "out").exists()


def test_framework_that_is_not_installed(x_npy: Path, models: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        pass
    else:
        pytest.skip("torch is installed here")
    ran = penstock_run("predict", models / "digits.keras", x_npy, "--output", tmp_path / "out", "--runtime", "torch")
    check(ran, 8, "torch is not installed", "pip install 'penstock[torch]'")


def test_gpu_that_is_not_there(x_npy: Path, light_models: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    ran = penstock_run(
        "predict", light_models / "digits.onnx", x_npy, "--output", tmp_path / "out", "--devices", "gpu:77"
    )
    check(ran, 8, "there is no such GPU", "penstock devices")


@pytest.mark.parametrize(
    ("flag", "value"), [("--devices", "tpu"), ("--threads", "many"), ("--batch-size", "0"), ("--input", "x")]
)
def test_usage(x_npy: Path, light_models: Path, penstock_run: Penstock, tmp_path: Path, flag: str, value: str) -> None:
    ran = penstock_run("predict", light_models / "digits.onnx", x_npy, "--output", tmp_path / "out", flag, value)
    check(ran, 2, "received:", "allowed:")


def test_without_output_it_says_what_it_would_write(x_npy: Path, light_models: Path, penstock_run: Penstock) -> None:
    ran = penstock_run("predict", light_models / "digits.onnx", x_npy)
    check(ran, 2, "--output is missing")
    assert "would write" in ran.stdout
    assert "digit float32[10]" in ran.stdout


def test_foreign_folder_is_left_alone(x_npy: Path, light_models: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("precious", encoding="utf-8")
    for more in ([], ["--overwrite"]):
        ran = penstock_run("predict", light_models / "digits.onnx", x_npy, "--output", folder, *more)
        check(ran, 7, "not empty", "thesis.txt")
    assert os.listdir(folder) == ["thesis.txt"]


def test_locked_folder(x_npy: Path, light_models: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    folder = tmp_path / "out" / "_penstock"
    folder.mkdir(parents=True)
    with open(folder / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ran = penstock_run("predict", light_models / "digits.onnx", x_npy, "--output", tmp_path / "out", "--overwrite")
        check(ran, 7, "locked by a run that is alive")


def test_output_that_is_a_file(x_npy: Path, light_models: Path, penstock_run: Penstock) -> None:
    check(penstock_run("predict", light_models / "digits.onnx", x_npy, "--output", x_npy), 7, "not a folder")


def test_output_that_cannot_be_made_has_nothing_to_go_on_with(
    x_npy: Path, light_models: Path, penstock_run: Penstock
) -> None:
    ran = penstock_run("predict", light_models / "digits.onnx", x_npy, "--output", "/proc/out")
    check(ran, 7, "/proc/out", "hint: free space, or choose an --output where this user may make files")


def test_status_and_resume_of_a_folder_without_a_job(x_npy: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    check(penstock_run("status", x_npy), 7, "holds no job", str(x_npy))
    check(penstock_run("status", tmp_path), 7, "holds no job")
    check(penstock_run("resume", tmp_path), 7, "holds no job")


@pytest.mark.parametrize("command", [penstock.status, penstock.verify, penstock.retry, penstock.resume])
def test_output_without_a_job_is_told_with_what_it_is(command: Callable[[str], Any], tmp_path: Path) -> None:
    empty, other, file = (tmp_path / name for name in ("empty", "other", "file"))
    empty.mkdir()
    other.mkdir()
    (other / "notes.txt").touch()
    file.touch()
    told = {
        empty: "it holds nothing",
        other: "it holds notes.txt",
        file: "it is a file",
        tmp_path / "absent": "it does not exist",
        "memory://no/such": "it does not exist",
    }
    for output, what in told.items():
        with pytest.raises(penstock.OutputError, match="holds no job of penstock") as caught:
            command(str(output))
        assert caught.value.received == f"{output}: {what}"
        assert caught.value.exit_code == 7
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "file", "notes.txt", "other"]


def test_column_called_row_is_refused_with_the_flag_that_renames(
    light_models: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    np.savez(tmp_path / "rows.npz", x=np.ones((5, 4), "f4"), row=np.arange(5))
    arguments = ["predict", light_models / "double.onnx", tmp_path / "rows.npz", "--output", tmp_path / "out",
                 "--keep", "row"]  # fmt: skip
    check(penstock_run(*arguments), 2, "'row'", "--rename row=NEW")
    check(penstock_run(*arguments, "--rename", "doubled=row"), 2, "--rename doubled=row", "hint: --rename doubled=NEW")
    assert penstock_run(*arguments, "--rename", "row=original_row").returncode == 0
