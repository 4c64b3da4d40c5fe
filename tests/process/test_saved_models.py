"""SavedModels and frozen graphs of every age: whatever their signatures take and give."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.columns import join
from penstock.core.output_selection import Answers
from penstock.core.records import Feature
from penstock.errors import DeviceError, InputError, ModelError, UsageError
from tests.conftest import ENVIRONMENT, Penstock, read_rows
from tests.support.answer_saved_models import Answered, Case
from tests.support.make_saved_models import KINDS

ROWS = 10
X = np.random.default_rng(3).normal(size=(ROWS, 4)).astype("f4")
LISTS = [[1, 2, 3], [4], [5, 6], [0, 0, 7, 1], [2], [], [3], [1, 1], [9], [8]]
WIDTHS = np.array([1, 2, 0, 1, 5, 0, 0, 0, 3, 0], np.int32)
WITH_NAN = np.where(np.arange(4 * ROWS).reshape(ROWS, 4) % 5 == 1, np.nan, X).astype("f4")
IDS = [[row % 5, 0, 3][: 1 + row % 3] for row in range(ROWS)]


def whole_numbers(kind: str) -> Any:
    """Small numbers, and the limits of their kind but for one."""
    values = np.arange(2 * ROWS).reshape(ROWS, 2) % 2
    if kind == "bool":
        return values.astype(bool)
    if kind in ("float16", "bfloat16", "float64"):
        return (values + 0.5).astype("f4" if kind == "bfloat16" else kind)
    values = values.astype(kind)
    values[0] = np.iinfo(kind).max - 1, np.iinfo(kind).min
    return values


KINDS_IN = {f"v_{kind}": whole_numbers(kind) for kind in KINDS} | {
    f"s_{kind}": whole_numbers(kind)[:, 0] for kind in KINDS
}
PEOPLE = {
    "age": pa.array([30, None, *range(8)], pa.int64()),
    "size": pa.array([[1.5, 2.5]] * 9 + [[1.0]], pa.list_(pa.float32())),
    "city": pa.array(["Köln", "Ulm", None, *["x"] * 7]),
    "tags": pa.array([["a", "b"], None, [], *[["c"]] * 7]),
    "marks": pa.array([[1.0, 2.0], None, *[[3.0]] * 8], pa.list_(pa.float64())),
}
CONSTANTS = {"factor": "2.5", "suffix": "!", "shift": "1, -1"}

CASES = {
    "kinds": Case("kinds", KINDS_IN),
    "too large": Case("kinds", {**KINDS_IN, "s_int8": np.array([1, 300, *range(8)])}),
    "constants": Case("kinds", {"x": X[:, :2]}, "scaled", CONSTANTS),
    "training": Case("kinds", {"x": X[:, :2]}, "scaled", {**CONSTANTS, "training": "true"}),
    "no constant": Case("kinds", signature="scaled"),
    "bad constant": Case("kinds", signature="scaled", constants={"factor": "much"}),
    "unknown constant": Case("kinds", signature="scaled", constants={"fctor": "1"}),
    "flattened": Case("not_rows", {"x": X}, "flattened"),
    "flattened left out": Case("not_rows", {"x": X}, "flattened", answers=Answers(outputs=("x",))),
    "classes": Case("not_rows", {"x": X}, "classes"),
    "total": Case("not_rows", {"x": X}, "total"),
    "unknown rank": Case("not_rows", {"x": X}, "unknown"),
    "complex": Case("not_rows", {"z": X[:, :2]}, "wave"),
    "no such signature": Case("not_rows", signature="nope"),
    "several signatures": Case("not_rows"),
    "ragged": Case("ragged", {"x": pa.array(LISTS, pa.list_(pa.int32()))}),
    "ragged of one length": Case("ragged", {"x": np.ones((ROWS, 3), "i4")}),
    "sparse": Case("sparse", {"bag": np.eye(5, dtype="f4")[np.arange(ROWS) % 5] * 3}),
    "widths": Case("widths", {"n": WIDTHS}, constants={"bias": "1,2,-3,4"}),
    "explained": Case("widths", {"x": WIDTHS[:, None]}, "explained", answers=Answers(outputs=("same",))),
    "explained but not so": Case("widths", {"x": WIDTHS[:, None]}, "explained"),
    "undeclared": Case("widths", {"n": WIDTHS}, "undeclared"),
    "constant out of range": Case("widths", constants={"bias": "1,2,300,4"}),
    "argmax of NaN": Case("not_rows", {"x": WITH_NAN}, "flattened", answers=Answers(outputs=("x",), argmax=True)),
    "best of NaN": Case("not_rows", {"x": WITH_NAN}, "flattened", answers=Answers(outputs=("x",), top_k=1)),
    "words": Case("words", {"text": pa.array(["a b", "", "c", *["d e f"] * 7])}),
    "old sparse": Case("old_sparse", {"ids": pa.array(IDS)}),
    "old sparse kept": Case("old_sparse", {"ids": pa.array(IDS)}, constants={"keep": "0.5", "is_training": "yes"}),
    "hub": Case("hub", {"x": X[:, :2], "id": np.arange(ROWS)}),
    "old hub": Case("old_hub", {"default": X[:, :2]}),
    "nothing": Case("nothing"),
    "parsing": Case("parsing", PEOPLE),
    "parsing renamed": Case(
        "parsing", {"years": np.arange(ROWS), "size": X[:, :2]}, inputs={"age": ("years",)}
    ),
    "parsing without a column": Case("parsing", {"size": X[:, :2], "town": pa.array(["x"] * ROWS)}),
    "parsing text for a number": Case("parsing", {"age": pa.array(["x"] * ROWS), "size": X[:, :2]}),
    "one by one": Case("parsing", {"age": np.arange(-3, ROWS - 3)}, "one_by_one"),
    "lookup": Case("lookup", {"words": np.array([["red", "blue"], ["green", "pink"]] * 5, object)}),
    "top k": Case("not_rows", {"x": X}, "unknown", answers=Answers(top_k=2)),
    "argmax": Case("not_rows", {"x": X}, "flattened", answers=Answers(outputs=("x",), argmax=True)),
    "damaged variables": Case("damaged"),
    "damaged graph": Case("damaged_graph"),
    "frozen": Case("frozen.pb", {"x": X[:, :2], "text": pa.array(["t"] * ROWS)}),
    "frozen inside": Case(
        "frozen.pb", {"h": np.abs(X[:, :2])}, inputs={"block/hidden": ("h",)}, constants={"keep": "3"},
        answers=Answers(outputs=("best:0",)),
    ),
    "frozen unknown output": Case("frozen.pb", answers=Answers(outputs=("nope",))),
    "no GPU": Case("nothing", device="gpu"),
    "frozen unknown input": Case("frozen.pb", inputs={"nope": ("x",)}),
    "frozen damaged": Case("damaged.pb"),
}  # fmt: skip


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of make_saved_models.py, and some of them damaged."""
    folder = tmp_path_factory.mktemp("zoo")
    _python(folder, "make_saved_models")
    shutil.copytree(folder / "hub", folder / "damaged")
    data = folder / "damaged/variables/variables.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:5])
    shutil.copytree(folder / "hub", folder / "damaged_graph")
    graph = folder / "damaged_graph/saved_model.pb"
    graph.write_bytes(graph.read_bytes()[:-100])
    (folder / "damaged.pb").write_bytes((folder / "frozen.pb").read_bytes()[:-20])
    return folder


