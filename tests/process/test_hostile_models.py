"""Models that try to run code or to reach files: none does without `--trust-model`, and ordinary ones need no trust."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock import registry
from penstock.errors import ModelError
from tests.conftest import ENVIRONMENT, Penstock

NEED_TRUST = {
    "lambda.keras": "is a Lambda",
    "os_system.keras": "os.system",
    "eval.keras": "eval",
    "get_file.keras": "keras.utils.get_file",
    "vocabulary.keras": "reads the file",
    "external_array.keras": "keeps its values in another file",
    "marshalled.h5": "marshalled Python code",
    "external_link.h5": "is a link into another file",
    "external_array.h5": "keeps its values in another file",
    "virtual_array.h5": "is put together from other files",
    "writes_by_symbol.h5": "calls tf.io.write_file",
    "writes": "writes files: WriteFile",
    "hidden": "writes files: WriteFile",
    "branches": "writes files: WriteFile",
    "reads": "reads files: ReadFile",
    "calls_python": "calls Python: EagerPyFunc",
    "prints": "PrintV2 into file:",
    "debugs": "DebugIdentityV2 to file:",
    "writes_when_initialised": "writes files: WriteFile",
    "writes_when_restored": "writes files: WriteFile",
    "table_of_another_file": "reads files: InitializeTableFromTextFileV2",
    "climbing_asset": "../../../secret.txt",
    "linked": "links to a file outside of its folder",
    "writes.pb": "writes files: WriteFile",
    "climbing.onnx": "../secret.txt",
    "reads.tflite": "reads files: ReadFile",
}
NEVER_LOADED = {
    "climbing.keras": "leads out of the archive",
    "giant_array.keras": "it declares arrays of 4.0 TB",
    "giant_layer.keras": "its layers declare more than 4.0 TB",
    "giant_array.h5": "it declares arrays of 4.0 TB",
}
BY_COMMAND = (
    "lambda.keras", "os_system.keras", "climbing.keras", "giant_layer.keras",
    "marshalled.h5", "external_link.h5", "giant_array.h5",
    "reads", "hidden", "calls_python", "prints", "writes_when_initialised", "writes_when_restored",
    "writes.pb", "climbing.onnx", "reads.tflite",
)  # fmt: skip
"""One of each sort, for the real command: it takes a second each. The others are opened as the command opens them."""
INNOCENT = {
    "plain.keras": "keras",
    "words.keras": "keras",
    "plain.h5": "h5",
    "operator.h5": "h5",
    "plain": "saved_model",
    "says": "saved_model",
    "table": "saved_model",
    "exported": "saved_model",
    "recurrent": "saved_model",
    "first_generation": "saved_model",
    "plain.pb": "frozen_graph",
    "plain.onnx": "onnx",
    "external.onnx": "onnx",
    "plain.tflite": "tflite",
    "plain.jax_export": "jax_export",
    "plain.mlirbc": "stablehlo",
    "plain.mlir": "stablehlo",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that support/hostile_models.py fills, and rows to give to its models."""
    folder = tmp_path_factory.mktemp("hostile")
    script = Path(__file__).parents[1] / "support" / "hostile_models.py"
    ran = subprocess.run(
        [sys.executable, str(script), str(folder)], capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert ran.returncode == 0, ran.stderr
    np.save(folder / "x.npy", np.ones((3, 4), "f4"))
    return folder


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_every_hostile_model_is_tried(made: Path) -> None:
    assert {path.name for path in (made / "hostile").iterdir()} == set(NEED_TRUST) | set(NEVER_LOADED)
    models = {path.name for path in (made / "innocent").iterdir()} - {"external.weights"}
    assert models == set(INNOCENT)


@pytest.mark.parametrize("name", BY_COMMAND)
def test_nothing_runs_or_is_written_without_trust(
    made: Path, penstock_run: Penstock, tmp_path: Path, name: str
) -> None:
    before = everything_in(made)
    ran = penstock_run("predict", made / "hostile" / name, made / "x.npy", "--output", tmp_path / "out", cwd=tmp_path)
    assert ran.returncode == 6, ran.stderr
    assert (NEED_TRUST | NEVER_LOADED)[name] in ran.stderr
    assert ("--trust-model" in ran.stderr) == (name in NEED_TRUST)
    assert everything_in(made) == before
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", sorted({*NEED_TRUST, *NEVER_LOADED} - set(BY_COMMAND)))
def test_nothing_is_opened_without_trust(made: Path, name: str) -> None:
    before = everything_in(made)
    with pytest.raises(ModelError) as caught:
        registry.open_model(str(made / "hostile" / name))
    assert (NEED_TRUST | NEVER_LOADED)[name] in str(caught.value)
    assert ("--trust-model" in str(caught.value)) == (name in NEED_TRUST)
    assert everything_in(made) == before


@pytest.mark.parametrize(("name", "mark"), [("lambda.keras", "lambda"), ("hidden", "writes")])
def test_with_trust_they_do_run(made: Path, penstock_run: Penstock, tmp_path: Path, name: str, mark: str) -> None:
    # Without this, the tests above would pass for models that do nothing.
    ran = penstock_run(
        "predict", made / "hostile" / name, made / "x.npy", "--output", tmp_path / "out", "--trust-model",
        "--devices", "cpu:1",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    left = made / "canary" / mark
    assert left.read_text() == "ran"
    left.unlink()


@pytest.mark.parametrize("name", NEVER_LOADED)
def test_damage_is_no_matter_of_trust(made: Path, name: str) -> None:
    with pytest.raises(ModelError, match="damaged") as caught:
        registry.open_model(str(made / "hostile" / name), trust=True)
    assert NEVER_LOADED[name] in str(caught.value)


@pytest.mark.parametrize(("name", "kind"), INNOCENT.items())
def test_ordinary_models_need_no_trust(made: Path, name: str, kind: str) -> None:
    file = registry.open_model(str(made / "innocent" / name))
    assert file.kind == kind
    facts = registry.facts_of(file)
    assert not facts.needs_trust
    assert facts.num_bytes > 0


def test_facts_name_what_needs_trust_without_raising(made: Path) -> None:
    for name, reason in NEED_TRUST.items():
        file = registry.open_model(str(made / "hostile" / name), trust=True)
        assert reason in "; ".join(registry.facts_of(file).needs_trust), name


def test_files_say_what_wrote_them(made: Path) -> None:
    def writer(name: str) -> str:
        return str(registry.facts_of(registry.open_model(str(made / "innocent" / name))).writer)

    assert writer("plain.keras").startswith("Keras 3.")
    assert writer("plain.h5").startswith("Keras 2.")
    assert writer("plain.h5").endswith("on tensorflow")
    assert writer("first_generation").startswith("TensorFlow 2.")
    assert writer("plain.onnx").startswith("by hand (ONNX IR")
    assert "opset ai.onnx 17" in writer("plain.onnx")
    assert writer("plain.tflite") == "MLIR Converted"
    assert "StableHLO_v" in writer("plain.mlirbc")
    assert "function <lambda>" in writer("plain.jax_export")


def test_cut_off_files_are_told(made: Path, tmp_path: Path) -> None:
    for name in ("plain.keras", "plain.h5", "plain.pb", "plain.onnx", "plain.tflite", "plain.jax_export"):
        content = (made / "innocent" / name).read_bytes()
        cut = tmp_path / name
        cut.write_bytes(content[: len(content) * 2 // 3])
        with pytest.raises(ModelError, match="damaged"):
            registry.open_model(str(cut))
