"""`penstock fit` on files: the model, its history and its checkpoints; killed, interrupted and resumed."""

from __future__ import annotations

import csv
import io
import os
import random
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import h5py
import psutil
import pytest
from PIL import Image

from tests.conftest import ENVIRONMENT, Penstock, penstock_command, read_rows, summary_of
from tests.support.processes import wait_until

REPOSITORY = Path(__file__).parents[2]
EPOCHS = 3


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model.keras` (compiled), `plain.keras` (not compiled) and `rows.parquet`."""
    folder = tmp_path_factory.mktemp("fit")
    subprocess.run(
        [sys.executable, "-m", "tests.support.fit_models", str(folder)], check=True, cwd=REPOSITORY, env=ENVIRONMENT
    )
    return folder


def weights_of(model: Path) -> dict[str, bytes]:
    """Every array of a model file: weights, and the variables of the optimizer."""
    found: dict[str, bytes] = {}
    with zipfile.ZipFile(model) as archive, h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as file:
        file.visititems(
            lambda name, each: found.update({name: each[()].tobytes()}) if isinstance(each, h5py.Dataset) else None
        )
    return found


def assert_same_job(output: Path, other: Path) -> None:
    assert (output / "history.csv").read_bytes() == (other / "history.csv").read_bytes()
    assert weights_of(output / "model.keras") == weights_of(other / "model.keras")


def history_of(output: Path) -> list[dict[str, str]]:
    with open(output / "history.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def fit(made: Path, output: Path, *more: object) -> list[object]:
    files = (made / "model.keras", made / "rows.parquet")
    return ["fit", *files, "--label", "y", "--epochs", EPOCHS, "--batch-size", 16, "-o", output, *more]


@pytest.fixture(scope="module")
def undisturbed(made: Path, penstock_run: Penstock, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    ran = penstock_run(*fit(made, output, "--json", "--validation-split", 0.2))
    found = summary_of(ran)
    assert (found["epochs"], found["rows"], found["failed"]) == (EPOCHS, 162, 0)
    assert found["steps"] == EPOCHS * 11
    assert "41 of 203 rows are held back for validation" in ran.stderr
    return output


def test_a_compiled_file_becomes_a_trained_one_with_its_history(undisturbed: Path) -> None:
    history = history_of(undisturbed)
    assert [int(row["epoch"]) for row in history] == [1, 2, 3]
    assert list(history[0]) == ["epoch", "step", "accuracy", "loss", "val_accuracy", "val_loss"]
    assert float(history[2]["loss"]) < float(history[0]["loss"])
    assert (undisturbed / "model.keras").stat().st_size > 0
    assert len(list((undisturbed / "checkpoints").iterdir())) <= 2


def test_the_same_line_again_redoes_nothing_and_another_one_is_refused(
    made: Path, undisturbed: Path, penstock_run: Penstock
) -> None:
    before = weights_of(undisturbed / "model.keras")
    ran = penstock_run(*fit(made, undisturbed, "--validation-split", 0.2))
    assert ran.returncode == 0, ran.stderr
    assert "the job was finished already; nothing was redone" in ran.stdout
    status = penstock_run("status", undisturbed)
    assert status.stdout.startswith("finished: 3 of 3 epochs done")
    other = penstock_run(*fit(made, undisturbed, "--validation-split", 0.2, "--seed", 5))
    assert other.returncode == 7
    assert "seed=5 (there: 0)" in other.stderr
    refused = penstock_run("predict", made / "model.keras", made / "rows.parquet", "-o", undisturbed)
    assert refused.returncode == 7
    assert "the folder holds a training job" in refused.stderr
    assert weights_of(undisturbed / "model.keras") == before


def test_a_trainer_that_is_killed_in_mid_epoch_goes_on_and_ends_with_the_same_bits(
    made: Path, undisturbed: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    # While the checkpoint of step 24 is written, after the end of the second epoch: it goes on from step 20, before it.
    crash = {"PENSTOCK_CRASH_AT": "checkpoint_written:6"}
    output = tmp_path / "out"
    ran = penstock_run(*fit(made, output, "--validation-split", 0.2, "--checkpoint-every", 4), environment=crash)
    assert ran.returncode == 0, ran.stderr
    assert "the process that trains was killed by SIGKILL" in ran.stderr
    assert "11 steps an epoch, 20 made before" in ran.stderr
    assert_same_job(output, undisturbed)


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        penstock_command(*arguments), env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_sigterm_writes_a_checkpoint_and_resume_ends_with_the_same_bits(
    made: Path, undisturbed: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    process = start(*fit(made, output, "--validation-split", 0.2, "--checkpoint-every", 3))
    wait_until(lambda: process.poll() is not None or list(output.glob("checkpoints/*.safetensors")))
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=300)
    # Where it was faster than the signal, nothing is left to prove.
    assert process.returncode in (143, 0), errors
    if process.returncode == 143:
        assert f"go on with: penstock resume {output}" in errors
        status = penstock_run("status", output)
        assert status.stdout.startswith("unfinished: "), status.stdout
        resumed = penstock_run("resume", output)
        assert resumed.returncode == 0, resumed.stderr
    assert_same_job(output, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
def test_killed_at_a_random_moment_and_resumed_it_ends_with_the_same_bits(
    made: Path, undisturbed: Path, penstock_run: Penstock, tmp_path: Path, number: int
) -> None:
    """Coordinator and trainer are killed together, as by a power cut, some steps after the first checkpoint."""
    output = tmp_path / "out"
    process = start(*fit(made, output, "--validation-split", 0.2, "--checkpoint-every", 1))
    kept = random.Random(number).randrange(1, 3 * 11)
    folder = output / "checkpoints"
    name = f"step-{kept:010}.safetensors"
    wait_until(lambda: process.poll() is not None or any(path.name >= name for path in folder.glob("step-*")))
    for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
        child.kill()
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=300)
    resumed = penstock_run("resume", output)
    assert resumed.returncode == 0, resumed.stderr
    assert_same_job(output, undisturbed)


def test_photos_in_a_folder_for_each_class_to_labelled_predictions_in_three_commands(
    penstock_run: Penstock, tmp_path: Path
) -> None:
    for name, shade in (("dark", 30), ("light", 220)):
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        for number in range(20):
            Image.new("RGB", (30 + number, 26), (shade, shade, shade + number)).save(folder / f"{number}.jpg")
    (tmp_path / "photos" / "dark" / "3.jpg").write_bytes(b"no photo")
    photos, trained, output = tmp_path / "photos", tmp_path / "trained", tmp_path / "out"
    built = "tests.support.fit_models:build_photos"
    ran = penstock_run(
        "fit", built, photos, "--label", "@folder", "--epochs", 30, "--batch-size", 8, "--learning-rate", 0.1,
        "-o", trained, "--json", cwd=REPOSITORY,
    )  # fmt: skip
    assert ran.returncode == 3, ran.stderr
    assert "2 classes: dark, light" in ran.stderr
    assert "loss sparse_categorical_crossentropy, proposed because labels are classes" in ran.stderr
    found = summary_of(ran)
    assert (found["rows"], found["failed"]) == (39, 1)
    assert found["metrics"]["accuracy"] == 1.0
    (failure,) = (trained / "_penstock" / "failures.jsonl").read_text(encoding="utf-8").splitlines()
    assert "dark/3.jpg" in failure
    labels = ("--argmax", "--labels", trained / "labels.json", "--keep", "@folder", "--plan", "off")
    predicted = penstock_run("predict", trained / "model.keras", photos, "-o", output, *labels)
    assert predicted.returncode == 3, predicted.stderr
    rows = read_rows(output)
    names = [name for name in rows.column_names if "label" in name]
    assert rows.column(names[0]).to_pylist() == rows.column("folder").to_pylist()
    judged = penstock_run("evaluate", trained / "model.keras", photos, "--label", "@folder", "--json")
    assert summary_of(judged)["metrics"]["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (("--label", "nothing"), 5, "the input has no such column"),
        (("--label", "big"), 5, "a label is out of range\nreceived: row 202: 7"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (("--label", "y", "--optimizer", "adamm"), 2, "did you mean adam?"),
                (("--label", "x"), 6, "no loss can be proposed"),
                (("--label", "y", "--metrics", "acuracy"), 2, "Keras has no metric of this name"),
                (("--label", "y", "--learning-rate", 1e30, "--optimizer", "sgd"), 6, "the loss is no number any more"),
                (("--label", "y", "--weight", "name"), 5, "a weight is one number for each row"),
                (("--label", "many"), 5, "the labels have more classes than the model"),
            )
        ),
    ],
)
def test_what_cannot_be_trained_is_told_and_leaves_no_folder(
    made: Path, penstock_run: Penstock, tmp_path: Path, given: tuple[object, ...], code: int, said: str
) -> None:
    output = tmp_path / "out"
    ran = penstock_run("fit", made / "plain.keras", made / "rows.parquet", *given, "-o", output, "--input", "x=x")
    assert ran.returncode == code, ran.stderr
    assert said in ran.stderr
    # What the first steps find out leaves a job that was begun.
    assert output.exists() == ("no number" in said or "range" in said)
