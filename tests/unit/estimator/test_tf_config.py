"""TF_CONFIG is read as tf.estimator read it, and a cluster is refused only where it would train."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.estimator.estimator import Estimator
from penstock.estimator.placing import ClusterRefused, check_alone
from penstock.estimator.run_config import RunConfig
from penstock.estimator.tf_config import Task, read_task
from penstock.estimator.train_and_evaluate import EvalSpec, TrainSpec, train_and_evaluate

CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1", "d:1"], "ps": ["e:1", "f:1"], "helper": ["g:1", "h:1"]}
WITH_MASTER = {("master" if role == "chief" else role): hosts for role, hosts in CLUSTER.items()}


def task(cluster: dict[str, list[str]] | None, kind: str, index: int, **more: Any) -> Task:
    named = {"cluster": cluster} if cluster else {}
    return read_task(json.dumps({**named, "task": {"type": kind, "index": index}, **more}))


@pytest.mark.parametrize("text", [None, "", "{}", '{"task": {"type": "worker", "index": 0}}'])
def test_a_process_of_its_own_is_the_only_worker(text: str | None) -> None:
    found = read_task(text)
    assert (found.type, found.id, found.global_id, found.is_chief) == ("worker", 0, 0, True)
    assert (found.num_workers, found.num_ps, found.master, found.device_filters) == (1, 0, "", None)
    assert not found.in_cluster


@pytest.mark.parametrize(
    ("cluster", "kind", "index", "number", "master"),
    [
        (CLUSTER, "chief", 0, 0, "grpc://a:1"),
        (CLUSTER, "helper", 1, 2, "grpc://h:1"),
        (CLUSTER, "worker", 2, 5, "grpc://d:1"),
        (CLUSTER, "ps", 1, 7, "grpc://f:1"),
        (WITH_MASTER, "master", 0, 0, "grpc://a:1"),
        (WITH_MASTER, "worker", 0, 3, "grpc://b:1"),
    ],
)
def test_every_task_has_a_number_and_a_master(
    cluster: dict[str, list[str]], kind: str, index: int, number: int, master: str
) -> None:
    found = task(cluster, kind, index)
    assert (found.global_id, found.master) == (number, master)
    assert found.is_chief == (number == 0)
    assert (found.num_workers, found.num_ps, found.cluster) == (4, 2, cluster)


def test_sessions_see_the_devices_that_their_task_uses() -> None:
    assert task(CLUSTER, "chief", 0).device_filters == ["/job:ps", "/job:chief"]
    assert task(WITH_MASTER, "master", 0).device_filters == ["/job:ps", "/job:master"]
    assert task(CLUSTER, "worker", 1).device_filters == ["/job:ps", "/job:worker/task:1"]
    assert task(CLUSTER, "ps", 1).device_filters == ["/job:ps", "/job:worker", "/job:chief", "/job:master"]
    assert task(CLUSTER, "helper", 1).device_filters is None


def test_an_evaluator_stands_outside_the_cluster() -> None:
    found = task(CLUSTER, "evaluator", 3, eval_session_master="grpc://z:1")
    assert (found.cluster, found.global_id, found.is_chief) == ({}, None, False)
    assert (found.num_workers, found.num_ps, found.master, found.evaluation_master) == (0, 0, "", "grpc://z:1")
    assert found.in_cluster, "other processes train"


def test_a_cluster_of_one_needs_no_server() -> None:
    found = task({"chief": ["a:1"]}, "chief", 0)
    assert (found.master, found.in_cluster, found.is_chief, found.num_workers) == ("", False, True, 1)
    assert task({"chief": ["a:1"]}, "chief", 0, session_master="grpc://y:1").master == "grpc://y:1"


def test_the_protocol_is_in_the_address() -> None:
    text = json.dumps({"cluster": CLUSTER, "task": {"type": "chief", "index": 0}})
    assert read_task(text, "grpc+verbs").master == "grpc+verbs://a:1"


def test_under_a_strategy_the_first_worker_leads() -> None:
    text = json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}})
    assert read_task(text, needs_leader=False).is_chief
    with pytest.raises(ValueError, match="must have one chief"):
        read_task(text)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"task": {"type": "chief", "index": 0}}, "no cluster that it belongs to"),
        ({"task": {"type": "worker", "index": 1}}, "no cluster that it belongs to"),
        ({"task": {"type": "evaluator", "index": 0}}, "no cluster that it belongs to"),
        ({"cluster": {"worker": ["a:1"]}}, "must have one chief"),
        ({"cluster": {"chief": ["a:1", "b:1"]}}, "must have one chief"),
        ({"cluster": {"master": ["a:1", "b:1"]}}, "must have one master"),
        ({"cluster": {"master": ["a:1"], "chief": ["b:1"]}}, "a chief and a master"),
        ({"cluster": CLUSTER}, "not which task this process is"),
        ({"cluster": CLUSTER, "task": {"type": "worker"}}, "not which task this process is"),
        ({"cluster": CLUSTER, "task": {"type": "worker", "index": 3}}, "not in its cluster"),
        ({"cluster": CLUSTER, "task": {"type": "other", "index": 0}}, "not in its cluster"),
        ({"cluster": CLUSTER, "task": {"type": "worker", "index": -1}}, "must not be negative"),
        ({"cluster": CLUSTER, "task": {"type": "evaluator", "index": -1}}, "must not be negative"),
        ({"cluster": CLUSTER, "task": {"type": "worker", "index": "one"}}, "must be a whole number"),
        ({"cluster": WITH_MASTER, "task": {"type": "evaluator", "index": 0}}, "has no evaluator"),
    ],
)
def test_a_task_that_cannot_be_is_refused(said: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        read_task(json.dumps(said))
    assert isinstance(refused.value, ValueError), "old code catches it"
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    "said", [{"service": 789}, {"cluster": ["a:1"]}, {"cluster": {"chief": "a:1"}}, {"task": "worker"}, ["cluster"]]
)
def test_what_is_no_table_is_refused(said: Any) -> None:
    with pytest.raises(UsageError) as refused:
        read_task(json.dumps(said))
    assert isinstance(refused.value, TypeError)


def test_what_is_no_json_is_told() -> None:
    with pytest.raises(UsageError, match="no JSON"):
        read_task("{cluster:")


def set_task(monkeypatch: pytest.MonkeyPatch, kind: str, index: int) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": CLUSTER, "task": {"type": kind, "index": index}}))


def test_a_config_has_what_tf_config_says(monkeypatch: pytest.MonkeyPatch) -> None:
    set_task(monkeypatch, "worker", 1)
    config = pickle.loads(pickle.dumps(RunConfig().replace(tf_random_seed=1)))
    assert (config.task_type, config.task_id, config.global_id_in_cluster) == ("worker", 1, 4)
    assert (config.master, config.evaluation_master, config.is_chief, config.service) == ("grpc://c:1", "", False, None)
    assert (config.num_worker_replicas, config.num_ps_replicas) == (4, 2)


@pytest.mark.parametrize(("kind", "index"), [("chief", 0), ("worker", 1), ("evaluator", 0)])
def test_training_in_a_cluster_is_refused(monkeypatch: pytest.MonkeyPatch, kind: str, index: int) -> None:
    set_task(monkeypatch, kind, index)
    with pytest.raises(ClusterRefused, match=f"this process is {kind} {index} of it"):
        check_alone(RunConfig())


def test_there_is_one_evaluator(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    set_task(monkeypatch, "evaluator", 1)
    estimator = Estimator(lambda features: None, tmp_path)
    with pytest.raises(ValueError, match="there is one evaluator"):
        train_and_evaluate(estimator, TrainSpec(dict), EvalSpec(dict))


def test_an_evaluator_by_its_own_word_does_not_train() -> None:
    class Evaluates(RunConfig):
        @property
        def task_type(self) -> str:
            return "evaluator"

    with pytest.raises(ValueError, match="does not train"):
        check_alone(Evaluates())


def test_exporters_must_be_exporters() -> None:
    for wrong in (3, [3], "latest"):
        with pytest.raises(TypeError, match="exporters must be Exporter instances"):
            EvalSpec(dict, exporters=wrong)


def test_a_config_that_is_none_is_told_first() -> None:
    with pytest.raises(ValueError, match="config must be a RunConfig"):
        Estimator(None, config="local")  # type: ignore[arg-type]


def test_parameter_servers_of_tensorflow_2_are_refused() -> None:
    strategy = type("ParameterServerStrategyV2", (), {})()
    for name in ("train_distribute", "eval_distribute"):
        with pytest.raises(ValueError, match="do not run an Estimator"):
            RunConfig(**{name: strategy})