def _python(folder: Path, *modules: str) -> None:
    """Run the `main` of some modules of tests/support in one process of their own."""
    code = "".join(f"from tests.support import {module}; {module}.main(folder)\n" for module in modules)
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", f"from pathlib import Path\nfolder = Path({str(folder)!r})\n{code}"],
        capture_output=True, text=True, env=ENVIRONMENT | {"CUDA_VISIBLE_DEVICES": "-1"}, cwd=root, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr


@pytest.fixture(scope="module")
def answers(zoo: Path) -> dict[str, Answered]:
    (zoo / "cases.pickle").write_bytes(pickle.dumps(CASES))
    _python(zoo, "answer_saved_models", "records_by_tensorflow")
    found: dict[str, Answered] = pickle.loads((zoo / "answers.pickle").read_bytes())
    return found


@pytest.fixture
def given(answers: dict[str, Answered]) -> Callable[[str], dict[str, Any]]:
    """The columns that a case was answered with."""

    def columns(case: str) -> dict[str, Any]:
        answered = answers[case]
        assert answered.error is None, answered.error
        return {name: join(pieces) for name, pieces in answered.columns.items()}

    return columns


Given = Callable[[str], dict[str, Any]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", ["v", "s"])
def test_every_width_of_number_goes_in_and_comes_out(given: Given, kind: str, shape: str) -> None:
    fed = KINDS_IN[f"{shape}_{kind}"]
    got = given("kinds")[f"o{shape}_{kind}"]
    assert got.dtype == ("float32" if kind == "bfloat16" else kind)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, ~fed if kind == "bool" else (fed + 1).astype(fed.dtype))


