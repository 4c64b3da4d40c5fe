"""The result of training on files, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.core.figures import counted

_SHOWN_FROM = 0.005


@dataclass(frozen=True)
class FitSummary:
    """The result of training.

    `rows` is the number of rows of an epoch without the `failed` ones, of which `example` is the first. `metrics` are
    those of the last epoch, and `history` has those of every epoch. `steps_before` is the number of steps before this
    run, `epoch_s` has the seconds of each of its epochs, and `waited` is the share of its time in which the model
    waited for rows. `where` has the seconds of every stage of this run, `bottleneck` says what limited it, and `trace`
    is the file of the trace. `inputs` are the columns that fed every input.
    """

    output: str
    model: str
    epochs: int
    steps: int
    rows: int
    failed: int
    metrics: dict[str, float]
    history: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0
    rows_per_s: float = 0.0
    waited: float = 0.0
    steps_before: int = 0
    epoch_s: list[float] = field(default_factory=list)
    devices: tuple[str, ...] = ()
    example: str | None = None
    where: dict[str, float] = field(default_factory=dict)
    bottleneck: str = ""
    trace: str | None = None
    inputs: dict[str, list[str]] = field(default_factory=dict)
    is_old: bool = False
    """Whether training was over before this call."""

    def as_json(self) -> dict[str, Any]:
        found = asdict(self)
        del found["is_old"]
        return found

    def __str__(self) -> str:
        lines = [f"{self.model}: {', '.join(_shown(self.metrics))}" if self.metrics else self.model]
        trained = (
            f"{counted(self.epochs, 'epoch')} of {counted(self.rows, 'row')}, {counted(self.steps, 'step')} in all"
        )
        if self.is_old:
            return "\n".join([*lines, trained, "the job was finished already; nothing was redone"])
        lines.append(f"{trained}; {self.rows_per_s:,.0f} rows/s on {', '.join(self.devices)}, {self.seconds:.1f} s")
        if self.steps_before:
            lines.append(f"{self.steps_before:,} of the steps were made before this run")
        spent = sum(self.where.values())
        shares = [f"{name} {value / spent:.0%}" for name, value in self.where.items() if value >= _SHOWN_FROM * spent]
        if shares:
            lines.append("time: " + ", ".join(shares))
        if self.bottleneck:
            lines.append(self.bottleneck)
        if self.trace is not None:
            lines.append(f"trace: {self.trace}; https://ui.perfetto.dev opens it")
        if self.failed:
            lines.append(f"{counted(self.failed, 'row')} bad and left out; the first one is {self.example}")
        return "\n".join(lines)


def _shown(logs: Mapping[str, float]) -> list[str]:
    return [f"{name} {value:.4g}" for name, value in logs.items()]
