"""What training on files did, for people and for programs; and how it is shown while it runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.core.figures import counted, duration
from penstock.telemetry.progress import Bars, Progress
from penstock.training.fit_job import Begun, EpochEnded, Note, Report, Stepped

_BAR = 20
_LINE_EVERY_S = 5.0
_WAITS_FROM = 0.05


@dataclass(frozen=True)
class Trained:
    """What training did.

    `rows` are those of an epoch, without the `failed` ones, of which `example` is the first. `metrics` are those of
    the last epoch, and `history` those of every one. `steps_before` were made before this run began, `epoch_s` are the
    seconds that each of its epochs took, and `waited` is the share of its time that the model waited for rows.
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
    is_old: bool = False
    """Whether training was over before this call."""

    def as_json(self) -> dict[str, Any]:
        found = asdict(self)
        del found["is_old"]
        return found

    def __str__(self) -> str:
        lines = [f"{self.model}: {', '.join(_shown(self.metrics))}" if self.metrics else self.model]
        trained = f"{counted(self.epochs, 'epoch')}, {counted(self.steps, 'step')}, {counted(self.rows, 'row')} in each"
        if self.is_old:
            return "\n".join([*lines, trained, "the job was finished already; nothing was redone"])
        lines.append(f"{trained}; {self.rows_per_s:,.0f} rows/s on {', '.join(self.devices)}, {self.seconds:.1f} s")
        if self.steps_before:
            lines.append(f"{self.steps_before:,} of the steps were made before this run")
        if self.waited >= _WAITS_FROM:
            share = f"{self.waited:.0%}"
            lines.append(f"the model waited for rows {share} of the time: --cache, or more --loaders, may help")
        if self.failed:
            lines.append(f"{counted(self.failed, 'row')} bad and left out; the first one is {self.example}")
        return "\n".join(lines)


def _shown(logs: Mapping[str, float]) -> list[str]:
    return [f"{name} {value:.4g}" for name, value in logs.items()]


class Shown:
    """Shows training as people know it from Keras: a bar for the epoch, and a line at its end."""

    def __init__(self, progress: Progress, epochs: int) -> None:
        self._progress = progress
        self._epochs = epochs
        self._has_bar = isinstance(progress, Bars) and sys.stderr.isatty()
        self._is_open = False
        self._epoch_began = self._told = time.monotonic()
        self._began_at = 0
        self.began = self._told
        """When the model was on its devices, this time."""
        self.begun = Begun(0, 0, 0, ())
        self.waited = 0.0
        self.epoch_s: list[float] = []
        self.has_begun = False

    def hear(self, report: Report) -> None:
        """Show what the process that trains reports."""
        if isinstance(report, Note):
            self.note(report.text)
        elif isinstance(report, Begun):
            self.has_begun = True
            self.begun = report
            self._began_at = report.step
            self._epoch_began = self.began = time.monotonic()
            done = f", {report.step:,} made before" if report.step else ""
            rows = f"{counted(report.rows, 'row')}, {counted(report.batches, 'step')} an epoch{done}"
            self.note(f"training on {', '.join(report.devices)}: {rows}")
        elif isinstance(report, Stepped):
            self._step(report)
        elif isinstance(report, EpochEnded):
            self._end_epoch(report)

    def note(self, text: str) -> None:
        self._clear()
        self._progress.note(text)

    def _step(self, report: Stepped) -> None:
        self.waited = report.waited
        line = self._line(report)
        if self._has_bar:
            sys.stderr.write("\r" + line[:160].ljust(100))
            sys.stderr.flush()
            self._is_open = True
        elif time.monotonic() - self._told >= _LINE_EVERY_S:
            self._told = time.monotonic()
            self._progress.note(line)

    def _line(self, report: Stepped) -> str:
        total = max(1, self.begun.batches)
        done = min(_BAR, _BAR * report.batch // total)
        bar = "━" * done + "─" * (_BAR - done)
        seconds = max(1e-9, time.monotonic() - self._epoch_began)
        steps = max(0, report.step - self._began_at)
        left = (total - report.batch) * seconds / max(1, steps)
        logs = " - ".join(f"{name}: {value:.4f}" for name, value in report.logs.items())
        rate = f"{steps * self.begun.rows / total / seconds:,.0f} rows/s"
        waits = f", waits for rows {report.waited:.0%} of the time" if report.waited >= _WAITS_FROM else ""
        place = f"epoch {report.epoch + 1}/{self._epochs} {report.batch}/{self.begun.batches} {bar}"
        return f"{place} {duration(left)} left, {rate}{waits} - {logs}"

    def _end_epoch(self, report: EpochEnded) -> None:
        seconds = time.monotonic() - self._epoch_began
        self.epoch_s.append(seconds)
        logs = " - ".join(f"{name}: {value:.4f}" for name, value in report.logs.items())
        self.note(f"epoch {report.epoch + 1}/{self._epochs}: {duration(seconds)} - {logs}")
        self._epoch_began = self._told = time.monotonic()
        self._began_at = report.step

    def _clear(self) -> None:
        if self._is_open:
            sys.stderr.write("\r" + " " * 160 + "\r")
            self._is_open = False
