"""Trainers of Keras models on TensorFlow: on one device, and mirrored on several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.core.records import Array
from penstock.core.training import TrainBatch
from penstock.runtimes.cuda_feed import feed_to_tensorflow
from penstock.runtimes.frameworks import keras, tf
from penstock.runtimes.keras.training.feeding import placed_ahead
from penstock.runtimes.keras.training.gradients import GradientHook
from penstock.runtimes.keras.training.keras_trainer import KerasTrainer, Pack, StepSettings, kept_steps, piece_bounds
from penstock.runtimes.keras.training.means import WeightedMeans
from penstock.runtimes.keras.training.mirrored import MirroredModel
from penstock.runtimes.keras.training.own_step import BY_KERAS, SUM, has_own
from penstock.runtimes.keras.training.pieces import Piece, working_on

_NOTHING_FITS = "No valid config found"


class TensorFlowTrainer(KerasTrainer):
    """Runs the model's own step on one device, compiled with the model's own settings."""

    def __init__(self, model: Any, pack: Pack, settings: StepSettings, loss: str | None, first: Any = None) -> None:
        super().__init__(model, pack, settings, loss)
        self._first = first  # a batch, where the model may have variables only after its first step
        key = (model.run_eagerly, model.jit_compile, settings.step, settings.scaled)
        self._steps = kept_steps(model, key, self._make_steps)
        self._hook: GradientHook | None = None
        self._means: WeightedMeans | None = None

    def ahead(self, batches: Iterator[TrainBatch]) -> Iterator[TrainBatch]:
        """The same batches; for a GPU, copied to it while steps run."""
        if not tf.config.list_logical_devices("GPU"):
            return batches
        feed = _Feed()
        return placed_ahead(batches, lambda batch: keras.tree.map_structure(feed, self._pack(batch)))

    def restore(self, state: Mapping[str, Array]) -> None:
        """Give everything the state that it had. A step makes the variables that the model may not have yet."""
        if self._first is not None:
            self._train(self._first, 0)
            self._first = None
        if self._hook is not None:
            self._hook.forget()
        super().restore(state)

    def _make_steps(self) -> dict[str, Any]:
        return {"train": self._compiled(self.model.train_step), "test": self._compiled(self.model.test_step)}

    def _compiled(self, step: Callable[..., Any]) -> Any:
        if self.model.run_eagerly:
            return step
        step = tf.autograph.experimental.do_not_convert(step)
        return tf.function(step, reduce_retracing=True, jit_compile=self.model.jit_compile)

    def _train(self, data: Any, rows: int) -> Any:
        return self._steps["train"](_as_tensors(data))

    def _test(self, data: Any, rows: int) -> Any:
        return self._steps["test"](_as_tensors(data))

    def _train_in_pieces(self, data: Any, rows: int, pieces: int) -> Any:
        if self._hook is None:
            self._hook = GradientHook(self.model, is_sum=self._loss == SUM)
            self._hook.prepare()
            self._means = WeightedMeans(self.model, 1, is_sum=self._loss == SUM)
            self._steps["piece"] = self._compiled(self._piece)
        logs = None
        for number, (begin, end) in enumerate(piece_bounds(rows, pieces)):
            piece = keras.tree.map_structure(lambda leaf, a=begin, b=end: None if leaf is None else leaf[a:b], data)
            share = tf.constant((end - begin) / rows, tf.float32)
            logs = self._steps["piece"](_as_tensors(piece), share, number == pieces - 1)
        return logs

    def _piece(self, data: Any, share: Any, is_last: bool) -> Any:
        rows = tf.shape(next(leaf for leaf in keras.tree.flatten(data) if leaf is not None))[0]
        with working_on(Piece(share, rows, is_last, is_weighted=self._loss == BY_KERAS)):
            return self.model.train_step(data)

    def _is_out_of_memory(self, error: Exception) -> bool:
        return _is_out_of_memory(error)

    @property
    def _may_run_out(self) -> bool:
        return self._first is None

    def close(self) -> None:
        super().close()
        if self._hook is not None and self._means is not None:
            self._hook.remove()
            self._means.remove()
            self._steps.pop("piece")
            self._hook = self._means = None  # it may be closed again


class MirroredTrainer(KerasTrainer):
    """Trains on several devices. Every step divides its batch as evenly as possible; no row is padded or dropped."""

    def __init__(self, model: Any, pack: Pack, settings: StepSettings, devices: Sequence[str], loss: str) -> None:
        super().__init__(model, pack, settings, loss)
        self._strategy = tf.distribute.MirroredStrategy(list(devices), cross_device_ops=_reduction(settings, devices))
        self.num_devices = len(devices)
        self._mirrored = MirroredModel(model, self._strategy)
        self._hook = GradientHook(model, self._strategy, is_sum=loss == SUM)
        self._means = WeightedMeans(model, len(devices), is_sum=loss == SUM)
        if self._mirrored.was_jit_compiled:
            self.remarks.append("jit_compile is off while the model trains on several devices: XLA cannot compile that")
        self._names: dict[str, list[str]] = {"": []}  # the names of what steps log, by the kind of step
        self._kind = ""
        self._are_apart = False  # whether the devices' statistics of rows may differ
        self._step: Any = self._compiled(self._run)
        self._metrics: Any = self._compiled(model.get_metrics_result)

    def _compiled(self, step: Callable[..., Any]) -> Any:
        if self.model.run_eagerly:
            return step
        return tf.function(tf.autograph.experimental.do_not_convert(step), reduce_retracing=True)

    def _train(self, data: Any, rows: int) -> Any:
        return self._on_all(data, 0, rows, rows, ("train", True))

    def restore(self, state: Mapping[str, Array]) -> None:
        with self._strategy.scope():
            self._hook.forget()
        super().restore(state)

    def _test(self, data: Any, rows: int) -> Any:
        if self._are_apart:
            with self._strategy.scope():
                self._mirrored.even_out()  # otherwise each device would test its rows with different statistics
            self._are_apart = False
        return self._on_all(data, 0, rows, rows, ("test", True))

    def _train_in_pieces(self, data: Any, rows: int, pieces: int) -> Any:
        with self._strategy.scope():
            self._hook.prepare()
        logs = None
        for number, (begin, end) in enumerate(piece_bounds(rows, pieces)):
            logs = self._on_all(data, begin, end, rows, ("train", number == pieces - 1))
        return logs

    def _on_all(self, data: Any, begin: int, end: int, rows: int, what: tuple[str, bool]) -> Any:
        """Run a step on the rows from `begin` to `end` of a batch of `rows` rows."""
        rows_of = piece_bounds(end - begin, self.num_devices)
        few = end - begin < self.num_devices
        leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None]
        shards, shares = [], []
        for first, last in rows_of:
            # A device without a row repeats one, with a share of 0.
            part = slice(begin, begin + 1) if first == last else slice(begin + first, begin + last)
            shards.append([_as_tensor(leaf[part]) for leaf in leaves])
            shares.append(tf.constant((last - first) / rows, tf.float32))
        self._kind = what[0]
        self._are_apart |= self._kind == "train"
        self._structure = keras.tree.map_structure(lambda leaf: None if leaf is None else 0, data)
        return self._step(shards, shares, what, few)

    def _run(self, shards: list[list[Any]], shares: list[Any], what: tuple[str, bool], few: bool) -> Any:
        values = self._strategy.experimental_distribute_values_from_function(
            lambda context: (shards[context.replica_id_in_sync_group], shares[context.replica_id_in_sync_group])
        )
        logs = self._strategy.run(self._run_on_one, args=(*values, what, few))
        return {
            name: self._strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None) for name, value in logs.items()
        }

    def _run_on_one(self, leaves: list[Any], share: Any, what: tuple[str, bool], few: bool) -> Any:
        """Run the step on one device. Returns the logs of the step that are no metrics, weighted by the share."""
        kind, is_last = what
        rest = iter(leaves)
        data = keras.tree.map_structure(lambda leaf: None if leaf is None else next(rest), self._structure)
        before = [(variable, tf.identity(variable.value)) for variable in self._kept_when_empty()] if few else []
        is_own = self._loss != BY_KERAS if kind == "train" else has_own(self.model, "test_step")
        with working_on(Piece(share, tf.shape(leaves[0])[0], is_last, is_weighted=not is_own)):
            logs = self.model.train_step(data) if kind == "train" else self.model.test_step(data)
        for variable, value in before:
            variable.value.assign(tf.where(share > 0, variable.value, value))
        logs = _flat(logs)
        self._names[kind] = list(logs)
        metrics = self.model.get_metrics_result()
        return {name: tf.cast(value, tf.float32) * share for name, value in logs.items() if name not in metrics}

    def _kept_when_empty(self) -> list[Any]:
        """Variables that must not change on a device without a row of the batch."""
        statistics = [v for v in self.model.non_trainable_variables if keras.backend.is_float_dtype(v.dtype)]
        return [*self.model.metrics_variables, *statistics]

    def _results_or_logs(self) -> Any:
        metrics = self._metrics()
        return {name: self._logs[name] if name in self._logs else metrics[name] for name in self._names[self._kind]}

    def step_logs(self) -> Any:
        return self._results_or_logs()

    def reset(self) -> None:
        with self._strategy.scope():
            super().reset()
        self._kind = ""

    def _is_out_of_memory(self, error: Exception) -> bool:
        return _is_out_of_memory(error)

    def close(self) -> None:
        super().close()
        self._hook.remove()
        self._means.remove()
        self._mirrored.put_back()


class _Feed:
    """Copies arrays to the GPU, without TensorFlow as long as there is memory that TensorFlow has not taken."""

    def __init__(self) -> None:
        self._feed: Callable[[Any], Any] = feed_to_tensorflow() or tf.constant

    def __call__(self, leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray):
            return leaf
        try:
            return self._feed(np.ascontiguousarray(leaf))
        except Exception:  # errors of CuPy, which may not even start here
            self._feed = tf.constant
            return tf.constant(leaf)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out. With too little memory, XLA may only report that it found no way to compute something."""
    if isinstance(error, tf.errors.ResourceExhaustedError):
        return True
    return isinstance(error, tf.errors.InternalError) and _NOTHING_FITS in str(error)


def _flat(logs: Any) -> dict[str, Any]:
    """Logs as Keras shows them: nested ones are taken out, under their own names."""
    flat: dict[str, Any] = {}
    for name, value in logs.items():
        flat |= _flat(value) if isinstance(value, dict) else {name: value}
    return flat


def _reduction(settings: StepSettings, devices: Sequence[str]) -> Any:
    if settings.all_reduce == "nccl":
        return tf.distribute.NcclAllReduce()
    if settings.all_reduce == "hierarchical":
        return tf.distribute.HierarchicalCopyAllReduce()
    if settings.all_reduce == "one-device":
        return tf.distribute.ReductionToOneDevice()
    if any("GPU" in device for device in devices):
        return None  # TensorFlow's own choice: NCCL where it can
    return tf.distribute.ReductionToOneDevice()


def _as_tensors(data: Any) -> Any:
    return keras.tree.map_structure(_as_tensor, data)


def _as_tensor(leaf: Any) -> Any:
    return leaf if leaf is None or tf.is_tensor(leaf) else tf.convert_to_tensor(leaf)
