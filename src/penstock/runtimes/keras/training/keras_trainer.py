"""What the trainers of all backends have in common: packing, pieces when memory runs short, results and state."""

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
"""From a batch to what the model's `train_step` takes: (x, y) or (x, y, sample_weight), in the model's structures."""


@dataclass(frozen=True)
class StepSettings:
    """How a batch is worked on."""

    accumulate: int = 1
    """A batch is worked on in so many pieces, and the weights change once."""
    is_undoable: bool = False
    """Whether a step can be undone: a copy of everything is kept."""
    are_errors_told: bool = False
    """Whether what a step raises becomes a ModelError of one line; else it stays as `model.fit` would raise it."""
    step: StepFunction | None = None
    """The user's own, in the place of the model's `train_step`."""
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
        """What the user should know, of the beginning and since."""
        self.on_remark: Callable[[str], None] | None = None
        """Called with every further remark."""
        self._pack = pack
        self._settings = settings
        self._pieces = settings.accumulate
        self._loss = loss  # how the losses of pieces make that of a batch; None before it was measured
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
        """Find out, before the first piece, how the losses of pieces make that of a batch.

        Raises:
            OutOfMemory: They do not. Where pieces were asked for, this was refused before.
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
        """Make one step, and say whether the batch fits into memory as it is. Waits for the devices."""
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
        """The first step with so many rows: what does not fit is worked on in smaller pieces from then on."""
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
        """Whether a copy of everything can be kept during the first step, which is undone when memory runs out."""
        return True

    def test_on(self, batch: TrainBatch) -> None:
        """Add a batch to the metrics."""
        data = self._data_of(batch)
        with self._telling("a step of validation fails"):
            self._logs = self._test(data, batch.rows)
        batch.release()

    def _wait(self) -> None:
        """Wait until the last step is done. Raises what it fails with."""
        for value in keras.tree.flatten(self._results_or_logs()):
            keras.ops.convert_to_numpy(value)

    def results(self) -> dict[str, float]:
        """Loss and metrics since the last reset, as Keras logs them."""
        from keras.src.utils.python_utils import pythonify_logs

        return dict(pythonify_logs(self._results_or_logs()))

    def step_logs(self) -> Any:
        """What the last step returned, as it is on the device: for callbacks."""
        return self._logs

    def _results_or_logs(self) -> Any:
        return self.model._get_metrics_result_or_logs(self._logs)

    def undo(self) -> None:
        """Make everything what it was before the last step."""
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
        """Whether weights are NaN. Waits for the last step."""
        weights = {str(number): weight for number, weight in enumerate(self.model.trainable_variables)}
        return any(map(has_nan, read_variables(weights).values()))

    def restore(self, state: Mapping[str, Array]) -> None:
        """Make everything what it was when `state` was taken."""
        write_variables(variables_of(self.model), state)

    def save(self, path: str) -> None:
        """Write the model as a `.keras` file."""
        self.model.save(path)

    def finish(self) -> None:
        """What Keras does after the last epoch: moving averages of the weights become the weights."""
        if isinstance(self.model.optimizer, keras.optimizers.Optimizer):
            self.model.optimizer.finalize_variable_values(self.model.trainable_weights)

    def close(self) -> None:
        """Leave the model as any Keras model is."""
        if self._settings.scaled is not None:
            scale_no_more(self.model)
        if self._settings.step is not None:
            take_out(self.model)


def kept_steps(model: Any, key: tuple[Any, ...], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The compiled steps of a model, kept until it is compiled anew: the next call traces nothing.

    They are kept on the model itself, past Keras's tracking: a table of ours would keep every model alive for ever.
    """
    kept = vars(model).get(_KEPT_ON_THE_MODEL)
    # `model.compile` makes another tracker.
    if kept is None or kept[0] is not model._loss_tracker or kept[1] != key:
        kept = (model._loss_tracker, key, make())
        object.__setattr__(model, _KEPT_ON_THE_MODEL, kept)
    steps: dict[str, Any] = kept[2]
    return steps


def _begin(leaf: Any, rows: int) -> Any:
    return None if leaf is None else leaf[:rows]


def forget_steps(model: Any) -> None:
    """Let the next trainer of a model compile its steps anew."""
    vars(model).pop(_KEPT_ON_THE_MODEL, None)


def piece_bounds(rows: int, pieces: int) -> list[tuple[int, int]]:
    """Where pieces of `rows` rows begin and end; they differ by at most one row."""
    small, larger = divmod(rows, pieces)
    ends = [small * number + min(number, larger) for number in range(pieces + 1)]
    return list(itertools.pairwise(ends))
