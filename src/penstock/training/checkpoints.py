"""Checkpoints of training. A checkpoint is a file that is either whole or not there; the newest few are kept.

A checkpoint is written under a temporary name, synced, renamed, and the folder is synced; then the oldest is removed.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from penstock.core.records import Array, RowFailure
from penstock.core.training import Checkpoint, Position, Progress, has_nan
from penstock.crash_points import crash_point
from penstock.errors import ModelError, OutputError
from penstock.storage.disk import fsync_folder, make_folders, temporary_name
from penstock.storage.tensor_file import DamagedTensors, read_tensors, write_tensors
from penstock.storage.turns import remove_in_turn

_NAME = re.compile(r"step-(\d{10})\.safetensors")
_TEMPORARY = ".tmp"
_VERSION = 1
_STATE, _CALLBACKS = "state/", "callbacks/"
_ARRAY, _SCALAR, _TUPLE, _PAIRS = "@array", "@scalar", "@tuple", "@pairs"
LEAST_S, MOST_S, SHARE = 20.0, 300.0, 0.02
"""Without a setting, the time between checkpoints is at least LEAST_S and at most MOST_S, and writing them takes about
SHARE of the time."""
MOST_FAILED = 3
"""After so many checkpoints in a row that could not be written, training ends: hours of work would not be safe."""


@dataclass(frozen=True)
class FoundCheckpoint:
    """The newest whole checkpoint of a folder.

    Args:
        path: Its file.
        checkpoint: Its content.
        damaged: Newer checkpoints that cannot be read: the file of each, and the reason.
    """

    path: str
    checkpoint: Checkpoint
    damaged: tuple[str, ...] = ()


class CheckpointFolder:
    """The checkpoints of one job. Only one process writes: the one whose turn it is.

    Args:
        path: The folder; it is made when the first checkpoint is written.
        keep: How many of the newest are kept.
        staging: The folder of files that are not whole yet (`storage.turns`); None for `path` itself.
    """

    def __init__(self, path: str, keep: int = 2, staging: str | None = None) -> None:
        self.path = path
        self._keep = max(1, keep)
        self._staging = staging

    def write(self, checkpoint: Checkpoint) -> str:
        """Write a checkpoint, and remove the oldest ones.

        Returns:
            Its file.

        Raises:
            OSError: The disk refuses. Earlier checkpoints stay.
        """
        make_folders(self.path)
        path = os.path.join(self.path, f"step-{checkpoint.progress.position.step:010}.safetensors")
        temporary = temporary_name(path, self._staging)
        try:
            with open(temporary, "wb") as file:
                crash_point("checkpoint_begun")
                write_tensors(file, *_as_arrays(checkpoint))
                file.flush()
                crash_point("checkpoint_written")
                os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                os.remove(temporary)
            raise
        crash_point("checkpoint_synced")
        os.replace(temporary, path)
        crash_point("checkpoint_renamed")
        fsync_folder(self.path)
        crash_point("checkpoint_settled")
        self._remove_oldest(path)
        return path

    def newest(self) -> FoundCheckpoint | None:
        """The newest checkpoint that can be read; None where there is none at all.

        Raises:
            OutputError: There are checkpoints, and all of them are damaged.
        """
        damaged: list[str] = []
        for name in self._names():
            path = os.path.join(self.path, name)
            try:
                return FoundCheckpoint(path, _from_arrays(*read_tensors(path)), tuple(damaged))
            except (DamagedTensors, OSError, KeyError, TypeError, ValueError) as error:
                damaged.append(f"{path}: {error}")
        if damaged:
            raise OutputError(
                "no checkpoint can be read",
                received="; ".join(damaged),
                hint="begin again with another --output, or with --overwrite",
            )
        return None

    def named(self, name: str) -> FoundCheckpoint:
        """The checkpoint of this name, which another process found to be whole.

        Raises:
            OutputError: It cannot be read here.
        """
        path = os.path.join(self.path, name)
        try:
            return FoundCheckpoint(path, _from_arrays(*read_tensors(path)))
        except (DamagedTensors, OSError, KeyError, TypeError, ValueError) as error:
            raise OutputError(
                "a worker cannot read the checkpoint that another has found",
                received=f"{path}: {error}",
                hint="--output is a folder that all workers share",
            ) from error

    def _names(self) -> list[str]:
        """The names of whole files, the newest first."""
        try:
            names = os.listdir(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted((name for name in names if _NAME.fullmatch(name)), reverse=True)

    def _remove_oldest(self, newest: str) -> None:
        """Keep the newest few. Also remove temporary files, and files of steps that a resumed run has not reached."""
        own = os.path.basename(newest)
        older = [name for name in self._names() if name < own]
        kept = {own, *older[: self._keep - 1]}
        for name in os.listdir(self.path):
            whole = name.removesuffix(_TEMPORARY)
            if _NAME.fullmatch(whole) and name not in kept:
                with contextlib.suppress(OSError):
                    remove_in_turn(os.path.join(self.path, name), self._staging)
                crash_point("checkpoint_removed")


@dataclass(frozen=True)
class CheckpointFacts:
    """What a checkpoint states about the job that writes it.

    Args:
        job: The fingerprint of the job.
        weights: The names of the weights, in their order. Layers without a name are numbered alike in every process.
    """

    job: str
    weights: tuple[str, ...]

    def check(self, start: Checkpoint) -> None:
        """Refuse a checkpoint of another job or another model. Shapes are compared later, when it is restored.

        Raises:
            ModelError: The checkpoint is of another job or model.
        """
        job = start.facts.get("job", self.job)
        if job != self.job:
            raise ModelError(
                "the checkpoint is of another job",
                received=f"job {job:.12}, not {self.job:.12}",
                hint="put back the checkpoints of this job, or begin again: with another --output, or with --overwrite",
            )
        for old, new in itertools.zip_longest(start.facts.get("weights", self.weights), self.weights):
            if old != new:
                raise ModelError(
                    "the checkpoint is of another model",
                    received=f"weight {old or 'missing'}",
                    allowed=str(new or "no further weight"),
                    hint="go on with the model that training began with, or begin again with another --output",
                )


class Cadence:
    """When a checkpoint is due: after a number of steps, which are the same in every run, or after some minutes.

    Args:
        steps: A checkpoint is due every so many steps; None for no such rule.
        minutes: One is due so many minutes after the last one; None for no such rule.
        by_cost: Whether they are as frequent as their cost allows, every 20 seconds to 5 minutes.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        steps: int | None = None,
        minutes: float | None = None,
        *,
        by_cost: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._steps = steps
        self._seconds = LEAST_S if by_cost else None if minutes is None else minutes * 60
        self._is_by_cost = by_cost
        self._clock = clock
        self._last = clock()

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is due after this step."""
        if self._steps is not None and step % self._steps == 0:
            return True
        return self._seconds is not None and self._clock() - self._last >= self._seconds

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Count the minutes from the end of this context on, even if no checkpoint could be written in it."""
        began = self._clock()
        try:
            yield
        finally:
            self._last = self._clock()
            if self._is_by_cost:
                self._seconds = min(max((self._last - began) / SHARE, LEAST_S), MOST_S)


