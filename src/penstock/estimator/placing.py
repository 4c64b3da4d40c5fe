"""The devices on which this process trains, evaluates and predicts."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from penstock.core.records import Device
from penstock.errors import DeviceError
from penstock.estimator.refusals import WrongValue
from penstock.estimator.run_config import RunConfig
from penstock.estimator.tf_config import TaskType
from penstock.pool.devices.inventory import choose
from penstock.runtimes.frameworks import tf


class Placing(NamedTuple):
    """TensorFlow's names of the devices. `is_asked_for` says whether the user named them."""

    devices: tuple[str, ...]
    is_asked_for: bool

    @property
    def scope(self) -> str | None:
        """The device for all operations; None where TensorFlow chooses the right one by itself.

        With the scope `/GPU:0`, TensorFlow could not put operations without a GPU kernel on the CPU.
        """
        first = self.devices[0]
        return None if first.startswith("/CPU") or first == "/GPU:0" else first

    def limit(self, options: Any) -> None:
        """Keep a session on the CPU from taking the memory of a GPU that it does not use."""
        if self.devices[0].startswith("/CPU"):
            options.device_count["GPU"] = 0


def place(config: RunConfig) -> Placing:
    """The devices that the user named, else every GPU, else the CPU."""
    is_asked_for = config.devices is not None or config.num_gpus is not None
    seen = len(tf.config.list_physical_devices("GPU"))
    chosen = _chosen(config)
    if chosen and chosen[0].kind == "gpu":
        if all(device.index < seen for device in chosen):
            return Placing(tuple(f"/GPU:{device.index}" for device in chosen), is_asked_for)
        if is_asked_for:
            raise DeviceError(
                "this TensorFlow does not see the GPUs that were asked for",
                received=", ".join(map(str, chosen)),
                allowed=f"{seen} GPUs",
                hint="pip install 'tensorflow[and-cuda]', or RunConfig(devices='cpu')",
            )
        return Placing(("/CPU:0",), False)
    return Placing(tuple(f"/CPU:{index}" for index in range(len(chosen))), is_asked_for)


def _chosen(config: RunConfig) -> list[Device]:
    try:
        return choose(config.device_request)
    except DeviceError as error:
        if config.devices is None and config.num_gpus is not None:
            error.received, error.hint = (
                f"num_gpus={config.num_gpus}",
                "num_gpus=0 takes the CPU, nothing every GPU",
            )
        raise


def strategy_over(placing: Placing, options: Any) -> Any:
    """A mirrored strategy over several devices of this process, for the default graph.

    Additional CPUs exist only in the session: the user's eager code still sees one.
    """
    across = _across(placing.devices, options)
    return tf.compat.v1.distribute.MirroredStrategy(list(placing.devices), cross_device_ops=across)


@contextmanager
def in_session(strategy: Any, options: Any) -> Iterator[Any]:
    """A context in which a user's strategy works in a session.

    A strategy that was made outside of a graph adds gradients up with collective operations, and a session would wait
    for these for ever.
    """
    from tensorflow.python.distribute.cross_device_ops import CollectiveAllReduce

    extended = strategy.extended
    before = getattr(extended, "_cross_device_ops", None)  # strategies of one device have none
    if not isinstance(before, CollectiveAllReduce):
        yield strategy
        return
    extended._cross_device_ops = _across(extended.worker_devices, options)
    try:
        yield strategy
    finally:
        extended._cross_device_ops = before


def _across(devices: Sequence[str], options: Any) -> Any:
    """How gradients are added up over these devices in a session. If they are CPUs, the session gets as many."""
    cpus = sum("CPU" in device for device in devices)
    if cpus:
        options.device_count["CPU"] = cpus
        return tf.distribute.ReductionToOneDevice()
    if any(_is_divided(gpu) for gpu in tf.config.list_physical_devices("GPU")):
        return tf.distribute.HierarchicalCopyAllReduce()  # NCCL works only with whole GPUs
    return tf.distribute.NcclAllReduce()


def _is_divided(gpu: Any) -> bool:
    """Whether the user divided a GPU into several devices. To list these, TensorFlow would take all GPUs' memory."""
    return len(tf.config.get_logical_device_configuration(gpu) or ()) > 1


class ClusterRefused(WrongValue):
    """TF_CONFIG asks for training on several machines, which is refused."""


def check_alone(config: RunConfig) -> None:
    """Refuse a TF_CONFIG that names other machines, or a role that does not train."""
    if config.is_in_cluster:
        raise ClusterRefused(
            "TF_CONFIG names a cluster, and this doorway trains on the devices of one machine",
            received=f"this process is {config.task_type} {config.task_id} of it",
            hint="unset TF_CONFIG; RunConfig(devices=…) takes every device of this machine",
        )
    if config.task_type in (TaskType.EVALUATOR, TaskType.PS):
        raise WrongValue(
            "this task does not train", received=f"task_type={config.task_type!r}", allowed="worker, chief"
        )
