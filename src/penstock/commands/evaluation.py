"""What an evaluation found, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.figures import counted

_MOST_SHOWN_CLASSES = 30


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found.

    `rows` were evaluated, and `failed` were not: they have no prediction or no label; `example` is the first of them.
    `metrics` are by name, with `loss` first where there is one. `per_class` and `confusion` are None unless they were
    asked for; of a model with several outputs they are by output. `output` is the folder of the predictions, if there
    is one.
    """

    rows: int
    failed: int
    metrics: dict[str, Any]
    per_class: dict[str, Any] | None = None
    confusion: dict[str, Any] | None = None
    seconds: float = 0.0
    output: str | None = None
    example: str | None = None
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The evaluation as `--json` prints it: without what was not asked for."""
        found = {"rows": self.rows, "failed": self.failed, "metrics": self.metrics, "seconds": self.seconds}
        wanted: dict[str, Any] = {"per_class": self.per_class, "confusion": self.confusion, "output": self.output}
        wanted |= {"first_failure": self.example, "notes": list(self.notes) or None}
        return found | {name: value for name, value in wanted.items() if value is not None}

    def __str__(self) -> str:
        lines = [f"{name}: {_shown(value)}" for name, value in self.metrics.items()]
        for name, rows in (self.per_class or {}).items():
            lines += _per_class_lines(name, rows)
        for name, table in (self.confusion or {}).items():
            lines += _confusion_lines(name, table)
        lines.append(f"{counted(self.rows, 'row')} in {self.seconds:.1f} s")
        if self.failed:
            lines.append(f"{counted(self.failed, 'row')} failed and left out; the first one is {self.example}")
        return "\n".join([*lines, *self.notes])


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else ", ".join(map(_shown, value))


def _per_class_lines(output: str, classes: Mapping[str, Mapping[str, float]]) -> list[str]:
    width = max(len(name) for name in classes)
    lines = [f"{output}: precision, recall, F1 and rows of every class"]
    for name, each in classes.items():
        figures = "  ".join(f"{each[figure]:.4f}" for figure in ("precision", "recall", "f1"))
        lines.append(f"  {name:<{width}}  {figures}  {each['rows']:,}")
    return lines


def _confusion_lines(output: str, table: Mapping[str, Any]) -> list[str]:
    names, matrix = table["classes"], table["matrix"]
    if len(names) > _MOST_SHOWN_CLASSES:
        return [f"{output}: the confusion matrix of {len(names):,} classes is in --json"]
    width = max(len(name) for name in names)
    cell = max(len(str(count)) for row in matrix for count in row)
    lines = [f"{output}: confusion matrix, a line for each true class, a column for each predicted one"]
    return lines + [
        f"  {name:<{width}}  " + " ".join(f"{count:>{cell}}" for count in row)
        for name, row in zip(names, matrix, strict=True)
    ]
