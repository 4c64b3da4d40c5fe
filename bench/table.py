"""The lines of the result: what was measured on both sides, the ratio and the bar it is held against."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.shell import BenchError

Pair = tuple[float, float]

HEADINGS = ("workload", "what", "penstock", "peer", "ratio", "bar", "")


@dataclass(frozen=True)
class Bar:
    """The ratio that the issue asks for; with a unit, what Penstock's own figure is held against."""

    limit: float
    is_at_most: bool = False
    unit: str | None = None

    def is_met(self, figure: float) -> bool:
        return figure <= self.limit if self.is_at_most else figure >= self.limit

    def __str__(self) -> str:
        limit = f"{self.limit:.2f}" if self.unit is None else f"{self.limit:g} {self.unit}"
        return f"{'≤' if self.is_at_most else '≥'} {limit}"


@dataclass(frozen=True)
class Line:
    """One comparison; `ratio` reads as its bar does: how many times faster, or how much of the peer's."""

    workload: str
    what: str
    unit: str
    penstock: float
    peer: float
    ratio: float
    bar: Bar | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        if self.bar is None:
            return ""
        return "met" if self.bar.is_met(self.ratio if self.bar.unit is None else self.penstock) else "missed"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "bar": str(self.bar) if self.bar else None, "verdict": self.verdict}


class PartlyFailed(BenchError):
    """A part of a workload failed; `lines` are those of the others."""

    def __init__(self, problem: str, lines: Sequence[Line]) -> None:
        super().__init__(problem)
        self.lines = list(lines)


def faster(workload: str, what: str, seconds: Pair, bar: Bar | None, **details: Any) -> Line:
    """Return a line about two durations, (penstock, peer): how many times faster Penstock is."""
    penstock, peer = seconds
    return Line(workload, what, "s", penstock, peer, peer / penstock, bar, details)


def amount(workload: str, what: str, unit: str, amounts: Pair, bar: Bar | None, **details: Any) -> Line:
    """Return a line about two amounts, (first, second): how much of the second the first is."""
    first, second = amounts
    return Line(workload, what, unit, first, second, first / second, bar, details)


def rates(workload: str, what: str, per_s: Pair, bar: Bar | None, **details: Any) -> Line:
    """Return a line about two rates, (penstock, peer): how many times faster Penstock is."""
    return amount(workload, what, "/s", per_s, bar, **details)


def render(lines: Sequence[Line]) -> str:
    """Return the table as text."""
    rows = [HEADINGS, *(_cells(line) for line in lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    return "\n".join(_render_row(row, widths) for row in rows)


def _render_row(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = (
        cell.ljust(width) if column < 2 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join(cells).rstrip()


def _cells(line: Line) -> tuple[str, ...]:
    return (
        line.workload,
        line.what,
        _quantity(line.penstock, line.unit),
        _quantity(line.peer, line.unit),
        f"{line.ratio:.2f}",
        str(line.bar) if line.bar else "–",
        line.verdict,
    )


def _quantity(value: float, unit: str) -> str:
    digits = 0 if value >= 1000 else 1 if value >= 100 else 2
    return f"{value:,.{digits}f} {unit}"


def show(lines: Sequence[Line], rates: dict[str, Any], file: Path | None) -> None:
    """Print the table of a workload that runs by itself, and write every figure to a file where one is named."""
    print(render(lines))
    if file is not None:
        file.write_text(json.dumps({"lines": [line.as_json() for line in lines], "rates": rates}))
