"""`Estimator.predict` and `penstock predict --estimator`: old model functions, their checkpoints, every device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ENVIRONMENT, Penstock, read_rows

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "estimator"
CHECKPOINT = DATA / "model_fn_ckpt"

TOLERANCE = 2e-6
"""The file came from another kind of CPU, and is itself 0.8e-6 from the exact answer in one of 17,970 values. A plain
TensorFlow session is up to 1.6e-6 from it on x86_64, and the test below holds that we are where that session is."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What every scenario of support/estimator_scenarios.py gave."""
    return run_scenarios(tmp_path_factory.mktemp("estimator") / "found.json")


@pytest.fixture(scope="module")
def found_slowly(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the slow ones gave."""
    return run_scenarios(tmp_path_factory.mktemp("estimator") / "found.json", "slow")


def run_scenarios(path: Path, *kind: str) -> dict[str, Any]:
    script = ROOT / "tests" / "support" / "estimator_scenarios.py"
    environment = {key: value for key, value in ENVIRONMENT.items() if key != "TF_USE_LEGACY_KERAS"}
    search = os.pathsep.join([str(ROOT), *filter(None, [environment.get("PYTHONPATH")])])
    ran = subprocess.run(
        [sys.executable, str(script), str(path), *kind],
        env={**environment, "PYTHONPATH": search, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    answers: dict[str, Any] = json.loads(path.read_text())
    return answers


@pytest.mark.parametrize("spelling", ["with_layers", "with_tf_estimator", "with_keras_layers", "with_variables"])
def test_a_checkpoint_of_tensorflow_2_15_predicts_what_it_did(found: dict[str, Any], spelling: str) -> None:
    distance, has_same_classes = found["the_three_spellings"][spelling]
    assert distance < TOLERANCE
    assert has_same_classes


def test_predictions_are_those_of_a_plain_session(found: dict[str, Any]) -> None:
    from_the_file, from_us = found["a_plain_session"]
    assert from_the_file < TOLERANCE
    assert from_us < 1e-7


def test_keras_3_of_the_user_stays_what_it_was(found: dict[str, Any]) -> None:
    assert found["keras"].startswith("3.")


def test_strings_tables_embeddings_and_batch_normalisation(found: dict[str, Any]) -> None:
    words = found["words"]
    assert words["scores"] < 1e-6
    assert words["columns"] < 1e-6
    assert words["tastes"]
    assert words["words"]
    assert set(words["classes"]) <= {"sour", "sweet", "dry"}


def test_a_checkpoint_that_does_not_fit_says_which_names_and_shapes(found: dict[str, Any]) -> None:
    code, text, _ = found["words"]["misfit"]
    assert code == 6
    assert "embedding is [5, 4] in the checkpoint, [5, 5] in the model" in text
    assert "logits/kernel" in text


def test_a_folder_without_a_checkpoint_is_named_with_what_it_holds(found: dict[str, Any]) -> None:
    code, text, _ = found["what_bad_input_gets"]["empty"]
    assert code == 6
    assert "no checkpoint" in text
    assert "notes.txt" in text


def test_a_model_fn_that_fails_is_told_with_its_line(found: dict[str, Any]) -> None:
    for case, said in (("raises", "KeyError: 'pixels'"), ("without", "predictions are missing")):
        code, text, _ = found["what_bad_input_gets"][case]
        assert code == 6
        assert "estimator_scenarios.py, line " in text
        assert said in text


def test_predict_keys_choose_and_are_checked_as_ever(found: dict[str, Any]) -> None:
    bad = found["what_bad_input_gets"]
    assert bad["chosen"] == ["classes"]
    _, text, is_value_error = bad["keys"]
    assert is_value_error
    assert "classes, probabilities" in text


def test_what_is_not_one_for_each_row_comes_in_whole_batches_only(found: dict[str, Any]) -> None:
    bad = found["what_bad_input_gets"]
    _, text, is_value_error = bad["summed"]
    assert is_value_error
    assert "yield_single_examples=False" in text
    assert bad["batches"] == ["classes", "probabilities", "sum"]


def test_session_hooks_are_called_and_a_scaffold_is_used(found: dict[str, Any]) -> None:
    distance, seen = found["hooks_and_scaffolds"]
    assert distance < TOLERANCE
    assert seen[:2] == ["given created", "own created"]
    assert seen.count("own ran") == 2
    assert seen[-1] == "own ended"


def test_queues_and_feature_columns_of_tensorflow_1(found: dict[str, Any]) -> None:
    assert found["old_inputs"] == [[1.0, 0.0, 1.0], [0.0, 1.0, 2.0], [0.0, 0.0, 3.0]]


def test_an_endless_input_is_taken_only_as_far_as_it_is_asked_for(found: dict[str, Any]) -> None:
    before, is_right, after = found["lazily"]
    assert is_right
    assert after - before < 20


def test_columns_feed_a_model_fn_as_it_takes_them(found: dict[str, Any]) -> None:
    columns = found["columns_as_in_the_shell"]
    assert columns["bytes"]
    assert columns["other size"] == [0, 1, 2]
    assert columns["single"] < TOLERANCE
    distance, has_digest = columns["made"]
    assert distance < TOLERANCE
    assert has_digest
    assert columns["ranked"] == [True, ["classes:probabilities", "scores:probabilities"]]


def test_three_processes_take_over_in_order_and_leave_nothing_behind(found: dict[str, Any]) -> None:
    handed_over = found["handed_over"]
    assert handed_over["wrong"] == []
    assert handed_over["processes"] == 3
    assert handed_over["left"] == 0


def test_killed_replica_loses_no_element(found: dict[str, Any]) -> None:
    assert found["handed_over"]["has_gone_on"]
    assert found["handed_over"]["wrong"] == []
    assert found["handed_over"]["warnings"] == []  # replicas went on, and not this process in their place


def test_requests_that_come_one_by_one_are_answered_one_by_one_after_the_hand_over(found: dict[str, Any]) -> None:
    assert found["handed_over"]["answered"] == 10


def test_an_element_that_the_model_rejects_after_the_hand_over_raises_what_tensorflow_does_when_its_turn_comes(
    found: dict[str, Any],
) -> None:
    kind, has_all_before = found["handed_over"]["ended"]
    assert kind == "InvalidArgumentError"
    assert has_all_before


@pytest.mark.slow
def test_processes_that_build_another_model_do_not_take_over(found_slowly: dict[str, Any]) -> None:
    assert found_slowly["another_model"]["ratios"] == [2.0]
    (warning,) = found_slowly["another_model"]["warnings"]
    assert "it predicts other values than this process: scaled" in warning


@pytest.mark.slow
def test_one_replica_that_fails_does_not_keep_the_others_from_taking_over(found_slowly: dict[str, Any]) -> None:
    expected = {"processes": 3, "has_failed": True, "is_right": True, "warnings": []}
    assert found_slowly["one_replica_fails"] == expected


def test_the_shell_predicts_with_a_model_fn_on_three_devices(penstock_run: Penstock, tmp_path: Path) -> None:
    expected = np.load(DATA / "digits_expected.npz")
    np.savez(tmp_path / "digits.npz", image=expected["image"])
    ran = penstock_run(
        "predict", "--estimator", "tests.support.digits_model_fn:with_tf_estimator", "--checkpoint", CHECKPOINT,
        tmp_path / "digits.npz", "--params", '{"filters": 8}', "--devices", "cpu:3", "--batch-size", "128",
        "--output", tmp_path / "out", cwd=ROOT,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    table = read_rows(tmp_path / "out")
    assert table.column("row").to_pylist() == list(range(1797))
    assert table.column("classes").to_pylist() == expected["classes"].tolist()
    probabilities = np.stack(table.column("probabilities").to_numpy())
    np.testing.assert_allclose(probabilities, expected["probabilities"], rtol=0, atol=TOLERANCE)


def test_the_shell_says_what_does_not_fit(penstock_run: Penstock, tmp_path: Path) -> None:
    np.savez(tmp_path / "digits.npz", image=np.zeros((3, 8, 8), "f4"))
    arguments = ["predict", "--estimator", "tests.support.digits_model_fn:with_tf_estimator", tmp_path / "digits.npz"]
    ran = penstock_run(
        *arguments, "--checkpoint", CHECKPOINT, "--params", '{"filters": 4}', "--output", tmp_path / "out", cwd=ROOT
    )
    assert ran.returncode == 6
    assert "conv/kernel is [3, 3, 1, 8] in the checkpoint, [3, 3, 1, 4] in the model" in ran.stderr
    os.mkdir(tmp_path / "empty")
    ran = penstock_run(*arguments, "--checkpoint", tmp_path / "empty", "--output", tmp_path / "out", cwd=ROOT)
    assert ran.returncode == 6
    assert "holds nothing" in ran.stderr


def test_the_shell_says_what_is_wrong_in_tf_config(
    penstock_run: Penstock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENVIRONMENT, "TF_CONFIG", '{"task": {"type": "chief", "index": 0}}')
    np.savez(tmp_path / "rows.npz", image=np.zeros((4, 64), "f4"))
    named = ("--estimator", "tests.support.digits_model_fn:with_layers", "--checkpoint", CHECKPOINT)
    ran = penstock_run("predict", *named, tmp_path / "rows.npz", "--output", tmp_path / "out", cwd=ROOT)
    assert ran.returncode == 2
    assert "TF_CONFIG names a task, but no cluster that it belongs to" in ran.stderr
    assert "received: task type 'chief', index 0" in ran.stderr
