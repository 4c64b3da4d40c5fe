"""Labels of a training job: where they are, which classes there are, which rows are held back, and what they count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from penstock.core.mapping import find
from penstock.core.protocols import Source
from penstock.core.records import STRING, ModelFile
from penstock.core.shuffling import RowSet, split_by_class, split_rows
from penstock.errors import InputError, UsageError
from penstock.evaluation.targets import classes_beside
from penstock.options.fit_records import FitOptions
from penstock.training.data import count_rows
from penstock.training.fit_job import Learned
from penstock.training.roles import Classes, CodedLabels, find_column, scan_classes, with_folders

_MOST_NAMED = 10


class Opened(Protocol):
    """What labels are planned for: a task that is open."""

    @property
    def model(self) -> ModelFile: ...
    @property
    def source(self) -> Source: ...
    @property
    def validation(self) -> Source | None: ...
    @property
    def asked(self) -> FitOptions: ...


@dataclass(frozen=True)
class LabelPlan:
    """Rows to train on and to measure with, with labels that are numbers.

    `classes` are their names, where they were text; `class_weights` what rows count, where all classes count alike.
    """

    train: Learned
    validation: Learned | None
    classes: tuple[str, ...] = ()
    class_weights: Mapping[int, float] = field(default_factory=dict)


def plan_labels(task: Opened, known: tuple[str, ...] | None, note: Callable[[str], None]) -> LabelPlan:
    """Find the labels of a job.

    Args:
        task: The job.
        known: The classes that a job in the folder began with.
        note: Takes lines for the user.

    Raises:
        InputError: The column is missing, or holds no labels.
        UsageError: Options ask for what these labels are not.
    """
    asked = task.asked
    columns = [*asked.label.values(), *([asked.weight] if asked.weight is not None else [])]
    source = with_folders(task.source, columns)
    held = with_folders(task.validation, columns) if task.validation is not None else None
    for column in asked.label.values():
        find(source.schema(), column, "--label")
        find_column(source, column, "--label")
    if asked.weight is not None:
        find(source.schema(), asked.weight, "--weight")
    text = [column for column in asked.label.values() if source.schema()[column].dtype == STRING]
    if len(set(text)) > 1:
        raise UsageError(
            "labels of several outputs are text: one list of classes is kept",
            received=", ".join(text),
            hint="give all but one as whole numbers",
        )
    needs_classes = bool(text) or asked.stratify or asked.class_weights is not None
    classes = scan_classes(source, _scanned(asked, text)) if needs_classes else None
    names: tuple[str, ...] = ()
    if text and classes is not None:
        names = known or _vocabulary(task, classes, note)
        source = CodedLabels(source, text[0], names)
        held = CodedLabels(held, text[0], names) if held is not None else None
    train, validation = Learned(source), Learned(held) if held is not None else None
    if asked.validation_split is not None:
        rows, held_back = _split(source, classes, asked, note)
        train, validation = Learned(source, rows), Learned(source, held_back)
    weights = _weights(classes, names, train.rows) if asked.class_weights is not None and classes is not None else {}
    return LabelPlan(train, validation, names, weights)


def _scanned(asked: FitOptions, text: list[str]) -> str:
    if text:
        return text[0]
    if len(asked.label) > 1:
        raise UsageError(
            "classes of several outputs cannot be balanced or divided at once",
            received=", ".join(asked.label.values()),
            hint="leave out --stratify and --class-weights",
        )
    return next(iter(asked.label.values()))


def _vocabulary(task: Opened, classes: Classes, note: Callable[[str], None]) -> tuple[str, ...]:
    """The names of the classes in their order: that of a model that was trained with them, or that of the alphabet."""
    found = classes.vocabulary or ()
    beside = classes_beside(task.model.location) if task.model.kind != "builder" else ()
    is_known = bool(beside) and set(found) <= set(beside)
    names = beside if is_known else found
    shown = ", ".join(map(_shown, names[:_MOST_NAMED])) + (", …" if len(names) > _MOST_NAMED else "")
    order = ", in the order of labels.json beside the model" if is_known else ""
    note(f"{len(names):,} {'class' if len(names) == 1 else 'classes'}: {shown}{order}")
    return tuple(names)


def _shown(name: str) -> str:
    """The name of a class as it is shown: quoted where it is empty or would disturb the line."""
    return name if name.isprintable() and name.strip() == name and name else repr(name)


def _split(
    source: Source, classes: Classes | None, asked: FitOptions, note: Callable[[str], None]
) -> tuple[RowSet, RowSet]:
    assert asked.validation_split is not None
    total = len(classes.codes) if classes is not None else count_rows(source)
    if total < 2:
        raise InputError(
            "no row can be held back", received=f"{total} rows, --validation-split {asked.validation_split}"
        )
    if asked.stratify and classes is not None:
        rows, held_back = split_by_class(classes.codes, asked.validation_split, asked.seed)
    else:
        rows, held_back = split_rows(total, asked.validation_split, asked.seed)
    note(f"{held_back.count:,} of {total:,} rows are held back for validation")
    if classes is not None:
        sides = (("validation", held_back), ("training", rows))
        for name, side in sides:
            missing = classes.missing_in(side.numbers(np.arange(side.count)))
            if missing:
                more = ", …" if len(missing) > _MOST_NAMED else ""
                hint = "" if asked.stratify else "; --stratify divides every class"
                note(f"no row of {', '.join(map(_shown, missing[:_MOST_NAMED]))}{more} is on the side of {name}{hint}")
    return rows, held_back


def _weights(classes: Classes, names: tuple[str, ...], rows: RowSet | None) -> dict[int, float]:
    """What a row of every class counts, by the number of the class. Rows that are held back are not counted."""
    weights = classes.balanced_weights(rows.numbers(np.arange(rows.count)) if rows is not None else None)
    if not names:
        return weights
    places = {name: place for place, name in enumerate(names)}
    return {
        places[value]: weights[place]
        for place, value in enumerate(classes.values)
        if place in weights and value in places
    }
