"""The records of training: `history.csv` with a row for each epoch, a table of steps, and numbers for TensorBoard.

The tables hold no times: so the tables of a run that was interrupted and resumed equal, byte by byte, those of a run
without an interruption.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from penstock.core.training import Position
from penstock.storage.disk import append_whole, fsync_folder, make_folders, temporary_name, write_whole
from penstock.storage.turns import remove_in_turn
from penstock.training.scalar_events import ScalarEvents

HISTORY, STEPS, EVENTS = "history.csv", "steps.csv", "tensorboard"
_VALIDATION = "val_"
_POSITION = ("epoch", "step")


@dataclass
class TrainingRecords:
    """Writes the records of a run into its folder (`loop.Recorder`).

    A full disk does not end training: the user gets a message, and the missing lines are written with the next record.

    Args:
        folder: The output folder.
        every_steps: Loss and metrics are also recorded every so many steps; None for epochs only.
        has_events: Whether TensorBoard gets the numbers.
        say: Called with a message where something cannot be written.
        staging: The folder of files that are not whole yet (`storage.turns`); None for `folder` itself.
    """

    folder: str
    every_steps: int | None = None
    has_events: bool = False
    say: Callable[[str], None] = field(default=lambda remark: None)
    staging: str | None = None
    epochs: list[dict[str, float]] = field(default_factory=list)
    """The rows of `history.csv`."""
    _steps: _StepTable | None = None
    _events: dict[str, ScalarEvents] = field(default_factory=dict)
    _first_step: int = 0

    def begin(self, position: Position, state: Any) -> None:
        """Begin with the records of a checkpoint. Later records are removed from the files."""
        self.close()
        self.epochs = list(state or [])
        self._first_step = position.step + 1 if state is not None else 0
        with self._said(HISTORY), contextlib.suppress(FileNotFoundError):
            make_folders(self.folder)
            if not self.epochs:
                remove_in_turn(self._path(HISTORY), self.staging)
        if self.epochs:
            self._write_history()
        if self.every_steps is not None:
            self._steps = _StepTable(self._path(STEPS), position.step if state is not None else 0, self.staging)
            with self._said(STEPS):
                self._steps.flush()

    def step(self, position: Position, logs: Callable[[], Any]) -> None:
        """Record a step, if it is one of every `every_steps`: reading the logs of all would wait for the devices."""
        if self._steps is None or self.every_steps is None or position.step % self.every_steps:
            return
        values = _numbers(logs())
        self._steps.add({"epoch": position.epoch + 1, "step": position.step, **values})
        with self._said(STEPS):
            self._steps.flush()
        self._add_events(position.step, values, "batch_")

    def epoch(self, position: Position, logs: Mapping[str, float]) -> None:
        """Record an epoch."""
        values = _numbers(logs)
        self.epochs.append({"epoch": position.epoch + 1, "step": position.step, **values})
        self._write_history()
        self._add_events(position.step, values, "epoch_")

    def state(self) -> Any:
        """The rows of all epochs. This also syncs the table of steps to the disk, as far as the disk takes it."""
        if self._steps is not None:
            with self._said(STEPS):
                self._steps.sync()
        return list(self.epochs)

    def close(self) -> None:
        for events in self._events.values():
            events.close()
        self._events.clear()
        if self._steps is not None:
            self._steps.close()

    def _write_history(self) -> None:
        """Write the whole table: it is small, and after any crash it is the old one or the new one."""
        names = dict.fromkeys(name for row in self.epochs for name in row)
        with self._said(HISTORY):
            rows = ([row.get(name, "") for name in names] for row in self.epochs)
            write_whole(self._path(HISTORY), _as_csv([list(names), *rows]), self.staging)

    def _add_events(self, step: int, values: Mapping[str, float], prefix: str) -> None:
        """Write values for TensorBoard, named as by Keras's own callback: one run for training, one for validation."""
        if not self.has_events:
            return
        for run in ("train", "validation"):
            is_validation = run == "validation"
            scalars = {
                prefix + name.removeprefix(_VALIDATION): value
                for name, value in values.items()
                if name.startswith(_VALIDATION) == is_validation
            }
            if scalars:
                with self._said(EVENTS):
                    if run not in self._events:
                        self._events[run] = ScalarEvents(os.path.join(self.folder, EVENTS, run), self._first_step)
                    self._events[run].add(step, scalars)

    @contextlib.contextmanager
    def _said(self, name: str) -> Any:
        try:
            yield
        except OSError as error:
            self.say(f"{name} could not be written: {error}; training goes on")

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)


class _StepTable:
    """A table that grows by whole lines. Lines that the disk refused are written with the next ones.

    Args:
        path: Its file.
        step: Lines up to this step are kept; later lines, and a line that is not whole, are removed.
        staging: See `TrainingRecords`.
    """

    def __init__(self, path: str, step: int, staging: str | None) -> None:
        self._path = path
        self._step = step
        self._staging = staging
        self._names: list[str] = []
        self._waiting: list[bytes] = []
        self._file: IO[bytes] | None = None

    def _cut(self) -> IO[bytes]:
        """A new file with the lines that are kept. An earlier process may still append to the old file, not to this."""
        kept: list[bytes] = []
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as before:
            for line in before:
                if not line.endswith(b"\n") or (kept and not _is_up_to(line, self._step)):
                    break
                kept.append(line)
        if len(kept) == 1:
            kept.clear()
        if kept:
            self._names = next(csv.reader([kept[0].decode()]))
        temporary = temporary_name(self._path, self._staging)
        file = open(temporary, "ab", buffering=0)  # noqa: SIM115 - closed by `close`
        try:
            file.truncate(0)  # what a run left that was killed here
            append_whole(file, b"".join(kept))
            os.fsync(file.fileno())
            os.replace(temporary, self._path)
            fsync_folder(os.path.dirname(self._path))
        except BaseException:
            file.close()
            raise
        return file

    def add(self, row: Mapping[str, float]) -> None:
        if not self._names:
            self._names = list(row)
            self._waiting.append(_as_csv([self._names]))
        self._waiting.append(_as_csv([[row.get(name, "") for name in self._names]]))

    def flush(self) -> None:
        """Write the lines that wait.

        Raises:
            OSError: The disk refuses.
        """
        append_whole(self._opened(), b"".join(self._waiting))
        self._waiting.clear()

    def sync(self) -> None:
        """Write all lines, and sync them to the disk.

        Raises:
            OSError: The disk refuses.
        """
        self.flush()
        os.fsync(self._opened().fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            self._file = self._cut()
        return self._file


def _is_up_to(line: bytes, step: int) -> bool:
    try:
        return int(line.split(b",")[_POSITION.index("step")]) <= step
    except (ValueError, IndexError):
        return False


def _as_csv(rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _numbers(logs: Any) -> dict[str, float]:
    """The logs of a framework as numbers. Values that are no numbers are left out."""
    numbers: dict[str, float] = {}
    for name, value in dict(logs or {}).items():
        with contextlib.suppress(TypeError, ValueError):
            numbers[name] = float(value)
    return numbers
