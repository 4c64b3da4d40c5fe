"""A plan for people: what was tried, what was chosen, how long it will take and what bounds it."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.plans import Plan, Trial
from penstock.telemetry.progress import time_left

_HEADINGS = ("runtime", "batch", "replicas × threads", "lanes", "rows/s", "memory", "agreement", "")


def in_words(plan: Plan) -> str:
    """The table of what was tried, and the choice below it."""
    rows = [_HEADINGS, *(_cells(trial, plan) for trial in _shown(plan.trials))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS) - 1)]
    table = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:-1], widths[1:], strict=True)), row[-1]]
        )
        for row in rows
    ]
    return "\n".join(
        [
            *(line.rstrip() for line in table),
            "",
            f"choice: {plan.choice}" + (" (converted)" if plan.choice.converted else ""),
            f"on {', '.join(plan.devices)}",
            f"why: {plan.reason}",
            f"predicted: {plan.rows:,} rows in {_told(plan.seconds)}, {plan.rows_per_s:,.0f} rows/s once it runs",
            plan.advice,
            f"the search took {plan.search_s:.1f} s",
        ]
    )


def _told(seconds: float) -> str:
    return time_left(round(seconds), 1.0)


def _shown(trials: Sequence[Trial]) -> list[Trial]:
    """In the order of the search; those that could not run below the others."""
    return sorted(trials, key=lambda trial: not trial.rows_per_s)


def _cells(trial: Trial, plan: Plan) -> tuple[str, ...]:
    if not trial.rows_per_s:
        return (trial.runtime, *["–"] * 6, trial.rejected or "")
    return (
        trial.runtime,
        f"{trial.batch_size:,}",
        f"{trial.replicas} × {trial.threads}",
        str(trial.lanes),
        f"{trial.rows_per_s:,.0f}" if trial.rows_per_s >= 100 else f"{trial.rows_per_s:.1f}",
        f"{trial.memory_bytes / 2**20:,.0f} MB",
        _agreement(trial),
        "◄ chosen" if _is_chosen(trial, plan) else trial.rejected or "",
    )


def _agreement(trial: Trial) -> str:
    """The largest difference to the model's own framework, as a share of an output's spread."""
    if trial.difference is None:
        return "own"
    return "exact" if trial.difference == 0.0 else f"{trial.difference:.0e}"


def _is_chosen(trial: Trial, plan: Plan) -> bool:
    choice = plan.choice
    return (trial.runtime, trial.batch_size, trial.threads, trial.replicas, trial.lanes) == (
        choice.runtime, choice.batch_size, choice.threads, choice.replicas, choice.lanes,
    )  # fmt: skip
