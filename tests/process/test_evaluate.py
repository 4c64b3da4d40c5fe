"""`penstock evaluate` says what Keras says: on one replica and on four, of files, arrays and written predictions."""

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
from PIL import Image

from tests.conftest import ENVIRONMENT, Penstock, summary_of

REPOSITORY = Path(__file__).parents[2]
OWN = ("--custom-objects", "tests.support.own_metrics")


class Made(dict[str, Path]):
    """For each backend a folder of models, which were compared with Keras as live models on two devices."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        super().__init__()
        self._factory = factory

    def __missing__(self, backend: str) -> Path:
        self[backend] = self._factory.mktemp(backend)
        compare(backend, self[backend], *([] if backend == "tensorflow" else ["few"]))
        return self[backend]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory)


def compare(backend: str, folder: Path, *more: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "tests.support.evaluate_as_keras", str(folder), *more],
        check=True, cwd=REPOSITORY, env={**ENVIRONMENT, "KERAS_BACKEND": backend},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_a_live_model_gives_what_keras_gives_in_every_case(backend: str, tmp_path: Path) -> None:
    pytest.importorskip(backend)
    compare(backend, tmp_path)
    assert (tmp_path / "expected.json").exists()


def says_what_keras_says(found: dict[str, Any], folder: Path, case: str) -> None:
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))[case]
    assert found["rows"] == 1797
    assert found["failed"] == 0
    assert found["metrics"].keys() == expected.keys()
    for name, value in expected.items():
        assert found["metrics"][name] == pytest.approx(value, rel=1e-6, abs=1e-6), name


@pytest.mark.parametrize(
    ("backend", "devices", "case"),
    [
        ("tensorflow", "cpu:2", "weighted"),
        pytest.param("jax", "cpu:4", "weighted", marks=pytest.mark.slow),
        pytest.param("tensorflow", "cpu:1", "plain", marks=pytest.mark.slow),
        pytest.param("tensorflow", "cpu:4", "plain", marks=pytest.mark.slow),
        pytest.param("jax", "cpu:1", "plain", marks=pytest.mark.slow),
        pytest.param("jax", "cpu:2", "plain", marks=pytest.mark.slow),
        pytest.param("torch", "cpu:2", "weighted", marks=pytest.mark.slow),
    ],
)
def test_rows_that_nothing_divides_give_what_keras_gives_on_any_number_of_replicas(
    made: Made, penstock_run: Penstock, backend: str, devices: str, case: str
) -> None:
    pytest.importorskip(backend)
    folder = made[backend]
    weight = ("--weight", "weight") if case == "weighted" else ()
    ran = penstock_run("evaluate", folder / "model.keras", folder / "digits.parquet", "--label", "digit", *weight, *OWN,
                       "--runtime", backend, "--devices", devices, "--json", cwd=REPOSITORY)  # fmt: skip
    says_what_keras_says(summary_of(ran), folder, case)


@pytest.mark.parametrize("case", [pytest.param("two", marks=pytest.mark.slow), "sure"])
def test_two_outputs_have_a_label_each(made: Made, penstock_run: Penstock, case: str) -> None:
    """Also where the model is sure of what is wrong: Keras on TensorFlow takes cross-entropies from logits then."""
    folder = made["tensorflow"]
    ran = penstock_run("evaluate", folder / f"{case}.keras", folder / "digits.parquet", "--label", "which=digit",
                       "--label", "even=even", "--json")  # fmt: skip
    says_what_keras_says(summary_of(ran), folder, case)


@pytest.mark.slow
def test_a_label_that_is_called_as_an_output_is_read_from_the_input(
    made: Made, penstock_run: Penstock, tmp_path: Path
) -> None:
    """Beside the predictions it would hide them."""
    folder, labels = made["tensorflow"], ("--label", "which=digit", "--label", "even=even", "--json")
    for _ in range(2):  # the second time nothing is predicted
        files = (folder / "two.keras", folder / "digits.parquet")
        ran = penstock_run("evaluate", *files, *labels, "--output", tmp_path / "out")
        says_what_keras_says(summary_of(ran), folder, "two")
    again = penstock_run("evaluate", "--from-predictions", tmp_path / "out", *labels)
    says_what_keras_says(summary_of(again), folder, "two")


@pytest.mark.slow
def test_losses_in_a_list_go_to_outputs_in_their_order_of_written_predictions_too(
    made: Made, penstock_run: Penstock, tmp_path: Path
) -> None:
    folder = made["tensorflow"]
    labels = ("--label", "zz=z", "--label", "aa=a", "--json")
    output = tmp_path / "out"
    ran = penstock_run("evaluate", folder / "list.keras", folder / "list.parquet", "--output", output, *labels)
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))["list"]
    assert summary_of(ran)["metrics"] == pytest.approx(expected, rel=1e-5)
    again = penstock_run("evaluate", "--from-predictions", output, *labels)
    assert summary_of(again)["metrics"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_a_loss_that_ignores_a_class_is_folded_in_batches_of_the_size_that_is_given(
    made: Made, penstock_run: Penstock
) -> None:
    folder = made["tensorflow"]
    ran = penstock_run("evaluate", folder / "ignored.keras", folder / "ignored.parquet", "--label", "y",
                       "--batch-size", 100, "--devices", "cpu:2", "--json")  # fmt: skip
    says_what_keras_says(summary_of(ran), folder, "ignored")


@pytest.mark.slow
def test_a_model_with_a_loss_of_its_own_sees_its_rows_in_order(made: Made, penstock_run: Penstock) -> None:
    folder = made["tensorflow"]
    ran = penstock_run("evaluate", folder / "own_step.keras", folder / "digits.parquet", "--label", "vector", *OWN,
                       "--json", cwd=REPOSITORY)  # fmt: skip
    found = summary_of(ran)
    says_what_keras_says(found, folder, "own step")
    assert "in order on one device, because the model has a compute_loss of its own" in found["notes"][0]


def test_written_predictions_are_evaluated_with_text_labels_and_classes_counted(
    made: Made, penstock_run: Penstock, tmp_path: Path
) -> None:
    """Once while they are written, once afterwards with labels of the input."""
    folder = made["tensorflow"]
    names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    (folder / "labels.json").write_text(json.dumps(names), encoding="utf-8")
    arguments = ("evaluate", folder / "sparse.keras", folder / "digits.parquet", "--label", "name")
    ran = penstock_run(*arguments, "--output", tmp_path / "out", "--part-rows", 500, "--json", "--confusion")
    found = summary_of(ran)
    says_what_keras_says(found, folder, "sparse")
    (confusion,) = found["confusion"].values()
    assert confusion["classes"] == names
    matrix = np.array(confusion["matrix"])
    assert matrix.sum() == 1797
    assert np.trace(matrix) / 1797 == pytest.approx(found["metrics"]["accuracy"], abs=1e-6)

    later = penstock_run("evaluate", "--from-predictions", tmp_path / "out", "--label", "digit",
                         "--metrics", "accuracy", "--per-class", "--json")  # fmt: skip
    again = summary_of(later)
    assert again["metrics"]["accuracy"] == pytest.approx(found["metrics"]["accuracy"], abs=1e-7)
    rows = [each["rows"] for each in next(iter(again["per_class"].values())).values()]
    assert rows == matrix.sum(axis=1).tolist()


def test_rows_without_a_label_are_counted_and_left_out(
    light_models: Path, pixels: np.ndarray[Any, np.dtype[np.uint8]], penstock_run: Penstock, tmp_path: Path
) -> None:
    labels: list[int | None] = [int(row[0]) % 10 for row in pixels[:500]]
    labels[7] = labels[300] = None
    values = [list(map(int, row)) for row in pixels[:500]]
    values[20] = values[20][:10]
    pq.write_table(pa.table({"pixels": values, "y": labels}), tmp_path / "rows.parquet")
    ran = penstock_run("evaluate", light_models / "digits.onnx", tmp_path / "rows.parquet", "--label", "y",
                       "--metrics", "accuracy,f1_score", "--loss", "sparse_categorical_crossentropy",
                       "--json")  # fmt: skip
    assert ran.returncode == 3, ran.stderr
    found = json.loads(ran.stdout)
    assert (found["rows"], found["failed"]) == (497, 3)
    assert "row 7: the label 'y' is null" in found["first_failure"]
    assert list(found["metrics"]) == ["loss", "accuracy", "f1_score"]
    assert len(found["metrics"]["f1_score"]) == 10


COLOURS = ("red", "green", "blue")


@pytest.mark.parametrize(
    "written", ["csv", *(pytest.param(each, marks=pytest.mark.slow) for each in ("parquet", "arrow", "jsonl"))]
)
def test_photos_in_a_folder_for_each_class_are_evaluated_from_what_predict_wrote(
    light_models: Path, penstock_run: Penstock, tmp_path: Path, written: str
) -> None:
    """The model gives the mean of each colour. One photo lies in a wrong folder, another one is broken."""
    for number in range(30):
        folder = tmp_path / "photos" / COLOURS[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.full((32, 32, 3), 20, np.uint8)
        pixels[..., number % 3 if number else 2] = 200
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    (tmp_path / "photos" / "green" / "04.png").write_bytes(b"no photo")
    (tmp_path / "classes.txt").write_text("\n".join(COLOURS), encoding="utf-8")
    arguments = ("--label", "@folder", "--labels", tmp_path / "classes.txt", "--metrics", "accuracy", "--confusion")
    model = (light_models / "colour.onnx", tmp_path / "photos")
    if written == "parquet":
        found = summary_of(penstock_run("evaluate", *model, "--output", tmp_path / "out", *arguments, "--json"))
        assert (found["rows"], found["failed"]) == (29, 1)
    else:
        keep = ("--format", written, "--keep", "@folder", "--part-rows", 7)
        assert penstock_run("predict", *model, "--output", tmp_path / "out", *keep).returncode == 3
    found = summary_of(penstock_run("evaluate", "--from-predictions", tmp_path / "out", *arguments, "--json"))
    assert (found["rows"], found["failed"]) == (29, 1)
    assert found["metrics"]["accuracy"] == pytest.approx(28 / 29)
    assert found["confusion"]["colour"] == {"classes": list(COLOURS), "matrix": [[9, 0, 1], [0, 9, 0], [0, 0, 10]]}


def test_predictions_that_were_altered_are_refused(light_models: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    (tmp_path / "red").mkdir()
    Image.new("RGB", (32, 32), "red").save(tmp_path / "red" / "0.png")
    written = penstock_run("predict", light_models / "colour.onnx", tmp_path / "red", "--format", "csv", "--keep",
                           "@folder", "--output", tmp_path / "out")  # fmt: skip
    assert written.returncode == 0, written.stderr
    (part,) = (tmp_path / "out").glob("part-*")
    content = part.read_bytes()
    part.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
    ran = penstock_run("evaluate", "--from-predictions", tmp_path / "out", "--label", "@folder", "--metrics", "mse")
    assert ran.returncode == 7, ran.stderr
    assert "a part is not as it was written" in ran.stderr
    assert f"penstock resume {tmp_path / 'out'} --verify" in ran.stderr
