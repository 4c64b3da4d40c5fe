"""What every process of a run is started with: where it writes, what ends it early, and who is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, Any

from penstock.core.stopping import StopFlag
from penstock.engines.memory_watch import Tell, quietly


@dataclass(frozen=True)
class RunContext:
    """Where processes write, what ends them early, and who is told what people should know."""

    log: IO[Any]
    stop: StopFlag
    note: Tell = quietly
    is_verbose: bool = False
