"""The doorway for code written against `tf.estimator`: it runs unchanged, and gives what the original gave."""

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

from tests.conftest import ENVIRONMENT, Penstock, read_rows
from tests.process import estimator_checkpoint_scripts as checkpoint_scripts
from tests.process import estimator_original_scripts as original_scripts
from tests.process import estimator_scripts as scripts

Told = dict[str, Any]


def run_script(code: str, folder: Path) -> Told:
    """What a script tells, from a process of its own; it gets a folder to write to."""
    path = folder / "script.py"
    path.write_text(code, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, str(path), str(folder)], capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "deprecated" not in ran.stderr
    told: Told = json.loads(ran.stdout.partition("ANSWERS")[2])
    return told


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Told]:
    """A script of ten years ago, run after two lines: `import penstock.estimator` and `install()`."""
    folder = tmp_path_factory.mktemp("old")
    return folder, run_script(scripts.START + scripts.OLD_SCRIPT, folder)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    pieces = (scripts.SEVERAL_DEVICES, scripts.HOOKS, scripts.TURNS, scripts.REFUSALS)
    more = (checkpoint_scripts.CHECKPOINTS, checkpoint_scripts.LARGE_ARRAYS)
    original = (original_scripts.VALUES, original_scripts.CHECKPOINTS)
    code = scripts.START + scripts.LINEAR + "".join(pieces + more + original) + "\nfinish()\n"
    return run_script(code, tmp_path_factory.mktemp("doorway"))


def test_an_old_script_trains_evaluates_predicts_and_exports_unchanged(old: tuple[Path, Told]) -> None:
    _, told = old
    metrics = told["metrics"]
    assert metrics["global_step"] == 200
    assert metrics["accuracy"] > 0.5
    assert metrics["accuracy"] == pytest.approx(metrics["by_keras"])
    assert told["accuracy"] == pytest.approx(metrics["accuracy"])
    assert told["is_eager"], "eager code around is not touched"


def test_checkpoints_are_those_that_the_original_wrote(old: tuple[Path, Told]) -> None:
    folder, told = old
    weights = {"conv/kernel", "conv/bias", "logits/kernel", "logits/bias", "norm/moving_mean", "global_step"}
    assert weights <= set(told["variables"])
    assert "input_layer/kind_embedding/embedding_weights" in told["variables"]
    files = set(told["files"])
    assert {"checkpoint", "graph.pbtxt", "eval", "model.ckpt-200.index", "model.ckpt-200.meta"} <= files
    assert "model.ckpt-200.data-00000-of-00001" in files
    state = (folder / "model" / "checkpoint").read_text(encoding="utf-8")
    assert state.startswith('model_checkpoint_path: "model.ckpt-200"'), "the paths in it are relative"


@pytest.mark.parametrize("receiver", [pytest.param("raw", marks=pytest.mark.slow), "parsing"])
def test_penstock_predicts_from_its_exports_what_the_estimator_predicts(
    old: tuple[Path, Told], penstock_run: Penstock, tmp_path: Path, receiver: str
) -> None:
    folder, told = old
    answers = np.load(folder / "answers.npz")
    images = pa.FixedSizeListArray.from_arrays(pa.array(answers["image"].reshape(-1)), 64)
    table = pa.table({"image": images, "kind": pa.array([kind.decode() for kind in answers["kind"]])})
    pq.write_table(table, tmp_path / "rows.parquet")
    ran = penstock_run("predict", told[receiver], tmp_path / "rows.parquet", "--output", tmp_path / "out")
    assert ran.returncode == 0, ran.stderr
    rows = read_rows(tmp_path / "out")
    found = np.stack(rows.column("probabilities").to_numpy(zero_copy_only=False))
    np.testing.assert_allclose(found, answers["probabilities"], atol=1e-6)
    assert rows.column("classes").to_pylist() == answers["classes"].tolist()
    assert rows.column("names").to_pylist() == [name.decode() for name in answers["names"]]


def test_two_devices_train_what_one_trains_with_the_doubled_batch(told: Told) -> None:
    assert set(told["two"]) == set(told["one"])
    for name in told["one"]:
        np.testing.assert_allclose(told["two"][name], told["one"][name], atol=1e-6, err_msg=name)
    np.testing.assert_allclose(told["losses"][1], told["losses"][0], rtol=1e-3, atol=1e-6)
    assert told["numpy_two"] == told["two"]
    assert told["two_goes_on"] == 25
    assert told["cpus"] == 1, "the user's eager code sees the devices that it had"


@pytest.mark.slow
def test_a_strategy_that_was_made_outside_of_any_graph_trains_as_one_device_does(tmp_path: Path) -> None:
    """Such a strategy adds gradients up by collective operations, for which a session would wait without end."""
    told = run_script(scripts.START + scripts.LINEAR + scripts.GIVEN_STRATEGY + "\nfinish()\n", tmp_path)
    for how in ("given", "wrapped"):
        for name in told["one"]:
            np.testing.assert_allclose(told[how][name], told["one"][name], atol=1e-6, err_msg=f"{how}: {name}")
    assert told["given_loss"] == pytest.approx(told["one_loss"], rel=1e-3)


