"""Evaluation: the pipeline of `predict`, with its answers folded into the loss and metrics, in order."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from penstock.commands.evaluation import Evaluation
from penstock.commands.gathering import Gathered, to_numpy
from penstock.commands.in_memory import Running, Wanted, run_context, running
from penstock.core.columns import describe, take_rows
from penstock.core.failure_limit import exceeds, too_many
from penstock.core.mapping import find
from penstock.core.output_selection import LOGITS
from penstock.core.records import KEPT, STRING, Array, Column, ModelFile, Result, RowFailure, TensorSpec
from penstock.errors import InputError, ModelError, TooManyFailures, UsageError
from penstock.evaluation.judges import Judge, JudgeHere, JudgeProcess
from penstock.evaluation.metric_records import PREDICTION, ROW, FoldShape, MetricRequest, MetricResults, Structure
from penstock.evaluation.targets import Targets, classes_beside, classes_of_folders, label_columns
from penstock.evaluation.testing import without_label
from penstock.jobs.open import OpenedJob, open_both
from penstock.jobs.output_columns import describe_feeding, describe_training
from penstock.jobs.run_context import RunContext
from penstock.jobs.steps import make_scaling
from penstock.options.class_names import ClassNames, check_named, names_of
from penstock.options.records import PredictOptions
from penstock.options.training_records import EvaluateOptions
from penstock.runtimes.keras.live import is_live_keras_model
from penstock.sources.derived.folder_names import FOLDER

_MOST_NAMED = 12


def request_of(asked: EvaluateOptions, options: PredictOptions, classes: ClassNames = ()) -> MetricRequest:
    """The request for a judge: what is measured."""
    return MetricRequest(asked.loss, asked.metrics, classes, asked.per_class, asked.confusion, options.batch_size)


def keeping(options: PredictOptions, asked: EvaluateOptions) -> PredictOptions:
    """The options, with the columns of labels and weights among the kept ones.

    Raises:
        UsageError: No column of labels is named.
    """
    if not asked.label:
        raise UsageError("evaluation compares with true answers", hint="name their column: --label COLUMN")
    columns = [*asked.label.values(), *([asked.weight] if asked.weight is not None else [])]
    return replace(options, keep=tuple(dict.fromkeys([*options.keep, *columns])))


def check_columns(opened: OpenedJob, asked: EvaluateOptions, options: PredictOptions) -> None:
    """Check that the columns of labels and weights exist. With a function of the user's, they are not known yet.

    Raises:
        InputError: A column is missing; the message has the closest name.
    """
    if options.preprocess is not None or options.preprocess_row is not None:
        return
    schema = opened.source.schema()
    for column in asked.label.values():
        if column != FOLDER:
            find(schema, column, "--label")
    if asked.weight is not None:
        find(schema, asked.weight, "--weight")


def classes_for(asked: EvaluateOptions, location: str | None, paths: Sequence[str]) -> ClassNames:
    """The names of the classes: given by the user, from the file beside the model, or those of sorted folders."""
    if asked.labels:
        return asked.labels
    beside = classes_beside(location)
    if beside or FOLDER not in asked.label.values():
        return beside
    folders = classes_of_folders(tuple(paths))
    return {output: folders for output, column in asked.label.items() if column == FOLDER and output} or folders


def evaluate_columns(
    model: Any, data: Any, options: PredictOptions, asked: EvaluateOptions, wanted: Wanted
) -> Evaluation:
    """Evaluate a model on data that has its labels in columns."""
    began = time.perf_counter()
    options = keeping(options, asked)
    opened = open_both(model, data, options, needs_digest=False, logits=True)
    check_columns(opened, asked, options)
    classes = classes_for(asked, opened.location, opened.source.paths)
    request = request_of(asked, options, classes)
    with (
        run_context(wanted.is_verbose) as context,
        contextlib.closing(judge_for(model, opened.file, request, options, context)) as judge,
        running(opened, wanted, context) as run,
    ):
        folding = Folding(judge, ColumnTargets(asked, classes), options.max_failures)
        if run.started is not None:
            folding.notes += describe_training(opened.location, run.started)
            for line in (*folding.notes, *opened.notes, *describe_feeding(run.started)):
                wanted.progress.note(line)
        measured = folding.run(run)
    return folding.evaluation(measured, time.perf_counter() - began)


def judge_for(
    model: Any, file: ModelFile | None, request: MetricRequest, options: PredictOptions, context: RunContext
) -> Judge:
    """The judge, which computes the metrics. If it is a process, it starts to load at once, beside the replicas.

    Args:
        model: The model as the caller gave it.
        file: The model file, if the model is not live and its loss or metrics are needed.
        request: What is measured.
        options: The options, with the runtime.
        context: The context, with the log of the process.
    """
    if is_live_keras_model(model):
        return JudgeHere(model, request)
    return JudgeProcess(file, request, options.runtime, context.log, is_verbose=context.is_verbose)


class TargetsOfRows(Protocol):
    """Gives the labels and weights of rows."""

    def shape(self, outputs: Structure, inputs: tuple[str, ...], specs: Mapping[str, TensorSpec]) -> FoldShape:
        """The shape of the fold, when the model's outputs are known. `inputs` are those that the model must see."""
        ...

    def read(self, result: Result) -> tuple[dict[str, Array], Mapping[int, str]]:
        """Labels and weights of the rows of a result, and the places of rows that lack one, with the reason."""
        ...

    def check_whole(self, rows: int) -> None:
        """Check, after all results, that there were labels for so many rows."""
        ...


