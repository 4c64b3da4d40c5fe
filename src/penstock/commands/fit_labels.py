"""Labels of a training job: their columns and classes, the rows that are held back, and the weights of classes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.commands.fit_task import FitTask
from penstock.core.mapping import find
from penstock.core.protocols import Source
from penstock.core.records import STRING
from penstock.core.shuffling import RowSet, split_by_class, split_rows
from penstock.errors import InputError, UsageError
from penstock.evaluation.targets import classes_beside
from penstock.options.class_names import ClassNames, names_of
from penstock.options.fit_records import FitOptions
from penstock.training.data import count_rows
from penstock.training.fit_job import SourceRows
from penstock.training.held_back import VALIDATION_ROWS
from penstock.training.job_rows import no_row_of
from penstock.training.roles import Classes, CodedLabels, find_column, scan_classes, with_folders

_MOST_NAMED = 10


@dataclass(frozen=True)
class LabelPlan:
    """The rows for training and validation, with labels that are numbers.

    `classes` are the names of the classes if the labels were text, by output if there are several. `class_weights` are
    the weights of rows by class, if all classes are to count alike.
    """

    train: SourceRows
    validation: SourceRows | None
    classes: ClassNames = ()
    class_weights: Mapping[int, float] = field(default_factory=dict)


def plan_labels(task: FitTask, known: ClassNames | None, note: Callable[[str], None]) -> LabelPlan:
    """Find the labels of a job.

    Args:
        task: The job.
        known: The classes with which the job in the folder began.
        note: Takes lines for the user.

    Raises:
        InputError: The column is missing, or holds no labels.
        UsageError: An option does not fit these labels.
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
    text = _text_columns(source, asked.label)
    balanced = _balanced_column(asked, list(text))
    scanned = scan_classes(source, list(dict.fromkeys([*text, *([balanced] if balanced is not None else [])])))
    names = {column: _vocabulary(task, output, scanned[column], known, note) for column, output in text.items()}
    for column, each in names.items():
        source = CodedLabels(source, column, each)
        held = CodedLabels(held, column, each) if held is not None else None
    train, validation = SourceRows(source), SourceRows(held) if held is not None else None
    if asked.validation_split is not None:
        rows, held_back = _split(task, source, scanned, balanced, note)
        train, validation = SourceRows(source, rows), SourceRows(source, held_back)
    weights: dict[int, float] = {}
    if asked.class_weights is not None and balanced is not None:
        weights = _weights(scanned[balanced], names.get(balanced, ()), train.rows)
    return LabelPlan(train, validation, _by_output(names, asked.label), weights)


def _text_columns(source: Source, label: Mapping[str, str]) -> dict[str, str]:
    """The columns of labels that are text, each with the first output for which it has the labels."""
    columns: dict[str, str] = {}
    for output, column in label.items():
        if source.schema()[column].dtype == STRING:
            columns.setdefault(column, output)
    return columns


def _by_output(names: Mapping[str, tuple[str, ...]], label: Mapping[str, str]) -> ClassNames:
    """The names of classes in the form of `labels.json`: one list if there is one output, else a list by output."""
    if len(label) == 1:
        return next(iter(names.values()), ())
    return {output: names[column] for output, column in label.items() if column in names}


def _balanced_column(asked: FitOptions, text: Sequence[str]) -> str | None:
    """The column of labels whose classes are divided or balanced: the only one, or the only one that is text.

    Raises:
        UsageError: There are several such columns.
    """
    if not asked.stratify and asked.class_weights is None:
        return None
    columns = text if len(text) == 1 else list(dict.fromkeys(asked.label.values()))
    if len(columns) > 1:
        raise UsageError(
            "classes of several outputs cannot be balanced or divided at once",
            received=", ".join(columns),
            hint="leave out --stratify and --class-weights",
        )
    return columns[0]


def _vocabulary(
    task: FitTask, output: str, classes: Classes, known: ClassNames | None, note: Callable[[str], None]
) -> tuple[str, ...]:
    """The names of the classes of an output in their order.

    The order is the one with which the job began, else that of `labels.json` beside the model, else alphabetical.
    """
    if known:
        return names_of(known, output)
    found = classes.vocabulary or ()
    beside = names_of(classes_beside(task.model.location), output) if task.model.kind != "builder" else ()
    is_known = bool(beside) and set(found) <= set(beside)
    names = beside if is_known else found
    shown = ", ".join(map(_shown, names[:_MOST_NAMED])) + (", …" if len(names) > _MOST_NAMED else "")
    order = ", in the order of labels.json beside the model" if is_known else ""
    of = f" of {output}" if len(task.asked.label) > 1 else ""
    note(f"{len(names):,} {'class' if len(names) == 1 else 'classes'}{of}: {shown}{order}")
    return tuple(names)


def _shown(name: str) -> str:
    """The name of a class as it is shown: quoted if it is empty or has spaces or control characters at its ends."""
    return name if name.isprintable() and name.strip() == name and name else repr(name)


def _split(
    task: FitTask,
    source: Source,
    scanned: Mapping[str, Classes],
    balanced: str | None,
    note: Callable[[str], None],
) -> tuple[RowSet, RowSet]:
    asked = task.asked
    assert asked.validation_split is not None
    total = next((len(classes.codes) for classes in scanned.values()), None)
    total = count_rows(source) if total is None else total
    if total < 2:
        raise InputError(
            "no row can be held back", received=f"{total} rows, --validation-split {asked.validation_split}"
        )
    if asked.stratify and balanced is not None:
        rows, held_back = split_by_class(scanned[balanced].codes, asked.validation_split, asked.seed)
    else:
        rows, held_back = split_rows(total, asked.validation_split, asked.seed)
    listed = os.path.join(task.output, VALIDATION_ROWS)
    note(f"{held_back.count:,} of {total:,} rows are held back for validation: {listed} has their numbers")
    hint = "" if asked.stratify or len(asked.label) > 1 else "; --stratify divides every class"
    for name, side in (("validation", held_back), ("training", rows)):
        numbers = side.numbers(np.arange(side.count)) if scanned else np.empty(0, np.int64)
        for classes in scanned.values():
            missing = classes.missing_in(numbers)
            if missing:
                note(no_row_of(list(map(_shown, missing)), name) + hint)
    return rows, held_back


def _weights(classes: Classes, names: tuple[str, ...], rows: RowSet | None) -> dict[int, float]:
    """The weight of a row of every class, by the number of the class. Only rows for training are counted for it."""
    weights = classes.balanced_weights(rows.numbers(np.arange(rows.count)) if rows is not None else None)
    if not names:
        return weights
    places = {name: place for place, name in enumerate(names)}
    return {
        places[value]: weights[place]
        for place, value in enumerate(classes.values)
        if place in weights and value in places
    }
