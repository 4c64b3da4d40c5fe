"""Plain model files (ONNX, TensorFlow Lite, JAX exports, StableHLO): the same answers as what wrote them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ENVIRONMENT, Penstock, penstock_command, read_rows, summary_of
from tests.support import make_zoo, onnx_models
from tests.support.onnx_models import node

RNG = np.random.default_rng(4)


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What support/make_zoo.py writes; each file by the framework it belongs to."""
    folder = tmp_path_factory.mktemp("zoo")
    command = [sys.executable, make_zoo.__file__, str(folder)]
    made = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert made.returncode == 0, made.stderr[-2000:]
    return folder


@pytest.fixture(scope="module")
def expected(zoo: Path) -> dict[str, Any]:
    return dict(np.load(zoo / "expected.npz"))


def column(folder: Path, name: str) -> Any:
    return np.stack(read_rows(folder).column(name).to_numpy(zero_copy_only=False))


def predict(penstock_run: Penstock, model: Path, data: Path, out: Path, *options: str) -> dict[str, Any]:
    ran = penstock_run("predict", model, data, "--output", out, "--json", *options)
    assert ran.returncode == 0, ran.stderr
    return summary_of(ran)


def network(folder: Path) -> tuple[Path, Any]:
    """A dense network in ONNX, and what it computes, in numpy."""
    first, second = (RNG.normal(size=shape).astype("f4") for shape in ((16, 8), (8, 5)))
    path = onnx_models.save(
        folder / "network.onnx",
        [
            node("MatMul", ["pixels", "first"], ["hidden"]),
            node("Relu", ["hidden"], ["active"]),
            node("MatMul", ["active", "second"], ["logits"]),
            node("Softmax", ["logits"], ["share"], axis=-1),
        ],
        {"pixels": ("FLOAT", ["rows", 16]), "first": ("FLOAT", [16, 8])},
        {"logits": ("FLOAT", ["rows", 5]), "share": ("FLOAT", ["rows", 5])},
        initializers={"first": first, "second": second},
    )
    return path, lambda pixels: np.maximum(pixels.astype("f4") @ first, 0) @ second


def test_an_onnx_network_answers_every_row_on_every_device(penstock_run: Penstock, tmp_path: Path) -> None:
    model, compute = network(tmp_path)
    pixels = RNG.integers(0, 255, (5000, 16), dtype=np.uint8)
    np.save(tmp_path / "pixels.npy", pixels)
    summary = predict(penstock_run, model, tmp_path / "pixels.npy", tmp_path / "out", "--devices", "cpu:2")
    assert summary["recipe"]["runtime"] == "onnx"
    assert summary["rows"] == 5000
    assert set(read_rows(tmp_path / "out").column_names) == {"row", "logits", "share"}
    np.testing.assert_allclose(column(tmp_path / "out", "logits"), compute(pixels), rtol=1e-4, atol=1e-2)


def test_the_best_classes_of_an_onnx_output_are_scaled_and_ranked(penstock_run: Penstock, tmp_path: Path) -> None:
    model, compute = network(tmp_path)
    pixels = RNG.integers(0, 255, (100, 16), dtype=np.uint8)
    np.save(tmp_path / "pixels.npy", pixels)
    predict(
        penstock_run, model, tmp_path / "pixels.npy", tmp_path / "out",
        "--outputs", "logits", "--top-k", "2", "--preset", "scale-0-1",
    )  # fmt: skip
    logits = compute(pixels / np.float32(255))
    np.testing.assert_array_equal(column(tmp_path / "out", "logits_class"), np.argsort(-logits, axis=1)[:, :2])
    # A logit near zero is what is left of terms that cancel: measured against the spread of all of them.
    tolerance = 1e-5 * float(np.ptp(logits))
    best = -np.sort(-logits, axis=1)[:, :2]
    np.testing.assert_allclose(column(tmp_path / "out", "logits_score"), best, rtol=1e-5, atol=tolerance)


def test_strings_go_through_onnx(penstock_run: Penstock, tmp_path: Path) -> None:
    model = onnx_models.save(
        tmp_path / "double.onnx",
        [node("StringConcat", ["text", "text"], ["twice"])],
        {"text": ("STRING", ["rows"])},
        {"twice": ("STRING", ["rows"])},
    )
    (tmp_path / "rows.csv").write_text("text\nab\nGrüße\n\n", encoding="utf-8")
    predict(penstock_run, model, tmp_path / "rows.csv", tmp_path / "out")
    assert read_rows(tmp_path / "out").column("twice").to_pylist()[:2] == ["abab", "GrüßeGrüße"]


