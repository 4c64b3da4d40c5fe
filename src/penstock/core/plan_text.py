"""A plan for people: what was tried, what was chosen, how long it will take and what bounds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.core.figures import duration, rate

if TYPE_CHECKING:
    from penstock.core.plans import Plan, Trial

_HEADINGS = ("", "runtime", "batch", "replicas × threads", "in flight", "rows/s", "start", "memory", "agreement")


def in_words(plan: Plan, *, has_every_size: bool = False) -> str:
    """The table of what was tried and who was rejected, and the choice below it.

    Of every runtime the table has its fastest size; with `has_every_size` all that were measured, in their order.
    """
    measured = [trial for trial in plan.trials if trial.rows_per_s]
    shown = measured if has_every_size else _fastest_of_each(measured, plan)
    rows = [_HEADINGS, *(_cells(trial, plan) for trial in shown)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    rejected = [trial for trial in plan.trials if trial.rejected is not None]
    hidden = len(measured) - len(shown)
    start = min(plan.start_s, plan.seconds)
    return "\n".join(
        [
            *(_line(row, widths) for row in rows),
            *([f"  and {hidden} more measurements: --verbose shows them"] if hidden else []),
            *(f"  {trial.runtime}: {trial.rejected}" for trial in rejected),
            "",
            f"choice: {plan.choice}, {plan.choice.lanes} in flight" + (", converted" if plan.choice.converted else ""),
            f"on {', '.join(plan.devices)}",
            f"why: {plan.reason}",
            f"predicted: {plan.rows:,} rows in {duration(plan.seconds)}, {start:.1f} s of it to start, "
            f"then {rate(plan.rows_per_s)}",
            f"once it runs, {plan.advice}",
            f"the search took {plan.search_s:.0f} s of at most {plan.budget_s:.0f}"
            + ("; it was cut short" if plan.is_cut_short else ""),
        ]
    )


def _fastest_of_each(trials: Sequence[Trial], plan: Plan) -> list[Trial]:
    """The fastest size of every runtime and split, and what was chosen, the fastest first."""
    best: dict[tuple[str, int], Trial] = {}
    for trial in sorted(trials, key=lambda each: each.rows_per_s):
        best[trial.runtime, trial.replicas] = trial
    for trial in sorted(trials, key=lambda each: each.rows_per_s):
        if _is_chosen(trial, plan):
            best[trial.runtime, trial.replicas] = trial
    return sorted(best.values(), key=lambda each: -each.rows_per_s)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        cell.ljust(width) if place < 2 else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def _cells(trial: Trial, plan: Plan) -> tuple[str, ...]:
    return (
        "►" if _is_chosen(trial, plan) else "",
        trial.runtime,
        f"{trial.batch_size:,}",
        f"{trial.replicas} × {trial.threads}",
        str(trial.lanes),
        rate(trial.rows_per_s).removesuffix(" rows/s"),
        f"{trial.start_s:.1f} s",
        f"{trial.memory_bytes / 2**20:,.0f} MB",
        _agreement(trial),
    )


def _agreement(trial: Trial) -> str:
    """The largest difference to the model's own framework, as a share of an output's spread."""
    if trial.difference is None:
        return "reference"
    return "exact" if trial.difference == 0.0 else f"{trial.difference:.0e}"


def _is_chosen(trial: Trial, plan: Plan) -> bool:
    return trial.setting == plan.choice.setting