def test_batches_that_the_devices_do_not_share_out_evenly_are_told(told: Told) -> None:
    assert told["odd"] == 1
    assert told["warned"] == ["2 devices do not divide the 3 batches of the input: the last is not trained on"]


def test_gpus_that_are_not_there_are_told_by_the_name_that_asked_for_them(told: Told) -> None:
    assert "received: num_gpus=99" in told["too_many_gpus"]["text"]
    assert "num_gpus=0 takes the CPU" in told["too_many_gpus"]["text"]


def test_several_devices_need_a_dataset(told: Told) -> None:
    assert "must return a tf.data.Dataset" in told["no_dataset"]["text"]
    assert "ValueError" in told["no_dataset"]["kinds"], "old code catches it"


def test_hooks_and_listeners_run_as_they_did(told: Told) -> None:
    assert told["seen"] == ["begin", 0, "session", 10, 20, 25, "end"]
    assert told["skipped"], "max_steps was reached: nothing is done"
    assert told["kept"] == ["model.ckpt-20.index", "model.ckpt-25.index"]
    assert told["empty_input"] == 6, "training ends with the input"


def test_metrics_are_those_of_the_checkpoint_that_was_asked_for(told: Told) -> None:
    assert told["evaluated"]["global_step"] == 25
    assert told["evaluated"]["loss"] == pytest.approx(told["expected_loss"], rel=1e-3)
    assert told["two_batches"]["loss"] != told["evaluated"]["loss"]
    assert told["older"] == 20
    assert told["eval_dirs"] == ["eval", "eval_short"]
    assert told["more"]["label"] == pytest.approx(told["mean_label"], rel=1e-5)


def test_a_warm_start_begins_with_the_weights_of_another_model(told: Told) -> None:
    assert told["warm"] == pytest.approx(told["evaluated"]["loss"], rel=1e-3)
    assert told["warm_step"] == 1


def test_training_and_evaluation_take_turns(told: Told) -> None:
    turns = told["turns"]
    assert turns["step"] == 30
    assert turns["steps"] == [10, 20, 30]
    assert turns["exports"] == [True, True, True]
    assert turns["kept"] == {"latest": 1, "final": 1, "best": 3}
    assert told["stopped"] == 31


def test_canned_estimators_say_that_their_exports_are_served(told: Told) -> None:
    for name, kind in (("canned", "DNNClassifier"), ("boosted", "BoostedTreesClassifier")):
        assert f"tf.estimator.{kind} cannot be built here" in told[name]["text"]
        assert "penstock predict EXPORT_DIR" in told[name]["text"]
        assert "ModelError" in told[name]["kinds"]


@pytest.mark.parametrize(
    ("name", "words", "kind"),
    [
        ("no_checkpoint", "there is no such checkpoint", "ModelError"),
        ("no_export", "there is no such checkpoint", "ValueError"),
        ("misfit", "bias is [1] in the checkpoint, [7] in the model", "ModelError"),
        ("misfit_to_train", "bias is [1] in the checkpoint, [7] in the model", "ModelError"),
        ("misfit_to_export", "bias is [1] in the checkpoint, [7] in the model", "ModelError"),
        ("no_spec", "model_fn must return an EstimatorSpec", "ValueError"),
        ("no_labels", "model_fn takes no labels", "ValueError"),
        ("no_train_op", "train_op is missing", "ValueError"),
        ("elsewhere", "loss must be from the graph", "ValueError"),
        ("overridden", "must not override its members", "ValueError"),
        ("random_to_predict", "these variables would be random numbers: weight", "ValueError"),
        ("random_to_evaluate", "these variables would be random numbers: weight", "NoCheckpoint"),
        ("no_such_path", "there is no such checkpoint", "ValueError"),
        ("raised", "KeyError: 'x'", "KeyError"),
        ("raised", "the model_fn failed", "ModelError"),
        ("raised_by_tensorflow", "not of this size", "InvalidArgumentError"),
        ("to_estimator", "penstock predict model.keras", "NotImplementedError"),
        ("label_twice", "the label is a feature, too", "ValueError"),
        ("misfit_to_train", "the checkpoint does not fit", "InvalidArgumentError"),
        ("more_variables", "more [2] is not in the checkpoint", "NotFoundError"),
        ("more_variables", "the checkpoint does not fit", "ValueError"),
        ("no_variable", "the checkpoint has no such variable", "ValueError"),
        ("no_variable", "model.ckpt-25: nothing", "NotFoundError"),
        ("no_variable", "allowed: bias", "ModelError"),
        ("no_features", "features must be given", "ValueError"),
        ("no_label_name", "names of labels must be text or whole numbers", "ValueError"),
        ("no_tensor", "receiver_tensors must be tensors", "ValueError"),
        ("no_listener", "saving_listeners must be CheckpointSaverListener instances", "TypeError"),
        ("no_column", "weight_column must be a name or a tf.feature_column.numeric_column", "ValueError"),
        ("sparse_prediction", "predictions[s] must be dense", "TypeError"),
        ("sparse_to_evaluate", "predictions must be dense", "UsageError"),
        ("sparse_loss", "loss must be dense", "TypeError"),
        ("cluster_to_train", "TF_CONFIG names a cluster", "ClusterRefused"),
    ],
)
def test_what_is_wrong_is_said(told: Told, name: str, words: str, kind: str) -> None:
    assert words in told[name]["text"]
    assert kind in told[name]["kinds"]


