"""What a wrong command or a wrong call says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import penstock
from penstock import UsageError
from penstock.cli.commands import main


def refusal(*arguments: object) -> dict[str, Any]:
    ran = CliRunner().invoke(main, ["predict", "m.onnx", "x.npy", "--json", *map(str, arguments)])
    assert ran.exit_code == 2, ran.output
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


@pytest.mark.parametrize(
    ("flags", "received"),
    [
        (["--batch-size", "0"], "--batch-size 0"),
        (["--batch-size", "²"], "--batch-size '²'"),
        (["--limit", "-1"], "--limit -1"),
        (["--seed=-1", "--sample", "3"], "--seed -1"),
        (["--loaders", "1000000000"], "--loaders 1000000000"),
        (["--sample", "3", "--limit", "4"], "--sample 3, --skip 0, --limit 4"),
        (["--outputs", ""], "--outputs ''"),
        (["--devices", "cpu:9999"], "--devices 'cpu:9999'"),
        (["--limit", "x"], "--limit 'x'"),
        (["--format", "xlsx"], "--format 'xlsx'"),
        (["--colour"], "--colour"),
        (["--engine", "ray", "--address", "head"], "--address 'head'"),
    ],
)
def test_shell_is_told_what_it_gave_as_flags(flags: list[str], received: str) -> None:
    assert refusal(*flags)["received"] == received


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--max-nodes", "2"], "--max-nodes is for clusters"),
        (["--address", "auto"], "--address is for clusters"),
        (["--engine", "ray", "--address", "head"], "--address is not understood"),
        (["--engine", "ray", "--resources", "CPU=x"], "--resources takes an amount of CPU"),
        (["--limit", "0"], "--limit must be a positive whole number"),
        (["--nulls", "none"], "--nulls is not understood"),
        (["--argmax", "--top-k", "2"], "the best class is the first of the k best"),
    ],
)
def test_shell_reads_flags_in_the_problem(flags: list[str], problem: str) -> None:
    assert refusal(*flags)["problem"] == problem


def test_flag_of_training_is_answered_with_those_that_do_the_same_here() -> None:
    assert refusal("--workers", "2")["hint"] == "did you mean --loaders or --max-nodes?"
    ran = CliRunner().invoke(main, ["fit", "m.keras", "x.npy", "--label", "y", "-o", "out", "--max-nodes", "2"])
    assert ran.exit_code == 2
    assert "error: penstock fit has no such option\nreceived: --max-nodes\nhint: did you mean --workers?" in ran.output
    wrong: dict[str, Any] = {"workers": 2}
    with pytest.raises(UsageError) as caught:
        penstock.predict("m.onnx", "x.npy", **wrong)
    assert caught.value.hint == "did you mean 'loaders' or 'max_nodes'?"


def test_stream_has_no_output_to_give() -> None:
    with pytest.raises(UsageError) as caught:
        penstock.stream("m.onnx", np.ones((3, 64)), engine="ray")
    assert caught.value.hint == "leave it out, or use penstock.predict with output=…, which writes files"


def test_choices_and_types_of_flags_are_what_is_allowed() -> None:
    assert refusal("--limit", "x")["allowed"] == "integer"
    assert "parquet" in refusal("--format", "xlsx")["allowed"]


@pytest.mark.parametrize("output", ["", " "])
def test_output_without_a_name_is_refused(
    output: str, light_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.ones((3, 64), np.uint8))
    ran = CliRunner().invoke(main, ["predict", str(light_models / "digits.onnx"), "x.npy", "-o", output])
    assert ran.exit_code == 2
    assert f"received: --output {output!r}" in ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


@pytest.mark.parametrize(
    "wrong", [{"overwrite": True}, {"format": "arrow"}, {"part_rows": 5}, {"max_failures": 0.5}], ids=str
)
def test_options_of_a_folder_are_refused_where_there_is_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(wrong))} is for predictions that are written"):
        penstock.predict("m.onnx", np.ones((3, 64)), **wrong)


def test_outputs_of_another_type_are_refused() -> None:
    calls: list[Callable[[Any], Any]] = [
        penstock.status,
        penstock.resume,
        lambda output: penstock.predict("m.onnx", "x.npy", output=output),
    ]
    for call in calls:
        with pytest.raises(UsageError) as caught:
            call(5)
        assert caught.value.received == "output=5"


def test_keywords_that_a_function_does_not_take_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="unexpected keyword argument 'limit'") as caught:
        penstock.resume("out", limit=5)  # type: ignore[call-arg]
    allowed = "output, devices, max_failures, verify, progress, verbose, engine, address, resources, max_nodes, workers"
    assert caught.value.allowed == allowed
    with pytest.raises(UsageError, match="unknown option") as caught:
        penstock.predict("m.onnx", "x.npy", outptu="out")  # type: ignore[call-arg]
    assert caught.value.hint == "did you mean 'output'?"
    assert all(name in str(caught.value.allowed) for name in ("output", "overwrite", "on_error", "dry_run", "keep"))


def test_dry_run_in_python_describes_and_writes_nothing(light_models: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 64), np.uint8))
    model, data = str(light_models / "digits.onnx"), str(tmp_path / "x.npy")
    described = penstock.predict(model, data, output=tmp_path / "out", dry_run=True)
    assert described["rows"] == 1
    assert described["inputs"] == ["pixels ← data, uint8[64] (guessed)"]
    assert not (tmp_path / "out").exists()
    shown = CliRunner().invoke(main, ["predict", model, data, "-o", str(tmp_path / "out"), "--dry-run"]).stdout
    assert "would read 1 row of 1 file" in shown
    assert "input: pixels ← data, uint8[64] (guessed)" in shown
    assert "is_padded" not in shown


def test_finished_job_of_data_in_memory_says_that_it_is_finished(light_models: Path, tmp_path: Path) -> None:
    penstock.predict(str(light_models / "digits.onnx"), np.ones((1, 64), np.uint8), output=tmp_path / "out", plan="off")
    assert "the job was finished already" in str(penstock.resume(tmp_path / "out"))
    assert str(penstock.resume(tmp_path / "out")).startswith("1 row in 1 part in ")
    status = penstock.status(tmp_path / "out")
    assert (status["state"], status["resumable"]) == ("finished", False)
    assert "finished" in status["hint"]


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("train", "did you mean penstock fit?"),
        ("training", "did you mean penstock fit?"),
        ("eval", "did you mean penstock evaluate?"),
        ("test", "did you mean penstock evaluate?"),
        ("resumee", "did you mean penstock resume?"),
        ("xyzzy", "penstock --help"),
    ],
)
def test_command_that_other_tools_have_is_answered_with_the_one_that_is_meant(typed: str, hint: str) -> None:
    ran = CliRunner().invoke(main, [typed, "model.keras", "--json"])
    assert ran.exit_code == 2
    found = json.loads(ran.stdout)
    assert (found["received"], found["hint"]) == (f"penstock {typed}", hint)
    assert {"fit", "evaluate", "predict"} <= set(found["allowed"].split(", "))


def test_dry_run_needs_no_output(light_models: Path, tmp_path: Path) -> None:
    model, data = str(light_models / "double.onnx"), str(tmp_path / "x.npy")
    np.save(data, np.ones((7, 4), np.float32))
    ran = CliRunner().invoke(main, ["predict", model, data, "--dry-run"])
    assert (ran.exit_code, ran.stderr) == (0, "")
    assert "would read 7 rows" in ran.stdout


def test_folder_of_a_training_job_is_answered_with_the_model_inside(tmp_path: Path) -> None:
    trained = tmp_path / "trained"
    (trained / "_penstock").mkdir(parents=True)
    (trained / "checkpoints").mkdir()
    command = ["predict", str(trained), "x.npy", "-o", str(tmp_path / "out")]
    unfinished = CliRunner().invoke(main, command)
    assert unfinished.exit_code == 6
    assert f"penstock resume {trained}" in unfinished.stderr
    (trained / "model.keras").touch()
    finished = CliRunner().invoke(main, command)
    assert finished.exit_code == 6
    assert f"give the model in this folder: {trained / 'model.keras'}" in finished.stderr