def test_a_number_that_does_not_fit_is_a_failed_row_and_never_wraps_around(answers: dict[str, Answered]) -> None:
    (failure,) = answers["too large"].failures
    assert failure.row == 1
    assert "does not fit into int8" in failure.reason


def test_inputs_without_rows_are_constants(given: Given, answers: dict[str, Answered]) -> None:
    got = given("constants")
    np.testing.assert_allclose(got["y"], X[:, :2] * 2.5 + [1, -1], rtol=1e-6)
    assert got["text"][0].endswith(b"!")
    np.testing.assert_allclose(given("training")["y"], X[:, :2] * 2.5 + [1001, 999], rtol=1e-5)
    assert [spec.name for spec in answers["constants"].signature.inputs] == ["x"]
    assert any("training is set to False" in note for note in answers["constants"].signature.notes)


def test_a_missing_or_wrong_constant_is_named_with_its_flag(answers: dict[str, Answered]) -> None:
    missing, bad, unknown = (answers[name].error for name in ("no constant", "bad constant", "unknown constant"))
    assert isinstance(missing, ModelError)
    assert missing.hint == "--constant factor=VALUE"
    assert missing.received == "factor: float32"
    assert isinstance(bad, UsageError)
    assert isinstance(unknown, UsageError)
    assert "factor" in str(unknown.allowed)


def test_outputs_that_are_not_rows_are_refused_with_the_reason(answers: dict[str, Answered], given: Given) -> None:
    flattened, classes, total = (answers[name].error for name in ("flattened", "classes", "total"))
    assert isinstance(flattened, ModelError)
    assert "4 rows for each, run together" in str(flattened.hint)
    assert "--outputs x" in str(flattened.hint)
    assert isinstance(classes, ModelError)
    assert classes.received == "names: shape (3,), whatever the batch"
    assert isinstance(total, ModelError)
    assert "sum over the batch" in str(total.hint)
    np.testing.assert_array_equal(given("flattened left out")["x"], X)


def test_outputs_of_unknown_rank_are_what_they_turn_out_to_be(given: Given, answers: dict[str, Answered]) -> None:
    np.testing.assert_array_equal(given("unknown rank")["y"], X * 2)
    assert answers["unknown rank"].signature.outputs[0].shape is None
    assert isinstance(answers["top k"].error, UsageError), "what may have any rank cannot be ranked"


def test_complex_numbers_are_pairs(given: Given) -> None:
    got = given("complex")["z"]
    assert got.shape == (ROWS, 2, 2)
    np.testing.assert_array_equal(got[..., 1], X[:, :2])


def test_a_gpu_that_tensorflow_does_not_see_is_told(answers: dict[str, Answered]) -> None:
    error = answers["no GPU"].error
    assert isinstance(error, DeviceError)
    assert error.hint == "pip install 'tensorflow[and-cuda]', or --devices cpu"


def test_a_signature_that_does_not_exist_gets_the_list(answers: dict[str, Answered]) -> None:
    for name in ("no such signature", "several signatures"):
        error = answers[name].error
        assert isinstance(error, ModelError)
        assert set(str(error.allowed).split(", ")) == {"classes", "flattened", "total", "unknown", "wave"}
    assert isinstance(answers["nothing"].error, ModelError)


def test_signatures_that_were_not_chosen_are_described(answers: dict[str, Answered]) -> None:
    (other,) = answers["kinds"].signature.others
    assert other.name == "scaled"
    assert {spec.name: str(spec) for spec in other.inputs} == {"x": "float32[2]"}
    assert {spec.name for spec in other.outputs} == {"text", "y"}
    assert any("--constant factor=VALUE" in note for note in other.notes)
    assert any("shift is one int32[2] for all rows" in note for note in other.notes)


def test_ragged_rows_go_in_and_come_out(given: Given) -> None:
    got = given("ragged")
    assert got["sums"].tolist() == [sum(row) for row in LISTS]
    assert got["twice"].to_pylist() == [[2 * value for value in row] for row in LISTS]
    assert got["pairs"].to_pylist() == [[[value, -value] for value in row] for row in LISTS]
    assert given("ragged of one length")["sums"].tolist() == [3] * ROWS


