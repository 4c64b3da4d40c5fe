from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from penstock.errors import UsageError
from penstock.estimator.run_config import RunConfig


def test_defaults_are_those_of_the_original() -> None:
    config = RunConfig()
    assert (config.save_checkpoints_steps, config.save_checkpoints_secs) == (None, 600)
    assert (config.keep_checkpoint_max, config.keep_checkpoint_every_n_hours) == (5, 10000)
    assert (config.save_summary_steps, config.log_step_count_steps) == (100, 100)
    assert config.session_creation_timeout_secs == 7200
    assert config.tf_random_seed is None
    assert (config.is_chief, config.task_type, config.task_id, config.num_worker_replicas) == (True, "worker", 0, 1)
    assert str(config.device_request) == "all"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"save_checkpoints_steps": 10}, (10, None)),
        ({"save_checkpoints_secs": 5}, (None, 5)),
        ({"save_checkpoints_steps": None, "save_checkpoints_secs": None}, (None, None)),
    ],
)
def test_checkpoints_are_saved_by_steps_or_by_seconds(
    given: dict[str, int | None], kept: tuple[int | None, int | None]
) -> None:
    config = RunConfig(**given)  # type: ignore[arg-type]
    assert (config.save_checkpoints_steps, config.save_checkpoints_secs) == kept
    with pytest.raises(ValueError, match="by steps or by seconds"):
        RunConfig(save_checkpoints_steps=1, save_checkpoints_secs=1)


def test_replacing_one_way_of_saving_drops_the_other() -> None:
    config = RunConfig().replace(save_checkpoints_steps=7)
    assert (config.save_checkpoints_steps, config.save_checkpoints_secs) == (7, None)
    assert config.replace(save_checkpoints_secs=9).save_checkpoints_steps is None
    with pytest.raises(ValueError, match="cannot be replaced"):
        config.replace(task_type="worker")


def test_a_config_is_replaced_and_not_changed(tmp_path: Path) -> None:
    config = RunConfig(model_dir=tmp_path)
    other = config.replace(tf_random_seed=3)
    assert config.tf_random_seed is None
    assert (other.tf_random_seed, other.model_dir) == (3, str(tmp_path))
    with pytest.raises(AttributeError, match="replace"):
        config.tf_random_seed = 4  # type: ignore[assignment]
    assert copy.deepcopy(other).tf_random_seed == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"save_summary_steps": -1},
        {"keep_checkpoint_max": -1},
        {"log_step_count_steps": 0},
        {"tf_random_seed": 1.5},
        {"session_config": object()},
        {"protocol": "smoke"},
        {"device_fn": lambda other: other},
        {"model_dir": ""},
        {"devices": "tpu"},
        {"threads": 0},
        {"gpu_memory_fraction": 0},
        {"train_distribute": "mirrored"},
        {"train_distribute": type("MirroredStrategy", (), {"extended": None})},
        {"eval_distribute": 2},
    ],
)
def test_values_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        RunConfig(**wrong)  # type: ignore[arg-type]


def test_devices_come_from_the_new_or_the_old_names() -> None:
    assert str(RunConfig(devices="cpu:2").device_request) == "cpu:2"
    assert str(RunConfig(num_gpus=2).device_request) == "gpu:0,1"
    assert str(RunConfig(num_gpus=0).device_request) == "cpu"


def test_a_cluster_is_seen_in_tf_config(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}}))
    config = RunConfig()
    assert config.is_in_cluster
    assert not config.is_chief
    assert (config.num_worker_replicas, config.num_ps_replicas, config.task_id) == (3, 1, 1)


def test_model_dir_of_tf_config_must_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"model_dir": "/models/a"}))
    assert RunConfig().model_dir == "/models/a"
    with pytest.raises(ValueError, match="TF_CONFIG"):
        RunConfig(model_dir="/models/b")


def test_subclasses_may_have_fields_of_their_own() -> None:
    class Mine(RunConfig):
        def __init__(self, rate: float) -> None:
            super().__init__(tf_random_seed=1)
            self.rate = rate

    config = Mine(0.5).replace(tf_random_seed=2)
    assert isinstance(config, Mine)
    assert (config.rate, config.tf_random_seed) == (0.5, 2)


@pytest.mark.parametrize(
    ("argument", "written"),
    [
        ("gpus", "num_gpus=2"),
        ("per_process_gpu_memory_fraction", "gpu_memory_fraction=0.5"),
        ("distribution_strategy", "train_distribute=strategy"),
        ("train_steps", "max_steps"),
        ("num_worker_replicas", "TF_CONFIG"),
        ("save_checkpoint_steps", "save_checkpoints_steps=…"),
        ("colour", "docs/from-estimator.md"),
    ],
)
def test_argument_that_never_existed_names_what_to_write(argument: str, written: str) -> None:
    with pytest.raises(UsageError, match="no such argument") as raised:
        RunConfig(**{argument: 1})  # type: ignore[arg-type]
    assert written in (raised.value.hint or "")
    assert isinstance(raised.value, TypeError), "old code catches it"


def test_number_and_memory_of_gpus_may_be_said() -> None:
    config = RunConfig(num_gpus=2, gpu_memory_fraction=0.5)
    assert str(config.device_request) == "gpu:0,1"
    assert config.gpu_memory_fraction == 0.5
