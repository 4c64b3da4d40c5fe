"""Run context: what every process of a run is started with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import IO, Any

from penstock.core.protocols import ShowLine, show_nothing
from penstock.core.stopping import StopFlag
from penstock.telemetry.meter import Meter


@dataclass(frozen=True)
class RunContext:
    """Log, stop flag, display and meter of a run."""

    log: IO[Any]
    stop: StopFlag
    note: ShowLine = show_nothing
    is_verbose: bool = False
    """Whether frameworks may write all they want to."""
    meter: Meter = field(default_factory=Meter)
    plan_command: str = "penstock plan MODEL INPUT"
    """The command that searches for the plan of this job."""

    def unseen(self, stop: StopFlag) -> RunContext:
        """The context of processes beside the run: nothing they do is shown or counted."""
        return replace(self, stop=stop, note=show_nothing, meter=Meter())
