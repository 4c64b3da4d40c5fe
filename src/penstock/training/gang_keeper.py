"""Stops and checkpoints in a gang: all of its processes make them after the same step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.core.training import Checkpoint, Exchange, Position
from penstock.training.checkpoints import CheckpointKeeper

_STOP, _DUE = "stop", "due"


@dataclass
class GangKeeper:
    """Lets all processes wait while the first one writes a checkpoint (`loop.Keeper`), so that none seems to hang.

    Args:
        exchange: The line to the other processes.
        keeper: Writes checkpoints; only the first process has one.
        is_asked_to_stop: Whether this process was asked to stop.
        step: Returns how many steps were made.
    """

    exchange: Exchange
    keeper: CheckpointKeeper | None
    is_asked_to_stop: Callable[[], bool]
    step: Callable[[], int]
    _is_due: bool = False

    def is_stop_wanted(self) -> bool:
        """Whether any process was asked to stop. All processes must call this after every step."""
        is_due = self.keeper is not None and self.keeper.cadence.is_due(self.step())
        said = self.exchange.gather("stop", _STOP if self.is_asked_to_stop() else _DUE if is_due else "")
        self._is_due = bool(said)
        return _STOP in said

    def is_due(self, position: Position) -> bool:
        return self._is_due

    def keep(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, or wait until it is written."""
        if self.keeper is not None:
            self.keeper.keep(checkpoint)
        self.exchange.gather("kept")
