"""TF_CONFIG: the machines that train together, and the role of this process among them.

It is read as in the original, even though training on a cluster is refused later: old code reads its role from a
`RunConfig` long before it trains, and a mistake in TF_CONFIG is reported when the `RunConfig` is made.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.estimator.refusals import WrongType, WrongValue


class TaskType:
    """The roles in TF_CONFIG."""

    MASTER = "master"
    PS = "ps"
    WORKER = "worker"
    CHIEF = "chief"
    EVALUATOR = "evaluator"


Cluster = dict[str, list[str]]
_LEADING = (TaskType.CHIEF, TaskType.MASTER)


@dataclass(frozen=True)
class Task:
    """The role of this process.

    Args:
        type: One of `TaskType`, or any other name in the cluster.
        id: Its number among the tasks of its type.
        cluster: Task type to addresses. Empty for a single process, and for an evaluator, which is outside the cluster.
        in_cluster: Whether TF_CONFIG names other processes than this one.
        master: Where sessions of training run; empty for this process.
        evaluation_master: The same for evaluation.
        service: The entry `service` of TF_CONFIG, unchanged.
        model_dir: The folder that TF_CONFIG names.
    """

    type: str = TaskType.WORKER
    id: int = 0
    cluster: Cluster = field(default_factory=dict)
    in_cluster: bool = False
    master: str = ""
    evaluation_master: str = ""
    service: dict[str, Any] | None = None
    model_dir: str | None = None

    @property
    def is_chief(self) -> bool:
        """Whether this process leads: the chief, or the first worker where there is none."""
        if not self.in_cluster or self.type in _LEADING:
            return True
        return self.type == TaskType.WORKER and self.id == 0 and not any(role in self.cluster for role in _LEADING)

    @property
    def num_ps(self) -> int:
        return len(self.cluster.get(TaskType.PS, ()))

    @property
    def num_workers(self) -> int:
        """How many processes train; 0 for an evaluator."""
        if not self.cluster:
            return 0 if self.type == TaskType.EVALUATOR else 1
        return sum(len(self.cluster.get(role, ())) for role in (*_LEADING, TaskType.WORKER))

    @property
    def global_id(self) -> int | None:
        """The number of this process among all: leaders first, parameter servers last. An evaluator has none."""
        if self.type == TaskType.EVALUATOR:
            return None
        others = sorted(set(self.cluster) - {*_LEADING, TaskType.PS})
        roles = [*_LEADING, *others, TaskType.PS] if self.cluster else [self.type]
        before = roles[: roles.index(self.type)]
        return self.id + sum(len(self.cluster.get(role, ())) for role in before)

    @property
    def device_filters(self) -> list[str] | None:
        """The processes whose devices a session of this process uses; None for all."""
        if not self.cluster:
            return None
        if self.type in _LEADING:
            return ["/job:ps", f"/job:{self.type}"]
        if self.type == TaskType.WORKER:
            return ["/job:ps", f"/job:worker/task:{self.id}"]
        if self.type == TaskType.PS:
            return ["/job:ps", "/job:worker", "/job:chief", "/job:master"]
        return None


def read_task(text: str | None, protocol: str | None = None, *, needs_leader: bool = True) -> Task:
    """The role of this process, from TF_CONFIG.

    Args:
        text: The value of the variable.
        protocol: How processes of a cluster talk to each other; None is grpc.
        needs_leader: Whether a cluster must have a chief or a master. Under a strategy of `tf.distribute` it need not.

    Raises:
        WrongValue: The text is no JSON, the cluster has no leader or several, or the task is not in the cluster.
        WrongType: A part of it has the wrong type.
    """
    said = _parsed(text)
    cluster, task = _table(said, "cluster"), _table(said, "task")
    service = said.get("service")
    if service is not None and not isinstance(service, dict):
        raise WrongType("service in TF_CONFIG must be a table", received=f"service={service!r}")
    common: dict[str, Any] = {
        "evaluation_master": str(said.get("eval_session_master") or ""),
        "service": service,
        "model_dir": said.get("model_dir"),
    }
    master = str(said.get("session_master") or "")
    if not cluster:
        _check_local(task)
        return Task(master=master, **common)
    _check_leader(cluster, needs_leader)
    kind, number = _checked_task(cluster, task)
    others = sum(map(len, cluster.values())) > 1 or kind == TaskType.EVALUATOR
    if kind == TaskType.EVALUATOR:
        return Task(kind, number, {}, others, **common)
    if others and not master:
        master = f"{protocol or 'grpc'}://{cluster[kind][number]}"
    return Task(kind, number, cluster, others, master, **common)


def _parsed(text: str | None) -> Mapping[str, Any]:
    try:
        said = json.loads(text) if text else {}
    except ValueError as error:
        raise WrongValue("TF_CONFIG is no JSON", received=str(text)[:200], hint=str(error)) from None
    if not isinstance(said, dict):
        raise WrongType("TF_CONFIG must be a table", received=str(text)[:200], allowed='{"cluster": …, "task": …}')
    return said


def _table(said: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = said.get(name) or {}
    if not isinstance(table, dict):
        raise WrongType(f"{name} in TF_CONFIG must be a table", received=f"{name}={table!r}")
    return table


def _check_local(task: Mapping[str, Any]) -> None:
    kind, number = task.get("type", TaskType.WORKER), task.get("index", 0)
    if kind != TaskType.WORKER or _number(number) != 0:
        raise WrongValue(
            "TF_CONFIG names a task, but no cluster that it belongs to",
            received=f"task type {kind!r}, index {number!r}",
            allowed="type 'worker', index 0; or the cluster, too",
        )


def _check_leader(cluster: Mapping[str, Any], is_needed: bool) -> None:
    wrong = [role for role, addresses in cluster.items() if not isinstance(addresses, list)]
    if wrong:
        raise WrongType("a cluster is task type to list of addresses", received=f"{wrong[0]}: {cluster[wrong[0]]!r}")
    if TaskType.MASTER in cluster and TaskType.CHIEF in cluster:
        raise WrongValue("the cluster in TF_CONFIG has a chief and a master", received=str(cluster), allowed="one")
    leader = TaskType.MASTER if TaskType.MASTER in cluster else TaskType.CHIEF
    if len(cluster.get(leader, ())) != 1 and (is_needed or leader in cluster):
        raise WrongValue(
            f"the cluster in TF_CONFIG must have one {leader}",
            received=f"{leader}: {cluster.get(leader, 'missing')}",
            allowed=f'{{"{leader}": ["host:port"], …}}',
        )


def _checked_task(cluster: Cluster, task: Mapping[str, Any]) -> tuple[str, int]:
    kind, index = task.get("type"), task.get("index")
    if not kind or index is None:
        raise WrongValue(
            "TF_CONFIG names a cluster, but not which task this process is",
            received=f"task={dict(task)}",
            allowed='{"type": "worker", "index": 0}',
        )
    number = _number(index)
    if number < 0:
        raise WrongValue("the index of a task in TF_CONFIG must not be negative", received=f"index={index!r}")
    if kind == TaskType.EVALUATOR:
        if TaskType.MASTER in cluster:
            raise WrongValue(
                "a cluster with a master has no evaluator", received=str(cluster), hint="name the master chief"
            )
        return kind, number
    if kind not in cluster or number >= len(cluster[kind]):
        raise WrongValue(
            "the task in TF_CONFIG is not in its cluster",
            received=f"type {kind!r}, index {number}",
            allowed=", ".join(f"{role} 0 to {len(hosts) - 1}" for role, hosts in cluster.items() if hosts),
        )
    return str(kind), number


def _number(index: Any) -> int:
    try:
        return int(index)
    except (TypeError, ValueError):
        raise WrongValue("the index of a task in TF_CONFIG must be a whole number", received=repr(index)) from None
