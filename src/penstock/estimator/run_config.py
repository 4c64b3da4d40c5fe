"""`RunConfig`: how an Estimator runs. It has the original's fields, older ones that scripts still use, and our own."""

from __future__ import annotations

import copy
import difflib
import inspect
import os
from operator import attrgetter
from typing import Any

from penstock.estimator.refusals import WrongType, WrongValue
from penstock.estimator.tf_config import Task, read_task
from penstock.options.records import DeviceRequest
from penstock.runtimes.frameworks import tf

USE_DEFAULT: Any = object()
"""The default of arguments for which None means "never"."""

DEFAULT_SAVE_SECS = 600


class _Setting:
    """A field that can be read. Only `replace` changes it, in a copy."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, config: Any, owner: type | None = None) -> Any:
        return self if config is None else getattr(config, "_" + self._name)

    def __set__(self, config: Any, value: object) -> None:
        raise AttributeError(f"can't set attribute {self._name!r}: use config.replace({self._name}=…)")


class _SessionConfig(_Setting):
    """The given session config; without one, a task of a cluster gets a config with its device filters."""

    def __get__(self, config: Any, owner: type | None = None) -> Any:
        given = super().__get__(config, owner)
        return _session_config_of(config._task) if given is None else given


class RunConfig:
    """How an Estimator runs.

    Args:
        model_dir: The folder of checkpoints and summaries; None takes that of the Estimator.
        tf_random_seed: The seed of every graph.
        save_summary_steps: Steps between summaries.
        save_checkpoints_steps: Steps between checkpoints; None with `save_checkpoints_secs=None` saves none.
        save_checkpoints_secs: Seconds between checkpoints; 600 if neither of the two is given.
        session_config: A `tf.compat.v1.ConfigProto`; None makes one.
        keep_checkpoint_max: How many checkpoints are kept; 0 or None keeps all.
        keep_checkpoint_every_n_hours: Also keep one checkpoint of every so many hours.
        log_step_count_steps: Steps between two lines in the log.
        train_distribute: A `tf.distribute` strategy; None makes one where there are several devices.
        device_fn: Places each operation.
        protocol: Accepted; there is one process.
        eval_distribute: Accepted; evaluation runs on one device.
        experimental_distribute: A `DistributeConfig`; only its `train_distribute` is used.
        experimental_max_worker_delay_secs: Accepted.
        session_creation_timeout_secs: How long to wait for a session.
        checkpoint_save_graph_def: Whether the graph is written beside the checkpoints.
        num_gpus: Train and predict on so many GPUs; 0 takes the CPU.
        gpu_memory_fraction: The share of each GPU's memory that may be taken.
        num_cores: CPU threads of this process's sessions; the old name of `threads`.
        log_device_placement: Log the device of each operation.
        devices: Where to run, as in `--devices`: `all`, `cpu`, `gpu`, `cpu:N`, `gpu:I,J`.
        threads: CPU threads of each replica.

    >>> RunConfig(save_checkpoints_steps=500).replace(tf_random_seed=7).save_checkpoints_steps
    500
    """

    model_dir = _Setting()
    tf_random_seed = _Setting()
    save_summary_steps = _Setting()
    save_checkpoints_steps = _Setting()
    save_checkpoints_secs = _Setting()
    session_config = _SessionConfig()
    keep_checkpoint_max = _Setting()
    keep_checkpoint_every_n_hours = _Setting()
    log_step_count_steps = _Setting()
    train_distribute = _Setting()
    device_fn = _Setting()
    protocol = _Setting()
    eval_distribute = _Setting()
    experimental_distribute = _Setting()
    experimental_max_worker_delay_secs = _Setting()
    session_creation_timeout_secs = _Setting()
    checkpoint_save_graph_def = _Setting()
    num_gpus = _Setting()
    gpu_memory_fraction = _Setting()
    num_cores = _Setting()
    log_device_placement = _Setting()
    devices = _Setting()
    threads = _Setting()

    def __init__(
        self,
        model_dir: Any = None,
        tf_random_seed: int | None = None,
        save_summary_steps: int | None = 100,
        save_checkpoints_steps: Any = USE_DEFAULT,
        save_checkpoints_secs: Any = USE_DEFAULT,
        session_config: Any = None,
        keep_checkpoint_max: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000,
        log_step_count_steps: int | None = 100,
        train_distribute: Any = None,
        device_fn: Any = None,
        protocol: str | None = None,
        eval_distribute: Any = None,
        experimental_distribute: Any = None,
        experimental_max_worker_delay_secs: int | None = None,
        session_creation_timeout_secs: float = 7200,
        checkpoint_save_graph_def: bool = True,
        *,
        num_gpus: int | None = None,
        gpu_memory_fraction: float | None = None,
        num_cores: int | None = None,
        log_device_placement: bool = False,
        devices: str | None = None,
        threads: int | None = None,
        **unknown: Any,
    ) -> None:
        if unknown:
            raise _unknown_argument(next(iter(unknown)))
        given = {name: value for name, value in locals().items() if name in SETTINGS}
        given["save_checkpoints_steps"], given["save_checkpoints_secs"] = _saving(
            save_checkpoints_steps, save_checkpoints_secs
        )
        has_strategy = any(
            strategy is not None for strategy in (train_distribute, eval_distribute, experimental_distribute)
        )
        self._task = read_task(os.environ.get("TF_CONFIG"), protocol, needs_leader=not has_strategy)
        given["model_dir"] = _model_dir(model_dir, self._task.model_dir)
        for name, value in given.items():
            setattr(self, "_" + name, value)
        _check(self)

    def replace(self, **changed: Any) -> RunConfig:
        """A copy with other values of some fields."""
        unknown = sorted(set(changed) - set(SETTINGS))
        if unknown:
            hint = what_to_write(unknown[0])
            raise WrongValue("cannot be replaced", received=", ".join(unknown), allowed=", ".join(SETTINGS), hint=hint)
        steps, seconds = changed.get("save_checkpoints_steps"), changed.get("save_checkpoints_secs")
        if steps is not None and seconds is not None:
            raise _saved_twice(steps, seconds)
        if steps is not None:
            changed.setdefault("save_checkpoints_secs", None)
        if seconds is not None:
            changed.setdefault("save_checkpoints_steps", None)
        if "model_dir" in changed:
            changed["model_dir"] = path_to_str(changed["model_dir"])
        copied = copy.deepcopy(self)
        for name, value in changed.items():
            setattr(copied, "_" + name, value)
        _check(copied)
        return copied

    def portable(self) -> RunConfig:
        """A copy for another process, without objects that exist only in this one."""
        return self.replace(train_distribute=None, eval_distribute=None, experimental_distribute=None)

    def session_options(self) -> Any:
        """The `ConfigProto` of a session. A GPU's memory is taken as needed by default."""
        given = vars(self)["_session_config"]  # not the property, which may add the device filters of a cluster
        if given is not None:
            options = copy.deepcopy(given)
        else:
            options = tf.compat.v1.ConfigProto(allow_soft_placement=True)
            options.graph_options.rewrite_options.meta_optimizer_iterations = 1
            options.gpu_options.allow_growth = True
        if self.gpu_memory_fraction is not None:
            options.gpu_options.per_process_gpu_memory_fraction = self.gpu_memory_fraction
        if self.log_device_placement:
            options.log_device_placement = True
        threads = self.threads or self.num_cores
        if threads:
            options.intra_op_parallelism_threads = options.inter_op_parallelism_threads = threads
        return options

    @property
    def training_strategy(self) -> Any:
        """The strategy of training, from `train_distribute` or from `experimental_distribute`."""
        return self.train_distribute or getattr(self.experimental_distribute, "train_distribute", None)

    @property
    def device_request(self) -> DeviceRequest:
        """The devices of `devices`, else those of `num_gpus`, else all."""
        if self.devices is not None:
            return DeviceRequest.parse(self.devices)
        if self.num_gpus is not None:
            indices = tuple(range(self.num_gpus))
            return DeviceRequest("gpu", gpu_indices=indices) if indices else DeviceRequest("cpu")
        return DeviceRequest()

    @property
    def cluster_spec(self) -> Any:
        """The machines that TF_CONFIG names: a `tf.train.ClusterSpec`."""
        return tf.train.ClusterSpec(self._task.cluster)

    is_in_cluster = property(attrgetter("_task.in_cluster"))
    """Whether TF_CONFIG names other processes than this one."""
    task_type = property(attrgetter("_task.type"))
    task_id = property(attrgetter("_task.id"))
    global_id_in_cluster = property(attrgetter("_task.global_id"))
    is_chief = property(attrgetter("_task.is_chief"))
    num_ps_replicas = property(attrgetter("_task.num_ps"))
    num_worker_replicas = property(attrgetter("_task.num_workers"))
    master = property(attrgetter("_task.master"))
    evaluation_master = property(attrgetter("_task.evaluation_master"))
    service = property(attrgetter("_task.service"))