class ColumnTargets:
    """Labels and weights from kept columns of results."""

    def __init__(self, asked: EvaluateOptions, classes: ClassNames) -> None:
        self._asked = asked
        self._classes = classes
        self._is_checked = False
        self.targets: Targets | None = None

    def shape(self, outputs: Structure, inputs: tuple[str, ...], specs: Mapping[str, TensorSpec]) -> FoldShape:
        """The shape of the fold, once the outputs of the model are known.

        Raises:
            UsageError: An output has no column of labels, or there is no such output.
        """
        asked = self._asked
        labels = label_columns(outputs.names, asked.label)
        check_named(asked.labels, outputs.names)
        missing = [name for name in outputs.names if name not in labels]
        if missing and not asked.metrics and not asked.loss:
            raise UsageError(
                "an output has no labels, and the compiled loss needs them",
                received=", ".join(f"{name}={column}" for name, column in labels.items()),
                hint=f"--label {missing[0]}=COLUMN, or --metrics and --loss by name for the others",
            )
        self.targets = Targets(labels, asked.weight, self._classes, specs)
        kept = tuple(name for name in outputs.names if name in labels)
        named = outputs if not missing else Structure("single" if len(kept) == 1 else "dict", kept)
        weights = Structure("single", ("",)) if asked.weight is not None else Structure("single", ())
        return FoldShape(named, named, weights, inputs)

    def read(self, result: Result) -> tuple[dict[str, Array], Mapping[int, str]]:
        assert self.targets is not None
        if not self._is_checked:
            self._check_classes(self.targets, result)
        return self.targets.read({name: result.columns[KEPT + name] for name in self.targets.columns})

    def _check_classes(self, targets: Targets, result: Result) -> None:
        """Check that there are as many names of classes as the model has classes.

        Raises:
            UsageError: There are more or fewer.
        """
        self._is_checked = True
        for output, column in targets.labels.items():
            names = names_of(self._classes, output)
            if not names or describe(column, result.columns[KEPT + column]).dtype != STRING:
                continue
            shape = _whole(output, result.columns[output]).shape[1:]
            classes = shape[-1] if shape and shape[-1] > 1 else 2
            if len(names) != classes:
                more = ", …" if len(names) > _MOST_NAMED else ""
                raise UsageError(
                    "there is not one label for each class",
                    received=f"{len(names)} names: {', '.join(names[:_MOST_NAMED])}{more}",
                    allowed=f"{classes}, as the output {output!r} has",
                    hint="--labels FILE names the classes in their order",
                )

    def check_whole(self, rows: int) -> None:
        """Do nothing: columns of one input always have the same number of rows."""


