"""The base of the trainers of all backends: packing, pieces when memory runs short, results and state."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penstock.core.records import Array
from penstock.core.training import TrainBatch, has_nan
from penstock.errors import ModelError, OutOfMemory, PenstockError, one_line
from penstock.runtimes.frameworks import keras
from penstock.runtimes.keras.training.feeding import PlacedBatch
from penstock.runtimes.keras.training.own_step import NO_PIECES, UNKNOWN, kind_of_loss
from penstock.runtimes.keras.training.scaled_data import ScaledData, scale_before, scale_no_more
from penstock.runtimes.keras.training.user_step import StepFunction, put_in, take_out
from penstock.runtimes.keras.training.variables import read_variables, variables_of, write_variables

_KEPT_ON_THE_MODEL = "_penstock_steps"
Pack = Callable[[TrainBatch], Any]
"""Makes the data for the model's `train_step` from a batch: (x, y) or (x, y, sample_weight), in its structures."""


@dataclass(frozen=True)
class StepSettings:
    """How a batch is worked on."""

    accumulate: int = 1
    """In how many pieces a batch is worked on. The weights change once for all of them."""
    is_undoable: bool = False
    """Whether a step can be undone. If so, the state before each step is kept."""
    are_errors_told: bool = False
    """Whether an error in a step becomes a ModelError of one line; else it stays as `model.fit` would raise it."""
    step: StepFunction | None = None
    """The user's own step, which replaces the model's `train_step`."""
    scaled: ScaledData | None = None
    """What is done to inputs before the step, on the device."""
    all_reduce: str = "auto"
    """How gradients are added up over several devices of TensorFlow."""
    is_measured: bool = False
    """Whether steps are timed and undone: all variables are made before the first one."""


