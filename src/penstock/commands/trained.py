"""What training on files did, for people and for programs; and how it is shown while it runs."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.core.bottleneck import COMPUTING, LOADING, WAITING, WRITING, Bound
from penstock.core.figures import counted, duration
from penstock.telemetry.progress import Bars, Progress
from penstock.telemetry.trace import TraceWriter
from penstock.training.fit_job import Begun, EpochEnded, Note, Report, Stepped, Times
from penstock.training.stages import Stage

_BAR = 20
_LINE_EVERY_S = 5.0
_WAITS_FROM, _SHOWN_FROM = 0.05, 0.005
_JUDGED_FROM_S = 3.0
"""The bottleneck of a shorter run is chance."""


@dataclass(frozen=True)
class Trained:
    """What training did.

    `rows` are those of an epoch, without the `failed` ones, of which `example` is the first. `metrics` are those of
    the last epoch, and `history` those of every one. `steps_before` were made before this run began, `epoch_s` are the
    seconds that each of its epochs took, and `waited` is the share of its time that the model waited for rows.
    `where` has the seconds of every stage of this run, `bottleneck` says what limited it, and `trace` is the file of
    the trace.
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


class Shown:
    """Shows training as people know it from Keras: a bar for the epoch, and a line at its end. Writes its trace."""

    def __init__(self, progress: Progress, epochs: int, trace: TraceWriter | None = None) -> None:
        self._progress = progress
        self._epochs = epochs
        self._trace = trace
        self._before: Counter[str] = Counter()
        self._now: Mapping[str, float] = {}
        self._has_bar = isinstance(progress, Bars) and sys.stderr.isatty()
        self._is_open = False
        self._epoch_began = self._told = time.monotonic()
        self._began_at = 0
        self.began = self._told
        """When the model was on its devices, this time."""
        self.begun = Begun(0, 0, 0, ())
        self.epoch_s: list[float] = []
        self.has_begun = False

    def hear(self, report: Report) -> None:
        """Show what the process that trains reports."""
        if isinstance(report, Note):
            self.note(report.text)
        elif isinstance(report, Begun):
            self.has_begun = True
            self._before.update(self._now)
            self._now = {}
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

    def take_times(self, times: Times) -> None:
        """Take how long the process that trains was at each stage."""
        self._now = times.seconds
        if self._trace is not None:
            self._trace.take(f"trainer 0 on {', '.join(self.begun.devices)}", times.marks)

    @property
    def where(self) -> dict[str, float]:
        """The seconds of every stage of this run, in all processes that trained one after the other."""
        spent = self._before + Counter(self._now)
        return {str(stage): round(spent[stage], 3) for stage in Stage if spent[stage]}

    @property
    def waited(self) -> float:
        """The share of its time that the model waited for rows."""
        return self._share(Stage.WAIT)

    def _share(self, *stages: Stage) -> float:
        where = self.where
        spent = sum(seconds for stage, seconds in where.items() if stage not in (Stage.START, Stage.SAVE))
        return sum(where.get(stage, 0.0) for stage in stages) / max(1e-9, spent)

    def bottleneck(self) -> str:
        """What limited this run, in words; empty where it was short."""
        if sum(self.where.values()) - self.where.get(Stage.START, 0.0) < _JUDGED_FROM_S:
            return ""
        kept = self._share(Stage.CHECKPOINT)
        if self.waited >= WAITING:
            advice = f"the model waits for rows {self.waited:.0%} of the time; --cache or more --loaders may help"
            return str(Bound(0.0, LOADING, advice))
        if kept >= WAITING:
            advice = f"checkpoints take {kept:.0%} of the time; a larger --checkpoint-every helps"
            return str(Bound(0.0, WRITING, advice))
        return str(Bound(0.0, COMPUTING, f"the model waits for rows {self.waited:.0%} of the time"))

    def note(self, text: str) -> None:
        self._clear()
        self._progress.note(text)

    def _step(self, report: Stepped) -> None:
        self.take_times(report.times)
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
        waits = f", waits for rows {self.waited:.0%} of the time" if self.waited >= _WAITS_FROM else ""
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