@dataclass
class CheckpointKeeper:
    """Writes checkpoints when they are due (`loop.Keeper`).

    A full disk does not end training at once: the last good checkpoint stays, the user gets a message, and the next
    checkpoint is tried when it is due.

    Args:
        folder: Where checkpoints go.
        cadence: When they are due.
        say: Called with a message where one cannot be written.
        facts: What the job adds to each checkpoint, as JSON (`CheckpointFacts`).
        on_written: Called with the step of each checkpoint that was written.
        check: Called before each one; raises if the weights are of no use.
    """

    folder: CheckpointFolder
    cadence: Cadence
    say: Callable[[str], None]
    facts: Mapping[str, Any] = field(default_factory=dict)
    on_written: Callable[[int], None] | None = None
    check: Callable[[], None] | None = None
    written: str | None = None
    """The file of the last checkpoint that was written."""
    _failed: int = 0

    def is_due(self, position: Position) -> bool:
        return self.cadence.is_due(position.step)

    def keep(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint.

        Raises:
            OutputError: Several in a row could not be written.
        """
        if self.check is not None:
            self.check()
        with self.cadence.writing():
            self._keep(checkpoint, checkpoint.progress.position.step)

    def _keep(self, checkpoint: Checkpoint, step: int) -> None:
        if _is_spoiled(checkpoint.state):
            self.say(
                f"no checkpoint after step {step}: weights or the optimizer are NaN or infinite; {self._last_good()}"
            )
            return
        try:
            self.written = self.folder.write(replace(checkpoint, facts={**checkpoint.facts, **self.facts}))
            self._failed = 0
        except OSError as error:
            self._failed += 1
            if self._failed >= MOST_FAILED:
                raise OutputError(
                    f"{self._failed} checkpoints in a row could not be written",
                    received=str(error),
                    hint=f"{self._last_good()}; {_what_to_do(error)} and resume",
                ) from error
            self.say(f"the checkpoint after step {step} could not be written: {error}; {self._last_good()}")
            return
        if self.on_written is not None:
            self.on_written(step)

    def _last_good(self) -> str:
        names = self.folder._names()
        return f"the last good one stays ({names[0]})" if names else "there is none yet"


def _what_to_do(error: OSError) -> str:
    if isinstance(error, (FileExistsError, NotADirectoryError)):
        return "move that file away"
    return "free space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "mend that"


def _is_spoiled(state: Mapping[str, Array]) -> bool:
    """Whether weights are NaN, or the optimizer's state is NaN or infinite, so that its next step would spoil them."""
    for name, value in state.items():
        if not value.size or value.dtype.kind in "biu":
            continue
        if name.startswith("weights/") and has_nan(value):
            return True
        if name.startswith("optimizer/") and not (np.isfinite(value.min()) and np.isfinite(value.max())):
            return True
    return False


def _as_arrays(checkpoint: Checkpoint) -> tuple[dict[str, Array], dict[str, Any]]:
    arrays = {_STATE + name: value for name, value in checkpoint.state.items()}
    document = {
        "version": _VERSION,
        "progress": asdict(checkpoint.progress),
        "callbacks": _as_json(checkpoint.callbacks, arrays),
        "failures": [asdict(failure) for failure in checkpoint.failures],
        "validation_failures": [asdict(failure) for failure in checkpoint.validation_failures],
        "records": checkpoint.records,
        "facts": dict(checkpoint.facts),
    }
    return arrays, document


def _from_arrays(arrays: dict[str, Array], document: dict[str, Any]) -> Checkpoint:
    if document["version"] != _VERSION:
        raise DamagedTensors(f"another version of penstock wrote it (format {document['version']}, not {_VERSION})")
    progress = document["progress"]
    return Checkpoint(
        Progress(**{**progress, "position": Position(**progress["position"])}),
        {name.removeprefix(_STATE): value for name, value in arrays.items() if name.startswith(_STATE)},
        _from_json(document["callbacks"], arrays),
        tuple(RowFailure(**failure) for failure in document["failures"]),
        document["records"],
        document["facts"],
        tuple(RowFailure(**failure) for failure in document["validation_failures"]),
    )


def _as_json(value: Any, arrays: dict[str, Array]) -> Any:
    """A value as JSON; its arrays go to `arrays`."""
    if isinstance(value, np.ndarray | np.generic):
        name = f"{_CALLBACKS}{len(arrays)}"
        arrays[name] = np.asarray(value)
        return {_ARRAY if isinstance(value, np.ndarray) else _SCALAR: name}
    if isinstance(value, tuple):
        return {_TUPLE: [_as_json(each, arrays) for each in value]}
    if isinstance(value, list):
        return [_as_json(each, arrays) for each in value]
    if isinstance(value, dict):
        return {_PAIRS: [[_as_json(key, arrays), _as_json(each, arrays)] for key, each in value.items()]}
    return value


def _from_json(value: Any, arrays: Mapping[str, Array]) -> Any:
    if isinstance(value, list):
        return [_from_json(each, arrays) for each in value]
    if not isinstance(value, dict):
        return value
    [(kind, inside)] = value.items()
    if kind == _ARRAY:
        return arrays[inside]
    if kind == _SCALAR:
        return arrays[inside][()]
    if kind == _TUPLE:
        return tuple(_from_json(each, arrays) for each in inside)
    return {_from_json(key, arrays): _from_json(each, arrays) for key, each in inside}