class KerasTrainer(ABC):
    """A live, built and compiled Keras model with the step that trains it."""

    num_devices = 1

    def __init__(self, model: Any, pack: Pack, settings: StepSettings, loss: str | None = None) -> None:
        self.model = model
        self.remarks: list[str] = []
        """All remarks for the user so far."""
        self.on_remark: Callable[[str], None] | None = None
        """Called with every remark that is made after the start."""
        self._pack = pack
        self._settings = settings
        self._pieces = settings.accumulate
        self._loss = loss  # how the losses of pieces make the loss of a batch; None before it was found out
        self._logs: Any = {}
        self._before: dict[str, Array] = {}
        self._fitting: set[int] = set()  # numbers of rows that fit into memory
        if settings.step is not None:
            put_in(model, settings.step)
        if settings.scaled is not None:
            scale_before(model, settings.scaled)

    def _remark(self, remark: str) -> None:
        self.remarks.append(remark)
        if self.on_remark is not None:
            self.on_remark(remark)

    @abstractmethod
    def _train(self, data: Any, rows: int) -> Any:
        """One step on a whole batch; returns what `train_step` returns."""

    @abstractmethod
    def _train_in_pieces(self, data: Any, rows: int, pieces: int) -> Any:
        """One step, with the gradients of `pieces` pieces added up."""

    def _check_pieces(self, data: Any, rows: int) -> None:
        """Find out, before the first piece, how the losses of pieces make the loss of a batch.

        Raises:
            OutOfMemory: This cannot be found out. Where the user asked for pieces, the job was refused before.
        """
        if self._loss is None:
            few = max(2, rows // self._pieces)
            self._loss = kind_of_loss(self.model, keras.tree.map_structure(lambda leaf: _begin(leaf, few), data))
        if self._loss == UNKNOWN:
            raise OutOfMemory(
                f"a batch of {rows} rows does not fit into memory, and it cannot be worked on in pieces",
                received=NO_PIECES,
                hint="a smaller batch size",
            )

    @abstractmethod
    def _test(self, data: Any, rows: int) -> Any: ...

    @abstractmethod
    def _is_out_of_memory(self, error: Exception) -> bool: ...

    def ahead(self, batches: Iterator[TrainBatch]) -> Iterator[TrainBatch]:
        """The same batches; for an accelerator, copied to it while steps run."""
        return batches

    def _data_of(self, batch: TrainBatch) -> Any:
        return batch.placed if isinstance(batch, PlacedBatch) else self._pack(batch)

    def train_on(self, batch: TrainBatch) -> None:
        """One step. The weights change once, whether the batch is worked on whole or in pieces."""
        data = self._data_of(batch)
        if self._settings.is_undoable:
            self._before = self.state()
        with self._telling("a step of training fails"):
            if batch.rows not in self._fitting:
                self._train_first(data, batch.rows)
            else:
                self._step_on(data, batch.rows)
        batch.release()

    def _step_on(self, data: Any, rows: int) -> None:
        if self._pieces == 1:
            self._logs = self._train(data, rows)
        else:
            self._check_pieces(data, rows)
            self._logs = self._train_in_pieces(data, rows, min(self._pieces, rows))

    @contextmanager
    def _telling(self, problem: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if isinstance(error, PenstockError) or not self._settings.are_errors_told:
                raise
            raise ModelError(problem, received=one_line(error), hint="_penstock/log.txt has the stack trace") from error

    def fits(self, batch: TrainBatch) -> bool:
        """Make one step, and return whether the batch fits into memory. It waits for the devices."""
        try:
            self._step_on(self._data_of(batch), batch.rows)
            self._wait()
        except Exception as error:
            if not self._is_out_of_memory(error):
                raise
            return False
        self._fitting.add(batch.rows)
        return True

    def _train_first(self, data: Any, rows: int) -> None:
        """Make the first step with so many rows. If it does not fit, batches are cut into more pieces from then on."""
        before = self.state() if self._may_run_out else None
        while True:
            try:
                self._step_on(data, rows)
                if before is not None:
                    self._wait()  # some frameworks run out of memory after the call has returned
                break
            except Exception as error:
                if before is None or not self._is_out_of_memory(error):
                    raise
                reason = one_line(error)
            if self._pieces >= rows:
                raise OutOfMemory(
                    "one row does not fit into memory",
                    received=reason,
                    hint="a smaller model or input, or mixed precision",
                )
            self._pieces *= 2
            self._remark(
                f"a batch of {rows} rows does not fit into memory: it is worked on in {self._pieces} pieces, "
                "and the weights change once; batch normalisation and dropout see the pieces"
            )
            self.restore(before)
        self._fitting.add(rows)

    @property
    def _may_run_out(self) -> bool:
        """Whether the first step can be undone when memory runs out. If so, a copy of the state is kept during it."""
        return True

    def test_on(self, batch: TrainBatch) -> None:
        """Add a batch to the metrics."""
        data = self._data_of(batch)
        with self._telling("a step of validation fails"):
            self._logs = self._test(data, batch.rows)
        batch.release()

    def _wait(self) -> None:
        """Wait until the last step is done. An error of that step is raised here."""
        for value in keras.tree.flatten(self._results_or_logs()):
            keras.ops.convert_to_numpy(value)

    def results(self) -> dict[str, float]:
        """Loss and metrics since the last reset, as Keras logs them."""
        from keras.src.utils.python_utils import pythonify_logs

        return dict(pythonify_logs(self._results_or_logs()))

    def step_logs(self) -> Any:
        """What the last step returned, still on the device; callbacks get it."""
        return self._logs

    def _results_or_logs(self) -> Any:
        return self.model._get_metrics_result_or_logs(self._logs)

    def undo(self) -> None:
        """Give everything the state that it had before the last step."""
        self.restore(self._before)
        self._logs = {}

    def reset(self) -> None:
        """Begin to count loss and metrics anew."""
        self.model.reset_metrics()
        self._logs = {}

    def state(self) -> dict[str, Array]:
        """Everything that a step reads."""
        return read_variables(variables_of(self.model))

    def has_nan_weights(self) -> bool:
        """Whether any weight is NaN. It waits for the last step."""
        weights = {str(number): weight for number, weight in enumerate(self.model.trainable_variables)}
        return any(map(has_nan, read_variables(weights).values()))

    def restore(self, state: Mapping[str, Array]) -> None:
        """Give everything the state that it had when `state` was taken."""
        write_variables(variables_of(self.model), state)

    def save(self, path: str) -> None:
        """Write the model as a `.keras` file."""
        self.model.save(path)

    def finish(self) -> None:
        """Do what Keras does after the last epoch: moving averages of the weights become the weights."""
        if isinstance(self.model.optimizer, keras.optimizers.Optimizer):
            self.model.optimizer.finalize_variable_values(self.model.trainable_weights)

    def close(self) -> None:
        """Undo all changes to the methods of the model."""
        if self._settings.scaled is not None:
            scale_no_more(self.model)
        if self._settings.step is not None:
            take_out(self.model)


def kept_steps(model: Any, key: tuple[Any, ...], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The compiled steps of a model. They are kept until it is compiled anew, so the next call traces nothing.

    They are kept on the model itself, past Keras's tracking: a table here would keep every model alive for ever.
    """
    kept = vars(model).get(_KEPT_ON_THE_MODEL)
    # `model.compile` makes a new loss tracker, which shows that the steps are out of date.
    if kept is None or kept[0] is not model._loss_tracker or kept[1] != key:
        kept = (model._loss_tracker, key, make())
        object.__setattr__(model, _KEPT_ON_THE_MODEL, kept)
    steps: dict[str, Any] = kept[2]
    return steps


def _begin(leaf: Any, rows: int) -> Any:
    return None if leaf is None else leaf[:rows]


def forget_steps(model: Any) -> None:
    """Drop the kept steps of a model, so that its next trainer compiles them anew."""
    vars(model).pop(_KEPT_ON_THE_MODEL, None)


def piece_bounds(rows: int, pieces: int) -> list[tuple[int, int]]:
    """Where the pieces of `rows` rows begin and end. Their sizes differ by at most one row."""
    small, larger = divmod(rows, pieces)
    ends = [small * number + min(number, larger) for number in range(pieces + 1)]
    return list(itertools.pairwise(ends))
