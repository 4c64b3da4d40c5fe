"""Jobs of training with workers that have no cluster between them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from penstock.commands.fit import fit_files
from penstock.commands.fit_summary import FitSummary
from penstock.commands.fit_task import make_fit_task
from penstock.options.fit_records import make_fit
from penstock.telemetry.progress import Progress
from tests.support.plain_machines import PlainMachines


class Noted(Progress):
    """Keeps the lines that a person would see, and calls back with each."""

    def __init__(self, hear: Callable[[str], object] = lambda line: None) -> None:
        self.lines: list[str] = []
        self._hear = hear

    def note(self, text: str) -> None:
        self.lines.append(text)
        self._hear(text)


def fit_together(
    model: str | Path, data: Path, output: Path, machines: PlainMachines | None, noted: Noted, **options: object
) -> FitSummary:
    """Train on the machines, with a worker on each as `options` say, or without machines in one process."""
    given: dict[str, object] = {"runtime": "jax", "devices": "cpu", "threads": 1, **options}
    if machines is not None:
        given = {"engine": "ray", **given}
    settings, asked = make_fit(given)
    task = make_fit_task(str(model), str(data), str(output), settings, asked)
    return fit_files(task, noted, time.perf_counter(), lambda cluster, show: machines or PlainMachines())
