"""When the processes of a gang stop and keep: after the same step, all together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.core.training import Checkpoint, Exchange, Position
from penstock.training.checkpoints import CheckpointKeeper

_STOP, _DUE = "stop", "due"


@dataclass
class GangKeeper:
    """Has all processes wait while the first one writes a checkpoint (`loop.Keeper`): none of them seems to hang then.

    Args:
        exchange: The line to the others.
        keeper: What writes checkpoints, in the first process.
        is_asked_to_stop: Whether this process was asked to.
        step: How many steps were made.
    """

    exchange: Exchange
    keeper: CheckpointKeeper | None
    is_asked_to_stop: Callable[[], bool]
    step: Callable[[], int]
    _is_due: bool = False

    def is_stop_wanted(self) -> bool:
        """Whether any process was asked to stop. Asked by all of them after every step."""
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
