"""Models that try to run code or to reach files: none does without `--trust-model`, and ordinary ones need no trust."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from penstock.errors import ModelError
from penstock.models import catalog
from penstock.models.scan import operations
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
    "unmarshals.keras": "it names an object by a path: core.Lambda",
    "imports_for_a_spec.keras": "imported_by_a_model.X",
    "imports_for_a_function.keras": "imported_by_a_model.f",
    "downloads.h5": "calls tf.keras.utils.get_file",
    "loads_a_library.h5": "calls tf.experimental.register_filesystem_plugin",
    "connects.h5": "calls tf.Session",
    "builds_another.h5": "calls tf.keras.models.model_from_json",
    "samples_a_file.h5": "calls tf.random.fixed_unigram_candidate_sampler",
    "removed_operation.pb": "reads files: Skipgram",
    "dumps.pb": "writes files: DumpTensor",
    "prints_by_its_caller.pb": "takes a setting from its caller: PrintV2 with output_stream",
}
NEVER_LOADED = {
    "climbing.keras": "leads out of the archive",
    "giant_array.keras": "it declares arrays of 4.0 TB",
    "giant_layer.keras": "its layers declare more than 4.0 TB",
    "giant_array.h5": "it declares arrays of 4.0 TB",
    "giant_recurrent.keras": "its layers declare more than 10 GB",
    "giant_input.keras": "its layers declare more than 10 GB",
}
BY_COMMAND = (
    "lambda.keras", "os_system.keras", "climbing.keras", "giant_layer.keras",
    "marshalled.h5", "external_link.h5", "giant_array.h5", "unmarshals.keras",
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
    "of_keras_2.keras": "keras",
    "registered_elsewhere.keras": "keras",
    "recurrent.keras": "keras",
    "dense.keras": "keras",
    "giant_constant.pb": "frozen_graph",
}
LOADED_BY_TF_KERAS = {
    "innocent/of_keras_2.keras": "Functional",
    "innocent/operator.h5": "Functional",
    "innocent/registered_elsewhere.keras": "ModelError: the model has a class or function of its own",
    "hostile/marshalled.h5": "ModelError: the model does not load",
    "hostile/imports_for_a_spec.keras": "ModelError: the model has a class or function of its own",
    "hostile/imports_for_a_function.keras": "ModelError: the model has a class or function of its own",
} | dict.fromkeys(
    (f"hostile/{name}" for name in (
        "unmarshals.keras", "downloads.h5", "loads_a_library.h5", "connects.h5", "builds_another.h5",
        "samples_a_file.h5", "writes_by_symbol.h5",
    )),
    "ModelError: the model can run code or reach files, and is not trusted",
)  # fmt: skip
LOADED_BY_KERAS_3 = {
    "innocent/plain.keras": "Sequential",
    "innocent/words.keras": "Sequential",
    "innocent/plain.h5": "Sequential",
    "innocent/recurrent.keras": "Functional",
    "hostile/giant_recurrent.keras": "ModelError: the model declares weights far beyond what its file holds",
    "hostile/giant_input.keras": "ModelError: the model declares weights far beyond what its file holds",
    "innocent/plain.pb": "tuple",
    "innocent/giant_constant.pb": "ModelError: the graph makes a tensor that no memory holds",
    "hostile/removed_operation.pb": "ModelError: the graph does not load",
    "hostile/lambda.keras": "ModelError: the model can run code or reach files, and is not trusted",
}
NAMES_A_PLACE = re.compile(
    r"(?:^|_)(?:file|files|filename|filenames|path|paths|dir|directory|url|urls|address|addresses|dump|log|library"
    r"|protocol|host|hostname|prefix|program|module|pattern|server|plugin|command|tmp)(?:_|$)"
)
ONLY_SOUNDS_LIKE_IT = {
    "_FusedQuantizedConv2D", "_FusedQuantizedDepthwiseConv2D", "_QuantizedMatMul",  # inputs that stay on the host
    "RegexFullMatch", "RegexReplace", "StaticRegexFullMatch", "StaticRegexReplace",
    "SetStatsAggregatorDataset", "ExperimentalSetStatsAggregatorDataset",  # names of counters
    "_TPUReplicate", "TPUReplicateMetadata", "StoreMinibatchStatisticsInFdo",
    "GetMinibatchSplitsWithPhysicalReplica", "GetMinibatchesInCsrWithPhysicalReplica",
}  # fmt: skip
OPENING = """
import resource, sys
from penstock.models import catalog
from penstock.errors import ModelError
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
for path in sys.argv[1:]:
    try:
        catalog.open_model(path)
    except ModelError as error:
        print(str(error).splitlines()[0])
"""
LOADING = """
import json, os, sys
from penstock.core.records import ModelFile
from penstock.errors import PenstockError
from penstock.runtimes.tensorflow.frozen_graph import load as load_graph
from penstock.runtimes.environment import lean_imports
if sys.argv[1] == "tf_keras":
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
with lean_imports(ModelFile("keras", "", "", ()), "tensorflow"):
    __import__(sys.argv[1])
if sys.argv[1] == "tf_keras":
    from penstock.runtimes.keras.tf_keras import load_tf_keras_model as load
else:
    from penstock.runtimes.keras.loading import load_keras_model as load
