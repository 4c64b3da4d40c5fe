"""The result of an evaluation, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.figures import counted

_MOST_SHOWN_CLASSES = 30
_LOSS = "_loss"
_FIGURES = {"precision": "precision", "recall": "recall", "f1": "F1"}
"""The figures of a class, to their titles in the table."""


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    `rows` is the number of rows that were evaluated. `failed` is the number of those that were not, because they have
    no prediction or no label; `example` is the first of them. `metrics` are by name; if there is a `loss`, it is first.
    `per_class` and `confusion` are None unless they were requested; for a model with several outputs they are by
    output. `output` is the folder of the predictions, if there is one.
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
        """The evaluation as `--json` prints it, without results that were not requested."""
        found = {"rows": self.rows, "failed": self.failed, "metrics": self.metrics, "seconds": self.seconds}
        wanted: dict[str, Any] = {"per_class": self.per_class, "confusion": self.confusion, "output": self.output}
        wanted |= {"first_failure": self.example, "notes": list(self.notes) or None}
        return found | {name: value for name, value in wanted.items() if value is not None}

    def __str__(self) -> str:
        lines = [*self.notes, *(f"{name}: {_shown(self.metrics[name])}" for name in _in_order(self.metrics))]
        for name, rows in (self.per_class or {}).items():
            lines += _per_class_lines(name, rows)
        for name, table in (self.confusion or {}).items():
            lines += _confusion_lines(name, table)
        lines.append(f"{counted(self.rows, 'row')} in {self.seconds:.1f} s")
        if self.failed:
            lines.append(f"{counted(self.failed, 'row')} failed and left out; the first one is {self.example}")
        return "\n".join(lines)


def _in_order(metrics: Iterable[str]) -> list[str]:
    """The names of metrics in order: the loss first, then the loss and metrics of each output together.

    >>> _in_order(["loss", "a_accuracy", "b_accuracy", "a_loss", "b_loss"])
    ['loss', 'a_loss', 'a_accuracy', 'b_loss', 'b_accuracy']
    """
    names = list(metrics)
    losses = [name for name in names if name.endswith(_LOSS)]
    # The longest matching prefix is the output of a metric: the name of an output may begin with that of another.
    outputs = sorted((name.removesuffix(_LOSS) for name in losses), key=len, reverse=True)

    def place(name: str) -> tuple[int, bool, int]:
        output = next((each for each in outputs if name.startswith(f"{each}_")), None)
        rank = 0 if name == "loss" else len(losses) + 1 if output is None else 1 + losses.index(output + _LOSS)
        return rank, not name.endswith(_LOSS), names.index(name)

    return sorted(names, key=place)


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else ", ".join(map(_shown, value))


def _per_class_lines(output: str, classes: Mapping[str, Mapping[str, float]]) -> list[str]:
    header = ("class", *_FIGURES.values(), "rows")
    table = [(name, *(f"{each[key]:.4f}" for key in _FIGURES), f"{each['rows']:,}") for name, each in classes.items()]
    widths = [max(map(len, column)) for column in zip(header, *table, strict=True)]
    lines = [f"{output}: every class"]
    for name, *figures in (header, *table):
        cells = [figure.rjust(width) for figure, width in zip(figures, widths[1:], strict=True)]
        lines.append("  ".join(["", name.ljust(widths[0]), *cells]))
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