def test_a_fixed_batch_of_an_onnx_file_is_padded_and_trimmed(penstock_run: Penstock, tmp_path: Path) -> None:
    model = onnx_models.save(
        tmp_path / "eight.onnx",
        [node("Mul", ["x", "factor"], ["product"])],
        {"x": ("FLOAT", [8, 4]), "factor": ("FLOAT", [])},
        {"product": ("FLOAT", [8, 4])},
    )
    x = RNG.normal(size=(21, 4)).astype("f4")
    np.save(tmp_path / "x.npy", x)
    summary = predict(penstock_run, model, tmp_path / "x.npy", tmp_path / "out", "--constant", "factor=2.5")
    assert summary["recipe"]["batch_size"] == 8
    np.testing.assert_array_equal(column(tmp_path / "out", "product"), x * np.float32(2.5))
    ran = penstock_run("predict", model, tmp_path / "x.npy", "--output", tmp_path / "other")
    assert ran.returncode == 6
    assert "--constant factor=VALUE" in ran.stderr


def test_a_tflite_model_answers_what_keras_does(
    zoo: Path, expected: dict[str, Any], penstock_run: Penstock, tmp_path: Path
) -> None:
    summary = predict(penstock_run, zoo / "digits.tflite", zoo / "images.npy", tmp_path / "out")
    assert summary["recipe"]["runtime"] == "tflite"
    assert summary["recipe"]["batch_size"] > 1
    np.testing.assert_allclose(column(tmp_path / "out", "output_0"), expected["digits"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("given", ["images", "stored"])
def test_a_quantised_tflite_model_takes_real_numbers_and_its_own_integers(
    zoo: Path, expected: dict[str, Any], penstock_run: Penstock, tmp_path: Path, given: str
) -> None:
    predict(penstock_run, zoo / "quantised.tflite", zoo / f"{given}.npy", tmp_path / "out")
    np.testing.assert_allclose(column(tmp_path / "out", "output_0"), expected["quantised"], atol=1 / 255)
    np.testing.assert_allclose(column(tmp_path / "out", "output_0"), expected["digits"], atol=0.02)


def test_both_signatures_of_a_tflite_file_also_the_one_that_takes_one_row_at_a_time(
    zoo: Path, expected: dict[str, Any], penstock_run: Penstock, tmp_path: Path
) -> None:
    x = expected["x"]
    model, data = zoo / "two.tflite", zoo / "rows.npz"
    predict(penstock_run, model, data, tmp_path / "add", "--signature", "add")
    np.testing.assert_array_equal(column(tmp_path / "add", "sum"), x + np.arange(len(x), dtype="f4")[:, None])
    summary = predict(penstock_run, model, data, tmp_path / "fold", "--signature", "fold")
    assert summary["recipe"]["batch_size"] > 1
    np.testing.assert_allclose(column(tmp_path / "fold", "total"), x.sum(axis=1), rtol=1e-5, atol=1e-6)
    ran = penstock_run("predict", model, data, "--output", tmp_path / "out")
    assert ran.returncode == 6
    assert "allowed: add, fold" in ran.stderr


def test_a_recurrent_tflite_model_answers_what_keras_does_whatever_came_before(
    zoo: Path, expected: dict[str, Any], penstock_run: Penstock, tmp_path: Path
) -> None:
    answers = []
    for devices in ("cpu:1", "cpu:2"):
        out = tmp_path / devices.replace(":", "")
        options = ("--signature", "recur", "--devices", devices, "--batch-size", "4")
        predict(penstock_run, zoo / "keeping.tflite", zoo / "rows.npz", out, *options)
        answers.append(column(out, "state"))
    np.testing.assert_allclose(answers[0], expected["recurrent"], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(answers[0], answers[1])


def test_a_tflite_model_that_writes_variables_answers_every_row_as_if_it_were_the_first(
    zoo: Path, expected: dict[str, Any], penstock_run: Penstock, tmp_path: Path
) -> None:
    options = ("--signature", "count", "--batch-size", "8")
    predict(penstock_run, zoo / "keeping.tflite", zoo / "rows.npz", tmp_path / "out", *options)
    np.testing.assert_array_equal(column(tmp_path / "out", "counted"), expected["x"] + 1)


def test_what_a_tflite_model_finds_in_a_row_is_a_list_however_many_there_are(
    zoo: Path, expected: dict[str, Any], penstock_run: Penstock, tmp_path: Path
) -> None:
    x = expected["x"].copy()
    x[:4] = -1, -2, -3, 0.5  # one in each row of the first batch
    x[7] = -1
    np.savez(tmp_path / "rows.npz", x=x)
    options = ("--signature", "find", "--batch-size", "4")
    predict(penstock_run, zoo / "keeping.tflite", tmp_path / "rows.npz", tmp_path / "out", *options)
    found = read_rows(tmp_path / "out").column("found").to_pylist()
    assert found == [[[float(place), float(row[place])] for place in np.flatnonzero(row > 0)] for row in x]


def test_strings_go_through_tflite_and_missing_operations_are_named(
    zoo: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("text\nab\nGrüße\n", encoding="utf-8")
    predict(penstock_run, zoo / "same.tflite", tmp_path / "rows.csv", tmp_path / "out")
    assert read_rows(tmp_path / "out").column("same").to_pylist() == ["ab", "Grüße"]
    ran = penstock_run("predict", zoo / "lower.tflite", tmp_path / "rows.csv", "--output", tmp_path / "no")
    assert ran.returncode == 6
    assert "FlexStringLower" in ran.stderr


def test_a_jax_export_with_an_open_batch_takes_a_constant(
    zoo: Path, expected: dict[str, Any], penstock_run: Penstock, tmp_path: Path
) -> None:
    summary = predict(
        penstock_run, zoo / "score.jax", zoo / "rows.npz", tmp_path / "out",
        "--constant", "input_1=2", "--devices", "cpu:2",
    )  # fmt: skip
    assert summary["recipe"]["runtime"] == "stablehlo"
    assert summary["recipe"]["batch_size"] > 1
    for name in ("logits", "best", "half"):
        np.testing.assert_allclose(
            column(tmp_path / "out", name), expected[f"score_{name}"], rtol=1e-2 if name == "half" else 1e-5
        )


def test_the_best_classes_of_a_jax_export_are_ranked_inside_the_step(
    zoo: Path, expected: dict[str, Any], penstock_run: Penstock, tmp_path: Path
) -> None:
    options = ("--constant", "input_1=2", "--outputs", "logits", "--top-k", "2")
    predict(penstock_run, zoo / "score.jax", zoo / "rows.npz", tmp_path / "out", *options)
    assert set(read_rows(tmp_path / "out").column_names) == {"row", "logits_class", "logits_score"}
    order = np.argsort(-expected["score_logits"], axis=1)[:, :2]
    np.testing.assert_array_equal(column(tmp_path / "out", "logits_class"), order)


@pytest.mark.parametrize(
    "module", [pytest.param("project.mlirbc", marks=pytest.mark.slow), "project.mlir", "open_batch.mlirbc"]
)
def test_a_bare_stablehlo_module_runs(
    zoo: Path, expected: dict[str, Any], penstock_run: Penstock, tmp_path: Path, module: str
) -> None:
    summary = predict(penstock_run, zoo / module, zoo / "rows.npz", tmp_path / "out", "--input", "input=x")
    assert (summary["recipe"]["batch_size"] == 8) is module.startswith("project")
    np.testing.assert_allclose(column(tmp_path / "out", "output_0"), expected["projected"], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(column(tmp_path / "out", "output_1"), expected["positive"])


def test_an_export_for_another_platform_is_refused(zoo: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    ran = penstock_run("predict", zoo / "for_tpu.jax", zoo / "rows.npz", "--output", tmp_path / "out")
    assert ran.returncode == 8
    assert "for tpu; this is cpu" in ran.stderr


@pytest.mark.parametrize("name", ["digits.tflite", "score.jax", "project.mlirbc", "network.onnx"])
def test_half_a_file_is_refused_in_a_few_lines(zoo: Path, penstock_run: Penstock, tmp_path: Path, name: str) -> None:
    whole = network(tmp_path)[0] if name == "network.onnx" else zoo / name
    half = tmp_path / f"half{whole.suffix}"
    half.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    ran = penstock_run("predict", half, zoo / "rows.npz", "--output", tmp_path / "out")
    assert ran.returncode == 6, ran.stderr
    assert half.name in ran.stderr
    assert len(ran.stderr.splitlines()) < 8


@pytest.mark.parametrize(
    ("model", "hidden", "install"),
    [
        ("network.onnx", ["onnxruntime"], "pip install 'penstock[onnx]'"),
        ("digits.tflite", ["ai_edge_litert", "tensorflow"], "pip install 'penstock[tflite]'"),
        ("score.jax", ["jax"], "pip install 'penstock[jax]'"),
    ],
)
def test_a_missing_package_is_named_with_the_line_that_installs_it(
    zoo: Path, tmp_path: Path, model: str, hidden: list[str], install: str
) -> None:
    path = network(tmp_path)[0] if model == "network.onnx" else zoo / model
    ran = subprocess.run(
        penstock_command("predict", path, zoo / "rows.npz", "--output", tmp_path / "out"),
        capture_output=True, text=True, env=ENVIRONMENT | {"HIDDEN": ",".join(hidden)}, check=False,
    )  # fmt: skip
    assert ran.returncode == 8, ran.stderr
    assert install in ran.stderr
