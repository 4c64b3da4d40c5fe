"""The commands as a user types them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import penstock
from penstock.cli.commands import main, predict
from penstock.cli.flags import plan_command
from tests.conftest import ENVIRONMENT, Penstock, journal_length, penstock_command, run_penstock, summary_of


@pytest.fixture(scope="module")
def finished(light_models: Path, digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished job of several parts."""
    output = tmp_path_factory.mktemp("finished") / "out"
    ran = run_penstock(
        "predict", light_models / "digits.onnx", digits, "--output", output, "--part-rows", 6000, "--keep", "name",
        "--quiet",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return output


def test_pandas_pyarrow_duckdb_and_polars_open_the_folder_in_order(finished: Path) -> None:
    rows = list(range(20_000))
    assert pd.read_parquet(finished)["row"].tolist() == rows
    assert ds.dataset(finished).to_table().column("row").to_pylist() == rows
    assert [row[0] for row in duckdb.sql(f"select row from '{finished}/*.parquet'").fetchall()] == rows
    assert pl.read_parquet(f"{finished}/*.parquet")["row"].to_list() == rows
    assert pl.scan_parquet(finished / "*.parquet").collect()["row"].to_list() == rows


def test_finished_job_is_not_redone(light_models: Path, digits: Path, penstock_run: Penstock, finished: Path) -> None:
    before = {name: os.stat(finished / name).st_mtime_ns for name in os.listdir(finished)}
    ran = penstock_run("predict", light_models / "digits.onnx", digits, "--output", finished,
                       "--part-rows", 6000, "--keep", "name")  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "nothing was redone" in ran.stdout
    assert {name: os.stat(finished / name).st_mtime_ns for name in os.listdir(finished)} == before


def test_another_job_is_refused_and_overwrite_replaces_it(
    light_models: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", np.ones((50, 64), np.uint8))
    arguments = ["predict", light_models / "digits.onnx", tmp_path / "x.npy", "--output", tmp_path / "out", "--json"]
    assert summary_of(penstock_run(*arguments))["rows"] == 50
    ran = penstock_run(*arguments, "--batch-size", 16)
    assert ran.returncode == 7
    assert "batch_size=16" in ran.stderr
    (tmp_path / "out" / "note.txt").write_text("mine", encoding="utf-8")
    assert penstock_run(*arguments, "--batch-size", 16, "--overwrite").returncode == 0
    assert (tmp_path / "out" / "note.txt").read_text() == "mine"
    assert penstock.status(tmp_path / "out")["recipe"]["batch_size"] == 16


def test_changed_input_is_told_with_its_name(light_models: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((50, 64), np.uint8))
    arguments = ["predict", light_models / "digits.onnx", tmp_path / "x.npy", "--output", tmp_path / "out"]
    assert penstock_run(*arguments).returncode == 0
    np.save(tmp_path / "x.npy", np.zeros((60, 64), np.uint8))
    ran = penstock_run(*arguments)
    assert ran.returncode == 5
    assert f"the input changed since the job began: {tmp_path / 'x.npy'}" in ran.stderr


def test_changed_model_is_told_with_its_name(light_models: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((50, 64), np.uint8))
    model = shutil.copy(light_models / "digits.onnx", tmp_path / "model.onnx")
    arguments = ["predict", model, tmp_path / "x.npy", "--output", tmp_path / "out"]
    assert penstock_run(*arguments).returncode == 0
    shutil.copy(light_models / "slow_digits.onnx", model)
    for command in (arguments, ["resume", tmp_path / "out"]):
        ran = penstock_run(*command)
        assert ran.returncode == 7
        assert f"the content of the model was changed since the job began: {model}" in ran.stderr
        assert ("--overwrite" in ran.stderr) == (command is arguments), "resume has no such flag"
    assert "put back what was changed, and resume; or begin a new job: `penstock predict … --output NEW`" in ran.stderr


def test_status_while_running_and_after(
    light_models: Path, digits: Path, penstock_run: Penstock, finished: Path, tmp_path: Path
) -> None:
    assert "finished: 20,000 of 20,000 rows" in penstock_run("status", finished).stdout
    output = tmp_path / "out"
    command = penstock_command("predict", light_models / "slow_digits.onnx", digits, "--output", output,
                               "--batch-size", 32, "--part-rows", 1000)  # fmt: skip
    process = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    while journal_length(output) < 1 and process.poll() is None:
        time.sleep(0.002)
    found = penstock.status(output)
    process.kill()
    process.communicate()
    assert found["state"] == "running"
    assert 0 < found["committed"] < found["rows"] == 20_000
    assert penstock.status(output)["state"] == "unfinished"
    assert f"penstock resume {output}" in penstock_run("status", output).stdout


def test_inspect_model_and_input(models: Path, digits: Path, penstock_run: Penstock) -> None:
    ran = penstock_run("inspect", models / "digits.keras", "--runtime", "jax")
    assert ran.returncode == 0, ran.stderr
    assert "pixels: float32[64]" in ran.stdout
    assert "digit: float32[10]" in ran.stdout
    assert "written by: Keras 3." in ran.stdout
    assert "loaded by: jax " in ran.stdout
    assert f"run it: penstock predict {models / 'digits.keras'} INPUT --output OUT --runtime jax\n" in ran.stdout
    assert "columns of other names: --input pixels=COLUMN" in ran.stdout
    found = json.loads(penstock_run("inspect", digits, "--json").stdout)
    assert found["rows"] == 20_000
    assert found["columns"] == {"pixels": "uint8[64]", "name": "string[]"}


def test_inspect_lists_the_signatures_of_a_saved_model(models: Path, penstock_run: Penstock) -> None:
    found = json.loads(penstock_run("inspect", models / "two_signatures", "--signature", "project", "--json").stdout)
    assert set(found["runtimes_by_conversion"]) == {"onnx", "openvino"}
    assert not {"onnx", "openvino"} & set(found["runtimes"])
    assert found["signature"] == "project"
    other = {"signature": "double", "inputs": {"x": "float32[4]"}, "outputs": {"doubled": "float32[4]"}}
    assert found["other_signatures"] == {"double": other}
    assert found["written_by"].startswith("TensorFlow 2.")
    assert found["bytes"] > 1000
    assert found["run_it"].endswith("--signature project")
    assert found["columns_of_other_names"] == "--input x=COLUMN"
    assert found["inputs"] == {"x": "float32[4]"}
    assert found["outputs"] == {"length": "float32[]", "projected": "float32[2]"}


def test_inspect_looks_at_a_model_that_needs_trust_without_loading_it(models: Path, penstock_run: Penstock) -> None:
    found = json.loads(penstock_run("inspect", models / "lambda.keras", "--json").stdout)
    assert found["needs_trust"]
    assert "inputs" not in found
    assert "--trust-model" in found["run_it"]
    trusted = json.loads(penstock_run("inspect", models / "lambda.keras", "--trust-model", "--json").stdout)
    assert list(trusted["inputs"].values()) == ["float32[4]"]


def test_devices_say_which_runtimes_can_use_them(penstock_run: Penstock) -> None:
    found = json.loads(penstock_run("devices", "--json").stdout)
    cpu = found[-1]
    assert cpu["device"] == "cpu"
    assert cpu["memory_bytes"] > 0
    assert cpu["runtimes"]["tensorflow"].startswith("yes, 2.")
    assert cpu["near_cores"] is None
    assert all(verdict.startswith(("yes", "no: ")) for device in found for verdict in device["runtimes"].values())


def test_devices_say_which_cores_are_near(monkeypatch: pytest.MonkeyPatch) -> None:
    described = {"name": "a GPU", "memory_bytes": 2**30, "free_bytes": 2**29, "cores": None, "runtimes": {}}
    near = {"gpu:0": "0-31", "gpu:1": None}
    listed = [described | {"device": device, "near_cores": cores} for device, cores in near.items()]
    monkeypatch.setattr("penstock.api.devices", lambda: listed)
    first, second = CliRunner().invoke(main, ["devices"]).stdout.splitlines()
    assert first == "gpu:0  a GPU, 0.5 of 1.0 GiB free, near cores 0-31"
    assert second == "gpu:1  a GPU, 0.5 of 1.0 GiB free"


def test_dry_run_writes_nothing(light_models: Path, digits: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    job = ("predict", light_models / "digits.onnx", digits, "--output", tmp_path / "out", "--dry-run")
    searches = "a long job searches first: a faster runtime"
    assert searches not in penstock_run(*job, "--plan", "off").stdout
    ran = penstock_run(*job)
    assert searches in ran.stdout
    assert ran.returncode == 0, ran.stderr
    assert "would read 20,000 rows of 4 files" in ran.stdout
    assert not (tmp_path / "out").exists()


def test_json_is_one_document_on_stdout_and_progress_goes_to_stderr(
    light_models: Path, digits: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    ran = penstock_run("predict", light_models / "digits.onnx", digits, "--output", tmp_path / "out", "--json",
                       "--format", "npy")  # fmt: skip
    summary = summary_of(ran)
    assert summary["rows"] == 20_000
    assert summary["seconds"] >= summary["start_seconds"] + summary["run_seconds"] - 0.01
    assert "input: pixels ← pixels, uint8[64]" in ran.stderr
    digit = np.concatenate([np.load(path) for path in sorted((tmp_path / "out/digit").glob("*.npy"))])
    rows = np.concatenate([np.load(path) for path in sorted((tmp_path / "out/row").glob("*.npy"))])
    assert digit.shape == (20_000, 10)
    assert rows.tolist() == list(range(20_000))


def test_version_and_help(penstock_run: Penstock) -> None:
    assert penstock.__version__ in penstock_run("--version").stdout
    listed = penstock_run("--help").stdout
    assert all(name in listed for name in ("predict", "resume", "status", "inspect", "devices"))
    assert "train" in listed.partition("Options:")[0]
    assert "--input" in penstock_run("predict", "--help").stdout
    assert "predict, fit or evaluate" in penstock_run("resume", "--help").stdout


def test_help_cuts_no_sentence_and_begins_with_what_is_used_most() -> None:
    listed = CliRunner().invoke(main, ["--help"], terminal_width=80).stdout
    assert "..." not in listed.partition("Commands:")[2]
    commands = [line.split()[0] for line in listed.partition("Commands:")[2].splitlines() if line[2:3].strip()]
    known = ["predict", "plan", "evaluate", "fit", "resume", "retry", "status", "verify", "inspect", "devices", "cache"]
    assert commands == known
    shown = CliRunner().invoke(main, ["predict", "--help"], terminal_width=80).stdout
    used, _, others = shown.partition("Options most used:")[2].partition("The model:")
    flags = [line.split()[0] for line in used.splitlines() if line.startswith("  -")]
    assert len(flags) == 10
    assert flags[:3] == ["-o,", "--input", "--keep"]
    assert all(f"\n  {flag} " not in others for flag in flags), "each option is shown once"
    assert "--overwrite" in others.partition("Other options:")[2]


def test_command_that_searches_for_a_plan_has_what_was_given_to_predict() -> None:
    given = ["m.keras", "a b/*.csv", "--input", "x=a,b", "--input", "z=c", "--threads", "2"]
    others = ["-o", "out", "--overwrite", "--quiet", "--trace", "t.json"]
    with predict.make_context("predict", [*given, *others]) as context:
        assert shlex.split(plan_command(context)) == ["penstock", "plan", *given]
    with predict.make_context("predict", ["m.keras", *(f"{number}.jpg" for number in range(1000))]) as context:
        assert plan_command(context) == "penstock plan MODEL INPUT"


def test_line_that_inspect_prints_runs_the_model(
    light_models: Path, digits: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    model = tmp_path / "my digits.onnx"
    model.write_bytes((light_models / "digits.onnx").read_bytes())
    found = json.loads(penstock_run("inspect", model, "--json").stdout)
    command = found["run_it"].replace("INPUT", str(digits)).replace("OUT", str(tmp_path / "out"))
    program, *arguments = shlex.split(command)
    assert program == "penstock"
    assert penstock_run(*arguments, "--limit", 10).returncode == 0
    # Where no column is called as the input is, the other line says what to add.
    table = pa.table({"numbers": pq.read_table(digits / "0.parquet").column("pixels")[:10], "x": range(10)})
    pq.write_table(table, tmp_path / "x.parquet")
    more = shlex.split(found["columns_of_other_names"].replace("COLUMN", "numbers"))
    program, *arguments = shlex.split(found["run_it"])
    given = [{"INPUT": tmp_path / "x.parquet", "OUT": tmp_path / "other"}.get(word, word) for word in arguments]
    assert penstock_run(*given, *more).returncode == 0


def test_output_that_is_named_like_a_file_is_said_to_be_a_folder(
    light_models: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", np.ones((50, 64), np.uint8))
    arguments = ["predict", light_models / "digits.onnx", tmp_path / "x.npy", "-o"]
    ran = penstock_run(*arguments, tmp_path / "results.csv")
    assert ran.returncode == 0, ran.stderr
    told = "results.csv will be a folder: predictions are written as files in it, part-00000000.parquet …"
    assert f"{told}; --format csv writes csv files" in ran.stderr
    (tmp_path / "results.parquet").write_bytes(b"a file")
    ran = penstock_run(*arguments, tmp_path / "results.parquet")
    assert ran.returncode == 7
    assert "results.parquet, which is a file" in ran.stderr
    assert "hint: name a folder" in ran.stderr


@pytest.mark.slow
def test_csv_json_lines_and_npy_give_the_same_predictions(models: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(200, 4)).astype("f4")
    frame = pd.DataFrame(x, columns=[f"f{place}" for place in range(4)])
    frame.to_csv(tmp_path / "rows.csv", index=False)
    frame.to_json(tmp_path / "rows.jsonl", orient="records", lines=True, double_precision=15)
    np.save(tmp_path / "rows.npy", x)
    answers = []
    for name in ("rows.csv", "rows.jsonl", "rows.npy"):
        output = tmp_path / f"out-{name}"
        ran = penstock_run("predict", models / "two_signatures", tmp_path / name, "--signature", "project",
                           "--output", output)  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        answers.append(np.stack(pd.read_parquet(output)["projected"].to_list()))
    np.testing.assert_allclose(answers[0], answers[2], rtol=1e-6)
    np.testing.assert_allclose(answers[1], answers[2], rtol=1e-6)


def test_folder_of_an_older_version_is_shown_and_removed_but_not_gone_on_with(
    light_models: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    for name in ("finished", "stopped"):
        shutil.copytree(Path(__file__).parents[1] / "data" / "manifest4" / name, tmp_path / name)
    assert "finished: 60 of 60 rows" in penstock_run("status", tmp_path / "finished").stdout
    assert penstock.status(tmp_path / "stopped")["state"] == "unfinished"
    told = penstock_run("status", tmp_path / "stopped").stdout
    assert "the job cannot be resumed: go on with the penstock that began it; or begin again" in told
    assert "penstock resume" not in told
    np.save(tmp_path / "x.npy", np.ones((8, 4), np.float32))
    arguments = ["predict", light_models / "double.onnx", tmp_path / "x.npy", "--output"]
    for name in ("finished", "stopped"):
        for ran in (penstock_run("resume", tmp_path / name), penstock_run(*arguments, tmp_path / name)):
            assert ran.returncode == 7
            assert "was written by an older version of penstock" in ran.stderr
            assert "hint: go on with the penstock that began it" in ran.stderr
        ran = penstock_run(*arguments, tmp_path / name, "--overwrite")
        assert ran.returncode == 0, ran.stderr
        assert [path.name for path in (tmp_path / name).iterdir() if path.name != "_penstock"] == [
            "part-00000000.parquet"
        ]
        assert penstock.status(tmp_path / name)["committed"] == 8