def test_sparse_rows_go_in_from_dense_ones_and_come_out_as_dense_ones(given: Given) -> None:
    fed, got = CASES["sparse"].columns["bag"], given("sparse")
    np.testing.assert_array_equal(got["again"], fed)
    np.testing.assert_array_equal(got["sums"], fed.sum(1))
    assert got["count"].tolist() == [1] * ROWS, "zeros are what is not there"


def test_outputs_as_wide_as_their_batch_are_lists(given: Given) -> None:
    got = given("widths")
    widest = [max(WIDTHS[row // 4 * 4 : row // 4 * 4 + 4]) for row in range(ROWS)]
    masks = [[place < n for place in range(width)] for n, width in zip(WIDTHS, widest, strict=True)]
    assert got["mask"].to_pylist() == masks
    assert got["pairs"].to_pylist() == [[[int(value)] * 2 for value in row] for row in masks]
    assert pa.types.is_large_list(got["mask"].type)


def test_sparse_outputs_of_open_width_are_lists_up_to_their_last_value(given: Given) -> None:
    got = given("widths")
    assert got["digits"].to_pylist() == [list(str(n**3)) for n in WIDTHS]
    assert got["gaps"].to_pylist() == [list(range(n)) if n > 1 else [] for n in WIDTHS]


def test_an_open_width_that_an_input_explains_is_no_list(given: Given, answers: dict[str, Answered]) -> None:
    np.testing.assert_array_equal(given("explained")["same"], WIDTHS[:, None] * 2)
    for case in ("explained but not so", "undeclared"):
        error = answers[case].error
        assert isinstance(error, ModelError)
        assert error.received == "mask: rows of (2,), then of (5,)"


def test_constants_are_of_any_rank_and_in_the_range_of_their_dtype(given: Given, answers: dict[str, Answered]) -> None:
    np.testing.assert_array_equal(given("widths")["biased"], WIDTHS - 3)
    error = answers["constant out of range"].error
    assert isinstance(error, UsageError)
    assert error.allowed == "bias int8[2, 2]"


def test_the_largest_value_and_the_first_of_the_best_are_one_also_where_values_are_missing(given: Given) -> None:
    first, best = (next(iter(given(case).values())) for case in ("argmax of NaN", "best of NaN"))
    np.testing.assert_array_equal(first, best[:, 0])


def test_a_sparse_placeholder_takes_lists_in_which_zero_is_a_value(given: Given, answers: dict[str, Answered]) -> None:
    weights = np.arange(10.0).reshape(5, 2)
    expected = np.array([weights[row].sum(0) for row in IDS])
    np.testing.assert_array_equal(given("old sparse")["y"], expected)
    np.testing.assert_array_equal(given("old sparse kept")["y"], expected * 0.5 + 1)
    notes = " ".join(answers["old sparse"].signature.notes)
    assert "keep (float32) stays at its default 1.0" in notes
    assert "is_training is set to False" in notes
    assert "the signature predict is run; --signature chooses regression" in notes


def test_ragged_text_comes_out_as_lists(given: Given) -> None:
    assert given("words")["words"].to_pylist()[:3] == [["a", "b"], [], ["c"]]


def test_a_model_without_signatures_is_called_as_for_serving(given: Given, answers: dict[str, Answered]) -> None:
    got = given("hub")
    np.testing.assert_allclose(got["score"], X[:, :2] @ [[2], [3]], rtol=1e-5)
    assert got["id"].tolist() == list(range(ROWS))
    assert answers["hub"].signature.parameters == 2
    assert given("argmax")["classes:x"].tolist() == X.argmax(1).tolist()
    assert set(given("argmax")) == {"classes:x"}


def test_a_model_without_signatures_is_inspected(zoo: Path, penstock_run: Penstock) -> None:
    ran = penstock_run("inspect", zoo / "hub", "--json")
    assert ran.returncode == 0, ran.stderr
    assert set(json.loads(ran.stdout)["inputs"]) == {"x", "id"}


def test_a_module_of_the_first_tf_hub_runs(given: Given, answers: dict[str, Answered]) -> None:
    np.testing.assert_allclose(given("old hub")["default"], X[:, :2] @ [[1], [10]], rtol=1e-5)
    assert any("without a tag" in note for note in answers["old hub"].signature.notes)


def test_the_features_that_a_graph_parses_are_found(answers: dict[str, Answered]) -> None:
    features = answers["parsing"].signature.examples["records"]
    assert set(features) == {
        Feature("tags", "string", None, is_required=False),
        Feature("age", "int64", ()),
        Feature("city", "string", (), is_required=False),
        Feature("marks", "float32", (None,), is_required=False),
        Feature("size", "float32", (2,)),
    }
    assert answers["one by one"].signature.examples["records"] == (Feature("age", "int64", ()),)


def test_tensorflow_reads_in_every_record_what_was_in_the_columns(zoo: Path, answers: dict[str, Answered]) -> None:
    assert (zoo / "records_were_read").exists()


def test_columns_become_the_records_that_a_graph_parses(given: Given, answers: dict[str, Answered]) -> None:
    got = given("parsing")
    assert [failure.row for failure in answers["parsing"].failures] == [1, 9], "no age, and one size instead of two"
    assert got["age"].tolist() == [30, *range(7)]
    assert got["city"].tolist() == ["Köln".encode(), b"nowhere", *[b"x"] * 6]
    assert got["tags"].tolist() == [b"a+b", b"", *[b"c"] * 6]
    assert got["marks"].tolist() == [3.0] * 8
    assert given("one by one")["age"].tolist() == list(range(-3, ROWS - 3))


def test_a_feature_may_come_from_a_column_of_another_name(given: Given) -> None:
    got = given("parsing renamed")
    assert got["age"].tolist() == list(range(ROWS))
    assert got["city"].tolist() == [b"nowhere"] * ROWS


def test_a_feature_without_a_fitting_column_is_named(answers: dict[str, Answered]) -> None:
    missing, wrong = (answers[f"parsing {name}"].error for name in ("without a column", "text for a number"))
    assert isinstance(missing, InputError)
    assert missing.allowed == "age int64[]"
    assert isinstance(wrong, InputError)
    assert "'age' does not take the dtype string" in wrong.problem


def test_words_are_looked_up_in_the_files_of_an_old_model(given: Given) -> None:
    got = given("lookup")
    embedded = np.array([[(0 + 4) / 2, (1 + 5) / 2], [(2 + 6) / 2, (3 + 7) / 2]] * 5)
    expected = (embedded - [1, 2]) / np.sqrt(np.array([2, 2]) + 1e-3) * 2 + 0.5
    np.testing.assert_allclose(got["normal"], expected, rtol=1e-5)
    assert got["level"].tolist() == [b"high"] * ROWS


def test_damaged_models_are_told_as_such(answers: dict[str, Answered]) -> None:
    variables, graph, frozen = (answers[n].error for n in ("damaged variables", "damaged graph", "frozen damaged"))
    assert isinstance(variables, ModelError)
    assert "variables" in variables.problem
    assert isinstance(graph, ModelError)
    assert isinstance(frozen, ModelError)
    assert "damaged" in graph.problem
    assert "damaged" in frozen.problem


def test_a_frozen_graph_shows_what_nothing_consumes(given: Given) -> None:
    got = given("frozen")
    hidden = np.maximum(X[:, :2] @ np.array([[1, -1], [2, 1]], "f4"), 0)
    assert set(got) == {"best", "best:1", "echo"}
    np.testing.assert_allclose(got["best"][:, 0], hidden.max(1), rtol=1e-5)
    assert got["echo"].tolist() == [b"t"] * ROWS


def test_a_frozen_graph_is_cut_where_it_was_named(given: Given, answers: dict[str, Answered]) -> None:
    np.testing.assert_allclose(given("frozen inside")["best"][:, 0], np.abs(X[:, :2]).max(1) * 3, rtol=1e-5)
    outputs, inputs = (answers[f"frozen unknown {side}"].error for side in ("output", "input"))
    assert isinstance(outputs, UsageError)
    assert "best, best:1, echo" in str(outputs.allowed)
    assert isinstance(inputs, UsageError)
    assert "x, keep, text" in str(inputs.allowed)


def test_ragged_answers_and_strings_cross_processes(zoo: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    """From the shell: a list for each row, in every format that has lists."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"x": row}) + "\n" for row in LISTS), encoding="utf-8")
    ran = penstock_run(
        "predict", zoo / "ragged", tmp_path / "rows.jsonl", "--output", tmp_path / "out", "--devices", "cpu:2"
    )
    assert ran.returncode == 0, ran.stderr
    table = read_rows(tmp_path / "out")
    assert table.column("twice").to_pylist() == [[2 * value for value in row] for row in LISTS]