SETTINGS = tuple(name for name, value in vars(RunConfig).items() if isinstance(value, _Setting))


_CLUSTER = "the environment's TF_CONFIG says it; several machines do not train together here: leave TF_CONFIG unset"
_INPUT = "input_fn decides it: dataset.batch(…).repeat(…)"
_DEVICES = "devices='gpu:0,1' or num_gpus=2; every GPU is used without either"
_MEMORY = "gpu_memory_fraction=0.5; GPU memory is taken as needed without it"
_STEPS = "Estimator.train(input_fn, max_steps=…)"
_STRATEGY = "train_distribute=strategy, or nothing: training is mirrored over every GPU by itself"
_NO_TPU = "leave it out: there is no TPU; " + _DEVICES
_WRITTEN_NOW = (
    (("gpus", "gpu", "n_gpus", "num_gpu", "num_devices", "device", "gpu_ids", "visible_device_list"), _DEVICES),
    (("memory_fraction", "per_process_gpu_memory_fraction", "gpu_options", "allow_growth", "gpu_memory"), _MEMORY),
    (("strategy", "distribute", "distribution", "distribution_strategy", "distribute_strategy"), _STRATEGY),
    (("seed", "random_seed"), "tf_random_seed=…"),
    (("intra_op_parallelism_threads", "inter_op_parallelism_threads", "num_threads", "cores"), "threads=…"),
    (("batch_size", "num_epochs", "epochs", "train_batch_size", "eval_batch_size", "shuffle"), _INPUT),
    (("max_steps", "num_steps", "train_steps", "steps"), _STEPS),
    (("eval_steps", "throttle_secs", "start_delay_secs", "exporters"), "EvalSpec(input_fn, steps=…, throttle_secs=…)"),
    (("learning_rate", "optimizer", "params"), "Estimator(model_fn, params={…}): the model_fn makes the optimizer"),
    (("warm_start_from",), "Estimator(model_fn, warm_start_from=…)"),
    (("hooks", "saving_listeners"), "Estimator.train(input_fn, hooks=…, saving_listeners=…)"),
    (
        ("save_checkpoints_minutes", "checkpoint_every", "save_every"),
        "save_checkpoints_secs=… or save_checkpoints_steps=…",
    ),
    (("keep_checkpoints", "max_to_keep"), "keep_checkpoint_max=…"),
    (("log_every", "log_steps"), "log_step_count_steps=…"),
    (("output_dir", "job_dir", "log_dir"), "model_dir=…"),
    (("tpu_config", "cluster", "tpu", "num_shards", "iterations_per_loop", "use_tpu"), _NO_TPU),
    (
        ("master", "evaluation_master", "cluster_spec", "task", "task_type", "task_id", "is_chief", "environment"),
        _CLUSTER,
    ),
    (("num_ps_replicas", "num_worker_replicas", "num_workers"), _CLUSTER),
)
"""Arguments that RunConfig never had, or only before TensorFlow 1.4, and what to write instead."""


