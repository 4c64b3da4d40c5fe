"""Run context: the log, stop flag, display and meter that every process of a run is started with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import IO, Any

from penstock.core.stopping import StopFlag
from penstock.engines.memory_watch import Tell, quietly
from penstock.telemetry.meter import Meter


@dataclass(frozen=True)
class RunContext:
    """Surroundings of a run.

    Args:
        log: The file that processes write to.
        stop: Ends the run early.
        note: Shows people a line.
        is_verbose: Let the frameworks write all they want to.
        meter: Counts what the run does.
    """

    log: IO[Any]
    stop: StopFlag
    note: Tell = quietly
    is_verbose: bool = False
    meter: Meter = field(default_factory=Meter)

    def unseen(self, stop: StopFlag) -> RunContext:
        """The context of processes beside the run: nothing they do is shown or counted."""
        return replace(self, stop=stop, note=quietly, meter=Meter())