found = {}
for path in sys.argv[2:]:
    kind = {".h5": "h5", ".pb": "frozen_graph"}.get(os.path.splitext(path)[1], "keras")
    file = ModelFile(kind, os.path.abspath(path), "", ())
    try:
        found[path] = type((load_graph if kind == "frozen_graph" else load)(file)).__name__
    except PenstockError as error:
        found[path] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
assert "imported_by_a_model" not in sys.modules
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that support/hostile_models.py fills, and rows to give to its models."""
    folder = tmp_path_factory.mktemp("hostile")
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.hostile_models", str(folder)],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, env=ENVIRONMENT, check=False,
    )  # fmt: skip
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
        catalog.open_model(str(made / "hostile" / name))
    assert (NEED_TRUST | NEVER_LOADED)[name] in str(caught.value)
    assert ("--trust-model" in str(caught.value)) == (name in NEED_TRUST)
    assert everything_in(made) == before


@pytest.mark.parametrize(
    ("name", "mark"), [("lambda.keras", "lambda"), pytest.param("hidden", "writes", marks=pytest.mark.slow)]
)
@pytest.mark.slow
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
        catalog.open_model(str(made / "hostile" / name), trust=True)
    assert NEVER_LOADED[name] in str(caught.value)


@pytest.mark.parametrize(("name", "kind"), INNOCENT.items())
def test_ordinary_models_need_no_trust(made: Path, name: str, kind: str) -> None:
    file = catalog.open_model(str(made / "innocent" / name))
    assert file.kind == kind
    facts = catalog.facts_of(file)
    assert not facts.needs_trust
    assert facts.num_bytes > 0


def test_facts_name_what_needs_trust_without_raising(made: Path) -> None:
    for name, reason in NEED_TRUST.items():
        file = catalog.open_model(str(made / "hostile" / name), trust=True)
        assert reason in "; ".join(catalog.facts_of(file).needs_trust), name


@pytest.mark.parametrize(
    ("library", "expected"), [("tf_keras", LOADED_BY_TF_KERAS), ("keras", LOADED_BY_KERAS_3)], ids=["tf_keras", "keras"]
)
def test_loaders_hold_without_the_look_at_the_file(made: Path, library: str, expected: dict[str, str]) -> None:
    before = everything_in(made)
    ran = subprocess.run(
        [sys.executable, "-c", LOADING, library, *expected],
        cwd=made, capture_output=True, text=True, check=False, env=ENVIRONMENT | {"PYTHONPATH": str(made)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == expected
    left = {name: content for name, content in everything_in(made).items() if "__pycache__" not in name}
    assert left == before


def test_every_operation_of_tensorflow_that_could_reach_a_place_is_known(made: Path) -> None:
    # A new TensorFlow may bring operations that read or write: they belong into models/scan/operations.py, or here.
    texts = json.loads((made / "operations.json").read_text(encoding="utf-8"))
    assert len(texts) > 1000
    unknown = {
        operation
        for operation, names in texts.items()
        if any(map(NAMES_A_PLACE.search, names)) and not operations.why(operation)
    }
    assert unknown - ONLY_SOUNDS_LIKE_IT - operations.BY_ATTRIBUTES == set()


def test_files_beyond_all_memory_are_told(made: Path, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("plain.mlir", "plain.tflite", "plain.onnx")]
    for path in paths:
        path.write_bytes((made / "innocent" / path.name).read_bytes())
        with path.open("r+b") as file:
            file.truncate(1 << 40)  # takes no space: nothing was written there
    ran = subprocess.run([sys.executable, "-c", OPENING, *map(str, paths)], capture_output=True, text=True, check=False)
    assert ran.stdout.splitlines() == ["the model is too large to be read"] * len(paths), ran.stderr


def test_files_say_what_wrote_them(made: Path) -> None:
    def writer(name: str) -> str:
        return str(catalog.facts_of(catalog.open_model(str(made / "innocent" / name))).writer)

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
            catalog.open_model(str(cut))


INSPECT_WITH_A_SHORT_LIMIT = """
import sys
from penstock.models.scan import hdf5
hdf5.LIMIT_S = 0.5
from penstock.cli.commands import main
sys.exit(main(["inspect", sys.argv[1]]))
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["model.h5", "model.keras"])
def test_damaged_file_with_which_hdf5_never_ends_is_refused(tmp_path: Path, name: str) -> None:
    inner, path = tmp_path / "inner.h5", tmp_path / name
    with h5py.File(inner, "w") as file:
        file.attrs["model_config"] = "{}"
        file.attrs["keras_version"] = "last text"
    raw = bytearray(inner.read_bytes())
    raw[raw.index(b"last text") - 8] = 140  # the size of the last text in the heap: the next one would lie in no text
    inner.write_bytes(raw)
    if name == "model.h5":
        inner.rename(path)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("config.json", "{}")
            archive.write(inner, "model.weights.h5")
    command = [sys.executable, "-c", INSPECT_WITH_A_SHORT_LIMIT, str(path)]
    ran = subprocess.run(command, env=ENVIRONMENT, text=True, capture_output=True, timeout=100, check=False)
    assert ran.returncode == 6, ran.stderr
    assert "the file is damaged" in ran.stderr
    assert "HDF5 does not come to an end with it" in ran.stderr
