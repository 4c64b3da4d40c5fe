"""Shows training on files while it runs, and sums up how its time was spent."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

from penstock.core.bottleneck import COMPUTING, LOADING, WAITING, WRITING, Bound
from penstock.core.figures import counted, duration
from penstock.telemetry.progress import Progress
from penstock.telemetry.trace import TraceWriter
from penstock.training.fit_job import EpochReport, Note, Report, StartReport, StepReport, Times
from penstock.training.stages import Stage

_BAR = 20
_WAITS_FROM = 0.05
_JUDGED_FROM_S = 3.0
"""A shorter run has no bottleneck: it would be a matter of chance."""
_AROUND = (Stage.START, Stage.COMPILE, Stage.SAVE)
"""Stages that take as long for a few rows as for many: the line `time:` has them, the bottleneck leaves them out."""


class TrainingDisplay:
    """Shows training as Keras does, with a bar for the epoch and a line at its end, and writes the trace."""

    def __init__(self, progress: Progress, epochs: int, trace: TraceWriter | None = None) -> None:
        self._progress = progress
        self._epochs = epochs
        self._trace = trace
        self._before: Counter[str] = Counter()
        self._now: Mapping[str, float] = {}
        self._began_at = 0
        self._epoch_began = self.began = time.monotonic()
        """When, in this run, the model was last put on its devices."""
        self.start = StartReport(0, 0, 0, ())
        self.epoch_s: list[float] = []
        self.has_begun = False

    def hear(self, report: Report) -> None:
        """Show a report of the process that trains."""
        if isinstance(report, Note):
            self.note(report.text)
        elif isinstance(report, StartReport):
            self.has_begun = True
            self._before.update(self._now)
            self._now = {}
            self.start = report
            self._began_at = report.step
            self._epoch_began = self.began = time.monotonic()
            done = f", {report.step:,} made before" if report.step else ""
            rows = f"{counted(report.rows, 'row')}, {counted(report.batches, 'step')} an epoch{done}"
            self.note(f"training on {', '.join(report.devices)}: {rows}")
        elif isinstance(report, StepReport):
            self._step(report)
        elif isinstance(report, EpochReport):
            self._end_epoch(report)

    def take_times(self, times: Times) -> None:
        """Take how long the process that trains was at each stage."""
        self._now = times.seconds
        if self._trace is not None:
            self._trace.take(f"trainer 0 on {', '.join(self.start.devices)}", times.marks)

    @property
    def where(self) -> dict[str, float]:
        """The seconds of every stage of this run, in all processes that trained one after the other."""
        spent = self._before + Counter(self._now)
        return {str(stage): round(spent[stage], 3) for stage in Stage if spent[stage]}

    @property
    def waited(self) -> float:
        """The share of the time of training in which the model waited for rows."""
        return self._share(Stage.WAIT)

    @property
    def _trained_s(self) -> float:
        return sum(seconds for stage, seconds in self.where.items() if stage not in _AROUND)

    def _share(self, stage: Stage) -> float:
        return self.where.get(stage, 0.0) / max(1e-9, self._trained_s)

    def bottleneck(self) -> str:
        """What limited this run, in words; empty if the run was short."""
        if self._trained_s < _JUDGED_FROM_S:
            return ""
        kept = self._share(Stage.CHECKPOINT)
        waits = f"once it trained, the model waited for rows {self.waited:.0%} of the time"
        if self.waited >= WAITING:
            advice = f"{waits}; --cache or more --loaders may help"
            return str(Bound(0.0, LOADING, advice))
        if kept >= WAITING:
            advice = f"once it trained, checkpoints took {kept:.0%} of the time; a larger --checkpoint-every helps"
            return str(Bound(0.0, WRITING, advice))
        return str(Bound(0.0, COMPUTING, waits))

    def note(self, text: str) -> None:
        self._progress.note(text)

    def close(self) -> None:
        """End the display."""
        self._progress.end()

    def _step(self, report: StepReport) -> None:
        self.take_times(report.times)
        self._progress.state(self._line(report))

    def _line(self, report: StepReport) -> str:
        total = max(1, self.start.batches)
        done = min(_BAR, _BAR * report.batch // total)
        bar = "━" * done + "─" * (_BAR - done)
        seconds = max(1e-9, time.monotonic() - self._epoch_began)
        steps = max(0, report.step - self._began_at)
        left = (total - report.batch) * seconds / max(1, steps)
        logs = " - ".join(f"{name}: {value:.4f}" for name, value in report.logs.items())
        rate = f"{steps * self.start.rows / total / seconds:,.0f} rows/s"
        waits = f", waits for rows {self.waited:.0%} of the time" if self.waited >= _WAITS_FROM else ""
        place = f"epoch {report.epoch + 1}/{self._epochs} {report.batch}/{self.start.batches} {bar}"
        return f"{place} {duration(left)} left, {rate}{waits} - {logs}"

    def _end_epoch(self, report: EpochReport) -> None:
        seconds = time.monotonic() - self._epoch_began
        self.epoch_s.append(seconds)
        logs = " - ".join(f"{name}: {value:.4f}" for name, value in report.logs.items())
        self.note(f"epoch {report.epoch + 1}/{self._epochs}: {duration(seconds)} - {logs}")
        self._epoch_began = time.monotonic()
        self._began_at = report.step