def what_to_write(argument: str) -> str | None:
    """What to write instead of an argument that RunConfig does not have.

    >>> what_to_write("keep_checkpoints_max")
    'keep_checkpoint_max=…'
    """
    for names, hint in _WRITTEN_NOW:
        if argument in names:
            return hint
    close = difflib.get_close_matches(argument, SETTINGS, n=1)
    return f"{close[0]}=…" if close else None


def _unknown_argument(name: str) -> WrongType:
    return WrongType(
        "RunConfig has no such argument",
        received=f"{name}=…",
        allowed=", ".join(SETTINGS),
        hint=what_to_write(name) or "leave it out; docs/from-estimator.md has what to write now",
    )


def path_to_str(path: Any) -> Any:
    return os.fspath(path) if hasattr(path, "__fspath__") else path


def _saving(steps: Any, seconds: Any) -> tuple[Any, Any]:
    if steps is USE_DEFAULT and seconds is USE_DEFAULT:
        return None, DEFAULT_SAVE_SECS
    steps = None if steps is USE_DEFAULT else steps
    seconds = None if seconds is USE_DEFAULT else seconds
    if steps is not None and seconds is not None:
        raise _saved_twice(steps, seconds)
    return steps, seconds


def _saved_twice(steps: Any, seconds: Any) -> WrongValue:
    return WrongValue(
        "checkpoints are saved by steps or by seconds",
        received=f"save_checkpoints_steps={steps!r}, save_checkpoints_secs={seconds!r}",
        allowed="one of the two",
    )