class Folding:
    """Passes results to a judge, and counts the failed rows.

    Args:
        judge: Folds the results.
        targets: Gives the labels and weights.
        max_failures: The share of rows that may fail; None if the first failed row ends the call.
    """

    def __init__(self, judge: Judge, targets: TargetsOfRows, max_failures: float | None) -> None:
        self._judge = judge
        self._targets = targets
        self._allowed = max_failures
        self._shape: FoldShape | None = None
        self._rows = 0
        self.failures = 0
        self._first: RowFailure | None = None
        self._listed_in = ""
        self.notes: list[str] = []

    def run(self, run: Running) -> MetricResults:
        """Fold every result of a job."""
        opened = self._judge.open()
        self.notes += opened.notes
        if opened.reason is not None:
            return self._test(run, opened.reason)
        specs = _specs(run)
        for result in run.results:
            self.add(result, run.signature.structure, specs)
        return self.finish()

    def finish(self) -> MetricResults:
        """The results of the judge, after all rows.

        Raises:
            TooManyFailures: Every row failed.
            InputError: There was no row.
        """
        self._targets.check_whole(self._rows)
        if self._rows and self.failures == self._rows:
            raise TooManyFailures(f"all of the {self._rows:,} rows failed", received=self._example())
        if self._shape is None:
            raise InputError("there is no row to evaluate", received="no rows")
        return self._judge.finish()

    def count_failed(self, rows: int, listed_in: str) -> None:
        """Count rows that failed when they were predicted, after all results; `listed_in` is the file that has them."""
        self._rows += rows
        self.failures += rows
        self._listed_in = listed_in

    def add(self, result: Result, structure: str, specs: Mapping[str, TensorSpec]) -> None:
        """Fold one result. `structure` is that of the model's outputs."""
        self._rows += result.span.rows
        self._note(result.failures, result)
        if not result.columns or not result.rows:
            return
        if self._shape is None:
            names = [key for key in result.columns if not key.startswith((KEPT, LOGITS))]
            self._shape = self._targets.shape(_structure(names, structure), (), specs)
            self._judge.begin(self._shape)
        read, bad = self._targets.read(result)
        numbers = result.row_numbers()
        self._note([without_label(int(numbers[place]), reason) for place, reason in bad.items()], result)
        columns: dict[str, Array] = {ROW: numbers, **read}
        for name in self._shape.predictions.names:
            columns[PREDICTION + name] = _whole(name, result.columns[name])
            if LOGITS + name in result.columns:
                columns[LOGITS + name] = _whole(name, result.columns[LOGITS + name])
        if bad:
            keep = np.array([place not in bad for place in range(len(numbers))], bool)
            columns = {name: np.asarray(take_rows(array, keep)) for name, array in columns.items()}
        self._judge.add(columns)

    def _note(self, failures: Sequence[RowFailure], result: Result) -> None:
        if not failures:
            return
        if self._allowed is None:
            Gathered("raise").add(replace(result, failures=tuple(failures)))
        self.failures += len(failures)
        known = [*failures, *([self._first] if self._first is not None else [])]
        self._first = min(known, key=lambda failure: failure.row)
        self._check_failures(f"the first {self._rows:,}", is_whole=False)

    def _check_failures(self, of: str, *, is_whole: bool) -> None:
        assert self._allowed is not None
        if exceeds(self.failures, self._rows, self._allowed, is_whole=is_whole):
            received = f"{self.failures:,} of {of} rows; the first one is {self._example()}"
            raise too_many(received, self._allowed, "raise --max-failures, or mend the input")

    def _example(self) -> str | None:
        if self._first is not None:
            origin = f" ({self._first.origin})" if self._first.origin else ""
            return f"row {self._first.row}{origin}: {self._first.reason}"
        return f"in {self._listed_in}" if self.failures else None

    def _test(self, run: Running, reason: str) -> MetricResults:
        """Run the model's own `test_step` on every row, in order, on one device."""
        started = run.started
        # The metrics process can read files, but no rows that are only in the memory of this process.
        is_reached = isinstance(self._judge, JudgeHere) or (started is not None and bool(started.source.paths))
        if started is None or started.is_streamed or not isinstance(self._targets, ColumnTargets) or not is_reached:
            raise ModelError(
                "predictions alone do not give the loss and metrics of this model",
                received=reason,
                hint="evaluate it on files with --label COLUMN, or with model.evaluate",
            )
        self.notes.append(f"evaluated in order on one device, because {reason}")
        inputs = tuple(binding.input for binding in started.job.bindings)
        names = [spec.name for spec in started.prepared.outputs if not spec.name.startswith(LOGITS)]
        shape = self._targets.shape(_structure(names, run.signature.structure), inputs, _specs(run))
        self._shape = replace(shape, scaling=make_scaling(started.options))
        self._judge.begin(self._shape)
        assert self._targets.targets is not None
        spans = list(started.divide())
        failures = self._judge.test(started.job, spans, self._targets.targets)
        self._rows += sum(span.rows for span in spans)
        self.failures += len(failures)
        self._first = min(failures, key=lambda failure: failure.row, default=None)
        return self.finish()

    def evaluation(self, measured: MetricResults, seconds: float) -> Evaluation:
        """The result for people.

        Raises:
            TooManyFailures: More rows failed than are allowed.
        """
        if self._allowed is not None:
            self._check_failures(f"{self._rows:,}", is_whole=True)
        return Evaluation(
            measured.rows,
            self.failures,
            measured.metrics,
            measured.per_class,
            measured.confusion,
            seconds,
            example=self._example(),
            notes=tuple(self.notes),
        )


def _specs(run: Running) -> Mapping[str, TensorSpec]:
    return run.started.source.schema() if run.started is not None else {}


def _structure(names: Sequence[str], kind: str) -> Structure:
    """The structure of outputs. If a model declares none, only its answers show that there are several."""
    return Structure("dict" if kind == "single" and len(names) > 1 else kind, tuple(names))


def _whole(name: str, column: Column) -> Array:
    """An output as one array.

    Raises:
        InputError: Its rows differ in shape.
    """
    array = to_numpy(column)
    if array.dtype.kind == "O":
        raise InputError("outputs of different lengths cannot be evaluated", received=f"the output {name!r}")
    return array
