"""What limited a run of training, in words."""

from __future__ import annotations

import pytest

from penstock.commands.fit_display import TrainingDisplay
from penstock.telemetry.progress import Silent
from penstock.training.fit_job import Times


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ({"start": 9.0, "compile": 5.0, "step": 1.0, "save the model": 4.0}, ""),
        (
            {"start": 90.0, "compile": 5.0, "wait for rows": 1.0, "step": 9.0},
            "computing-bound: once it trained, the model waited for rows 10% of the time",
        ),
        (
            {"start": 90.0, "wait for rows": 5.0, "step": 5.0},
            "loading-bound: once it trained, the model waited for rows 50% of the time; "
            "--cache or more --loaders may help",
        ),
        (
            {"compile": 90.0, "checkpoint": 4.0, "step": 6.0},
            "writing-bound: once it trained, checkpoints took 40% of the time; a larger --checkpoint-every helps",
        ),
    ],
)
def test_start_compilation_and_saving_do_not_count_for_the_bottleneck(seconds: dict[str, float], said: str) -> None:
    display = TrainingDisplay(Silent(), epochs=1)
    display.take_times(Times(seconds))
    assert display.bottleneck() == said