def _session_config_of(task: Task) -> Any:
    if task.device_filters is None:
        return None
    options = tf.compat.v1.ConfigProto(allow_soft_placement=True, device_filters=task.device_filters)
    options.graph_options.rewrite_options.meta_optimizer_iterations = 1
    return options


def _model_dir(given: Any, from_cluster: str | None) -> Any:
    path = path_to_str(given)
    if path == "" or from_cluster == "":
        raise WrongValue("model_dir is empty", received="model_dir=''")
    if path and from_cluster and path != from_cluster:
        raise WrongValue("model_dir differs from that of TF_CONFIG", received=f"{path!r} and {from_cluster!r}")
    return path or from_cluster


def _check(config: RunConfig) -> None:
    def at_least(name: str, least: float, *, above: bool = False) -> None:
        value = getattr(config, name)
        if value is not None and not (value > least if above else value >= least):
            raise WrongValue(
                f"{name} is out of range",
                received=f"{name}={value!r}",
                allowed=f"more than {least}" if above else f"at least {least}",
            )

    for name in ("save_summary_steps", "save_checkpoints_steps", "save_checkpoints_secs", "keep_checkpoint_max"):
        at_least(name, 0)
    for name in ("keep_checkpoint_every_n_hours", "log_step_count_steps", "session_creation_timeout_secs"):
        at_least(name, 0, above=True)
    at_least("num_gpus", 0)
    at_least("num_cores", 0)
    at_least("threads", 1)
    at_least("gpu_memory_fraction", 0, above=True)
    for name in ("tf_random_seed", "experimental_max_worker_delay_secs"):
        value = getattr(config, name)
        if value is not None and not isinstance(value, int):
            raise WrongValue(f"{name} must be a whole number", received=f"{name}={value!r}")
    if config.model_dir == "":
        raise WrongValue("model_dir is empty", received="model_dir=''")
    if config.protocol not in (None, "grpc", "grpc+verbs"):
        raise WrongValue("unknown protocol", received=f"protocol={config.protocol!r}", allowed="grpc, grpc+verbs")
    if config.devices is not None:
        DeviceRequest.parse(config.devices)
    _check_functions(config)
    _check_strategies(config)


def _check_strategies(config: RunConfig) -> None:
    within = getattr(config.experimental_distribute, "train_distribute", None)
    if config.train_distribute is not None and within is not None:
        raise WrongValue(
            "the strategy of training is given twice",
            received="train_distribute and experimental_distribute.train_distribute",
            allowed="one of the two",
        )
    for name, strategy in (("train_distribute", config.training_strategy), ("eval_distribute", config.eval_distribute)):
        if (
            type(strategy).__name__ == "ParameterServerStrategyV2"
        ):  # found by its name: this module imports no framework
            raise WrongValue(
                "the parameter servers of TensorFlow 2 do not run an Estimator",
                received=f"{name} is a tf.distribute.experimental.ParameterServerStrategy",
                hint="RunConfig(devices=…) trains on every device of this machine",
            )
        if strategy is not None and (isinstance(strategy, type) or not hasattr(strategy, "extended")):
            raise WrongType(
                f"{name} must be a tf.distribute strategy",
                received=f"{name}={strategy!r:.80}",
                hint=f"{name}=tf.distribute.MirroredStrategy(), or nothing: every GPU is used by itself",
            )


def _check_functions(config: RunConfig) -> None:
    session_config, device_fn = vars(config)["_session_config"], config.device_fn
    if session_config is not None and type(session_config).__name__ != "ConfigProto":
        raise WrongValue(
            "session_config must be a tf.compat.v1.ConfigProto", received=f"session_config={session_config!r}"
        )
    if device_fn is not None:
        if not callable(device_fn):
            raise WrongType("device_fn must be a function", received=repr(device_fn))
        if list(inspect.signature(device_fn).parameters) != ["op"]:
            raise WrongValue("device_fn takes one argument, `op`", received=repr(device_fn))
