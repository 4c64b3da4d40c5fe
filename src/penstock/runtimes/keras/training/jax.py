"""The trainer of Keras models on JAX: one compiled step, on one device or with the batch laid out over several.

The step is compiled for the whole batch, so it computes the same as one device would, batch normalisation included.
JAX can only divide an array evenly, so a batch is laid out over as many devices as divide its rows evenly.
Where several processes train together, each has its share of a batch, or the whole batch if it cannot be divided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from penstock.core.records import Array
from penstock.core.training import TrainBatch
from penstock.runtimes.frameworks import jax, keras
from penstock.runtimes.keras.training.feeding import PlacedBatch, placed_ahead
from penstock.runtimes.keras.training.keras_trainer import KerasTrainer, Pack, StepSettings, kept_steps, piece_bounds
from penstock.runtimes.keras.training.means import weighted_means
from penstock.runtimes.keras.training.own_step import SUM
from penstock.runtimes.keras.training.pieces import Piece, working_on
from penstock.runtimes.keras.training.variables import variables_of


class JaxTrainer(KerasTrainer):
    """Runs the model's own step, compiled. The step takes and returns the state; the variables get it when needed."""

    def __init__(
        self, model: Any, pack: Pack, settings: StepSettings, devices: Sequence[Any], loss: str | None = None
    ) -> None:
        super().__init__(model, pack, settings, loss)
        self._layout: _Layout | _GangLayout | None = None
        if jax.process_count() > 1:
            self._layout = _GangLayout()
            devices = self._layout.devices
        elif len(devices) > 1:
            self._layout = _Layout(devices)
        self.num_devices = len(devices)
        self._place(is_over=False)
        self._state: Any = None
        self._kind = ""
        key = (model.run_eagerly, model.jit_compile, settings.step, settings.scaled, tuple(devices))
        self._steps = kept_steps(model, key, self._make_steps)
        self._sums: Any = None

    def _make_steps(self) -> dict[str, Any]:
        model = self.model
        return {
            "train": self._compiled(model.train_step),
            "test": self._compiled(model.test_step),
            "piece": self._piece_step(),
        }

    def _compiled(self, step: Any, **options: Any) -> Any:
        if self.model.run_eagerly or not self.model.jit_compile:
            return step
        if self._layout is not None:
            # Without this, JAX may leave weights divided over devices after a step.
            options.setdefault("out_shardings", (self._layout.logs, self._layout.replicated))
        return jax.jit(step, donate_argnums=0, **options)

    def ahead(self, batches: Iterator[TrainBatch]) -> Iterator[TrainBatch]:
        """The same batches; for an accelerator, copied to it while steps run."""
        if jax.default_backend() == "cpu":
            return batches

        def place(batch: TrainBatch) -> Any:
            placed = self._on_device(self._pack(batch), batch.rows)
            # Borrowed memory may be overwritten, so wait for its copy. Other arrays need no wait: the next batch can be
            # gathered meanwhile.
            return jax.block_until_ready(placed) if batch.is_borrowed else placed

        return placed_ahead(batches, place)

    def _data_of(self, batch: TrainBatch) -> Any:
        if isinstance(batch, PlacedBatch):
            return batch.placed
        data = self._pack(batch)
        if batch.is_borrowed:
            # JAX may read the array's own memory, and may still do so after the call of the step has returned.
            data = keras.tree.map_structure(lambda leaf: None if leaf is None else np.array(leaf), data)
        # Pieces are cut on the host, so the batch stays there.
        return data if self._pieces > 1 else self._on_device(data, batch.rows)

    def _train(self, data: Any, rows: int) -> Any:
        return self._run("train", data)

    def _test(self, data: Any, rows: int) -> Any:
        return self._run("test", data)

    def _run(self, kind: str, data: Any) -> Any:
        self._take_from_model(kind)
        logs, self._state = self._steps[kind](self._state, data)
        self._leave_with_model()
        return logs

    def _leave_with_model(self) -> None:
        """Leave the state where `model.jax_state_sync` reads it: callbacks that need the weights call that.

        It is set past Keras's tracking, which would look at every array in it after every step.
        """
        vars(self.model)["_jax_state"] = dict(zip(_names(self._kind), self._state, strict=True))

    def _take_from_model(self, kind: str) -> None:
        """Read the state for a step from the model, unless the last step left it and nothing has synced it since."""
        model = self.model
        if not model._jax_state_synced and self._kind == kind:
            return
        model.jax_state_sync()
        self._state = model._get_jax_state(**dict.fromkeys(_names(kind), True), purge_model_variables=True)
        if self._layout is not None:
            self._state = jax.tree.map(self._layout.copied, self._state)
        self._kind = kind
        model._jax_state_synced = False

    def _train_in_pieces(self, data: Any, rows: int, pieces: int) -> Any:
        if self._sums is None:
            self._sums = [np.zeros(v.shape, v.dtype) for v in self.model.trainable_variables]
        logs = None
        # Where a batch is divided over processes, this process has only some of its rows, and so have its pieces. The
        # last batch of an epoch may have too few rows for all pieces, and a piece without rows has no mean.
        own = next(len(leaf) for leaf in keras.tree.flatten(data) if leaf is not None)
        devices = jax.local_device_count() if own < rows else 1
        bounds = piece_bounds(own // devices, min(pieces, own // devices))
        for number, (begin, end) in enumerate((first * devices, last * devices) for first, last in bounds):
            piece = keras.tree.map_structure(lambda leaf, a=begin, b=end: None if leaf is None else leaf[a:b], data)
            share = np.float32((end - begin) / own)
            laid_out = self._on_device(piece, (end - begin) * (rows // own))
            self._take_from_model("train")
            step = self._steps["piece"]
            what = number == len(bounds) - 1, self._loss == SUM
            logs, self._state, self._sums = step(self._state, laid_out, share, self._sums, what)
            self._leave_with_model()
        return logs

    def _piece_step(self) -> Any:
        """The model's step for one piece: the optimizer adds gradients up, and applies the sum after the last piece."""
        model = self.model

        def step(state: Any, data: Any, share: Any, sums: Any, what: tuple[bool, bool]) -> Any:
            is_last, is_sum = what
            rows = next(len(leaf) for leaf in keras.tree.flatten(data) if leaf is not None)
            piece = Piece(share, rows, is_last, is_weighted=False)
            weight = jax.numpy.ones_like(share) if is_sum else share
            with (
                working_on(piece),
                weighted_means(model, is_sum),
                _adding_up(model.optimizer, weight, sums, is_last) as after,
            ):
                logs, state = model.train_step(state, data)
            return logs, state, after[0]

        if self._layout is None:
            return self._compiled(step, static_argnums=4)
        replicated = self._layout.replicated
        return self._compiled(step, static_argnums=4, out_shardings=(self._layout.logs, replicated, replicated))

    def _on_device(self, data: Any, rows: int) -> Any:
        if self._layout is not None:
            return self._layout.spread(data, rows)
        return data if jax.default_backend() == "cpu" else jax.device_put(data)

    def _place(self, *, is_over: bool) -> None:
        """Put all variables on all devices, or when training is over, on the first one."""
        if self._layout is not None:
            put = self._layout.on_first if is_over else self._layout.copied
            for variable in variables_of(self.model).values():
                variable._value = put(variable._value)

    @property
    def _may_run_out(self) -> bool:
        """False in a gang: if only one process began to work on pieces, it would wait for the others for ever."""
        return not isinstance(self._layout, _GangLayout)

    def _sync(self) -> None:
        self.model.jax_state_sync()
        self._kind = ""

    def _results_or_logs(self) -> Any:
        self._sync()
        return super()._results_or_logs()

    def reset(self) -> None:
        self._sync()
        super().reset()

    def state(self) -> dict[str, Array]:
        self._sync()
        return super().state()

    def has_nan_weights(self) -> bool:
        self._sync()
        return super().has_nan_weights()

    def restore(self, state: Mapping[str, Array]) -> None:
        self._sync()
        # Drop what a failed step has left.
        self._state = self._sums = vars(self.model)["_jax_state"] = None
        super().restore(state)

    def _wait(self) -> None:
        jax.block_until_ready((self._state, self._sums, self._logs))

    def save(self, path: str) -> None:
        self._sync()
        super().save(path)

    def finish(self) -> None:
        self._sync()
        super().finish()

    def _is_out_of_memory(self, error: Exception) -> bool:
        return isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)

    def close(self) -> None:
        super().close()
        self._sync()
        self.model._jax_state = None
        self._place(is_over=True)


def _names(kind: str) -> tuple[str, ...]:
    """The parts of the state of a step, in its order."""
    if kind == "train":
        return "trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables"
    return "trainable_variables", "non_trainable_variables", "metrics_variables"


@contextmanager
def _adding_up(optimizer: Any, weight: Any, sums: Any, is_last: bool) -> Iterator[list[Any]]:
    """Let the optimizer add the weighted gradients of a piece to `sums`; the list has the new sums afterwards."""
    apply = optimizer.stateless_apply
    after: list[Any] = [sums]

    def stateless_apply(optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        total = [s if g is None else s + g * weight.astype(g.dtype) for s, g in zip(sums, grads, strict=True)]
        if not is_last:
            after[0] = total
            return trainable_variables, optimizer_variables
        after[0] = [jax.numpy.zeros_like(s) for s in sums]  # not `s * 0`: NaN would stay NaN
        return apply(optimizer_variables, total, trainable_variables)

    object.__setattr__(optimizer, "stateless_apply", stateless_apply)
    try:
        yield after
    finally:
        vars(optimizer).pop("stateless_apply", None)


class _Layout:
    """Several devices as a grid whose sides are prime numbers. A batch can be laid out over some of the sides."""

    logs: Any = None
    """The layout of the logs of a step; None leaves it to JAX."""

    def __init__(self, devices: Sequence[Any]) -> None:
        sides = _prime_factors(len(devices))
        self._sides = dict(zip((f"side{number}" for number in range(len(sides))), sides, strict=True))
        self._mesh = jax.sharding.Mesh(np.array(devices).reshape(sides), tuple(self._sides))
        self.replicated = jax.sharding.NamedSharding(self._mesh, jax.sharding.PartitionSpec())
        self._first = jax.sharding.SingleDeviceSharding(devices[0])

    def copied(self, value: Any) -> Any:
        """A value on every device."""
        return jax.device_put(value, self.replicated)

    def on_first(self, value: Any) -> Any:
        return jax.device_put(value, self._first)

    def spread(self, data: Any, rows: int) -> Any:
        """A batch whose rows are divided over as many devices as they divide evenly; the other devices have copies."""
        names, parts = [], 1
        for name, size in self._sides.items():
            if rows % (parts * size) == 0:
                names.append(name)
                parts *= size
        spec = jax.sharding.PartitionSpec(tuple(names)) if names else jax.sharding.PartitionSpec()
        sharding = jax.sharding.NamedSharding(self._mesh, spec)
        return keras.tree.map_structure(lambda leaf: None if leaf is None else jax.device_put(leaf, sharding), data)


class _GangLayout:
    """The devices of several processes, laid out by Keras's `DataParallel`. Nothing here waits for another process.

    `auto_shard_dataset=False`: penstock gives every process its own rows.
    """

    def __init__(self) -> None:
        self.devices: list[Any] = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
        names = [f"{device.platform}:{device.id}" for device in self.devices]
        self._parallel = keras.distribution.DataParallel(devices=names, auto_shard_dataset=False)
        self.replicated = keras.distribution.TensorLayout([], self._parallel.device_mesh).backend_layout
        self.logs = self.replicated

    def copied(self, value: Any) -> Any:
        """A value on every device. All processes must give the same value."""
        if isinstance(value, jax.Array) and not value.is_fully_addressable:
            return value
        value = np.asarray(value)
        return jax.make_array_from_callback(value.shape, self.replicated, lambda index: value[index])

    def on_first(self, value: Any) -> Any:
        return jax.device_put(np.asarray(value), jax.local_devices()[0])

    def spread(self, data: Any, rows: int) -> Any:
        """A batch of `rows` rows on the devices. Each process gives its share of them, or all of them."""
        return keras.tree.map_structure(lambda leaf: None if leaf is None else self._laid_out(leaf, rows), data)

    def _laid_out(self, leaf: Any, rows: int) -> Any:
        if len(leaf) == rows:
            return self.copied(leaf)
        layout = self._parallel.get_data_layout(leaf.shape).backend_layout
        return jax.make_array_from_process_local_data(layout, np.asarray(leaf))


def _prime_factors(number: int) -> list[int]:
    factors, factor = [], 2
    while number > 1:
        while number % factor == 0:
            factors.append(factor)
            number //= factor
        factor += 1
    return factors