def test_every_call_uses_the_same_checkpoint_of_a_folder_that_was_moved(told: Told) -> None:
    moved = told["moved"]
    assert moved["newest"] == "model.ckpt-25"
    assert moved["predicts"]
    assert moved["exports"]
    assert moved["evaluates"] == pytest.approx(told["evaluated"]["loss"])
    assert moved["trains"] == 27
    assert "elsewhere" not in moved["note"]


def test_a_checkpoint_without_a_step_serves_as_well(told: Told) -> None:
    stepless = told["stepless"]
    assert stepless["predicts"]
    assert stepless["exports"]
    assert stepless["evaluates"] == pytest.approx(stepless["expected"], rel=1e-5)


def test_a_model_that_needs_no_checkpoint_predicts_without(told: Told) -> None:
    ratios = told["untrained"]
    assert ratios["no variables"] == pytest.approx(5)
    assert ratios["init_fn"] == pytest.approx(3)
    assert ratios["other checkpoint"] == pytest.approx(2)
    assert ratios["constant"] == pytest.approx(7)


def test_arrays_of_the_input_are_not_written_with_the_graph(told: Told) -> None:
    large = told["large"]
    assert large["written"] < large["bytes"] / 4
    assert large["shapes"] == ["(None, 3)", "(None,)", "(None, 1)"]
    assert large["second"] == [[3.0, 4.0, 5.0], ["d", "a", "ü"]]


def test_columns_and_a_label_say_what_is_parsed(told: Told) -> None:
    assert told["parsed"] == [["label", "weight", "x"], "(2,)"]


def test_a_metric_may_have_several_values(told: Told) -> None:
    assert told["nested"] == [2.0, 1, [3.0, 4.0]]
    assert told["nested_events"] == ["loss"]


def test_input_functions_run_by_hand_without_being_initialised(told: Told) -> None:
    rows = [[0, 1], [2, 3], [4, 0], [1, 2], [3, 4]]
    assert told["numpy_by_hand"] == [[batch, [2 * row for row in batch]] for batch in rows]
    assert told["no_epochs"] == []
    assert told["pandas_by_hand"] == sorted([1.0, 2.0, 3.0] * 4)


def test_an_empty_model_dir_is_a_new_folder(told: Told) -> None:
    assert told["no_model_dir"]


def test_a_receiver_of_one_tensor_names_what_is_fed(told: Told) -> None:
    assert told["one_receiver"] == [5, 6, ["input"]]


def test_predictions_that_never_end_are_warned_of(told: Told) -> None:
    [warning] = told["endless"]
    assert "predictions never end" in warning
    assert told["endless_told_once"] == 1, "not of a dataset"


def test_a_scaffold_may_have_a_saver_of_its_own(told: Told) -> None:
    proxy = told["proxy"]
    assert proxy["evaluates"] == pytest.approx(told["evaluated"]["loss"])
    assert proxy["predicts"]
    assert proxy["exports"]
    assert "restore" in proxy["evaluated_by"]
    assert "restore" in proxy["predicted_by"]
    assert {"restore", "save", "export_meta_graph"} <= set(proxy["exported_by"])
    assert told["objects"] == 3.0, "a tf.train.Checkpoint, too"


def test_the_older_export_leaves_attributes_with_default_values(told: Told) -> None:
    assert told["attributes"] == [True, False, False]


def test_a_config_may_say_that_another_process_leads(told: Told) -> None:
    assert "DeadlineExceededError" in told["led"]["kinds"], "it is waited for"
    assert told["chief_hooks"] == []


def test_a_cluster_is_known_before_it_is_refused(told: Told) -> None:
    cluster, filters, used = told["cluster"]
    assert cluster == {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}
    assert filters == ["/job:ps", "/job:worker/task:0"]
    assert used == [], "sessions of this process use its own devices"


def test_a_failed_export_leaves_nothing_behind(told: Told) -> None:
    assert told["nothing_left"] == []


def test_old_names_lead_to_the_doorway(told: Told) -> None:
    assert all(told["names"]), told["names"]
    assert told["pandas"] == [[1.0, 2.0], ["x", "y"], [1.0, 2.0]]


@pytest.mark.slow
def test_keras_3_of_the_user_stays_what_it_is(tmp_path: Path) -> None:
    told = run_script(scripts.KERAS_3_IN_USE, tmp_path)
    assert {"dense/kernel", "dense/bias", "global_step"} <= set(told["names"])
    assert "a metric of Keras 3 does not work in a graph" in told["problem"]
    assert "penstock.estimator.install()" in told["problem"]
    assert told["left"] == {"train": [], "evaluate": [], "predict": [], "export_saved_model": []}
    assert told["before"] == told["after"]
    assert told["shape"] == [2, 2]
