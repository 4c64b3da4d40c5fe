"""Evaluation of predictions in a folder: `predict` has written them before, or they are written first."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.commands import folder_state, to_folder
from penstock.commands.evaluate import (
    ColumnTargets,
    Folding,
    check_columns,
    classes_for,
    evaluate_columns,
    judge_for,
    keeping,
    request_of,
)
from penstock.commands.evaluation import Evaluation
from penstock.commands.folder_job import make_task, resolved
from penstock.commands.in_memory import Wanted, run_context
from penstock.commands.on_cluster import check_local, runner_of
from penstock.commands.written_rows import RowReader, WrittenParts, is_readable
from penstock.core.mapping import find
from penstock.core.protocols import Source
from penstock.core.records import KEPT, Array, Column, ModelFile, Result, Span
from penstock.errors import InputError, ModelError, OutputError, UsageError
from penstock.evaluation.judges import Judge
from penstock.evaluation.metric_records import Structure
from penstock.evaluation.metrics_messages import Opened
from penstock.jobs.open import OpenedJob, absolute, open_data, open_model
from penstock.jobs.steps import from_request
from penstock.jobs.trained_with import fed_otherwise
from penstock.options.records import PredictOptions, ReadOptions
from penstock.options.training_records import EvaluateOptions
from penstock.runtimes.keras.live import is_live_keras_model
from penstock.sinks.staging import ROW, SameNames
from penstock.sources.derived.folder_names import FOLDER, FolderNames
from penstock.sources.files.paths import is_url
from penstock.storage.ledger import committed_records, is_finished
from penstock.storage.manifest import Manifest, changed_files
from penstock.storage.verifying import altered_files

_FUNCTIONS = ("preprocess", "preprocess_row", "postprocess")
"""Options of the job that do not affect the loss and metrics. They may name functions of a script, not found here."""


def evaluate_by_column(
    model: Any,
    data: Any,
    options: PredictOptions,
    asked: EvaluateOptions,
    wanted: Wanted,
    *,
    output: str | None = None,
    overwrite: bool = False,
) -> Evaluation:
    """Evaluate a model on data with labels in a column, with or without a folder of predictions."""
    if asked.from_predictions is not None:
        if output is not None:
            raise UsageError("the predictions are there already", received=f"--output {output}")
        check_local(options)
        return evaluate(asked.from_predictions, model, data, options, asked, wanted)
    if output is not None:
        return predict_and_evaluate(model, data, output, options, asked, wanted, overwrite=overwrite)
    check_local(options)
    given = {"part_rows": options.part_rows, "keep": options.keep or None, "overwrite": overwrite or None}
    for name, value in given.items():
        if value is not None:
            raise UsageError(
                f"{name} is for predictions that are written",
                received=f"{name}={value!r:.60}",
                hint="add --output FOLDER, or leave it out",
            )
    if options.trace is not None:
        raise UsageError("a trace is written of jobs with an output folder", received=f"trace={options.trace}")
    return evaluate_columns(resolved(model, options), data, options, asked, wanted)


def predict_and_evaluate(
    model: Any,
    data: Any,
    output: str,
    options: PredictOptions,
    asked: EvaluateOptions,
    wanted: Wanted,
    *,
    overwrite: bool = False,
) -> Evaluation:
    """Write the predictions and labels as `predict` does, and evaluate what is then in the folder."""
    began = time.perf_counter()
    given = options.keep
    options = keeping(options, asked)
    task = make_task(model, data, output, options)
    opened = OpenedJob(task.model, task.source, location=task.request["model"])
    check_columns(opened, asked, options)
    classes = classes_for(asked, task.request["model"], task.source.paths)
    request = request_of(asked, options, classes)
    with (
        run_context(wanted.is_verbose) as context,
        contextlib.closing(judge_for(model, opened.file, request, options, context)) as judge,
    ):
        opened_metrics = _open(judge)  # so that errors come before hours of predicting
        kept = _kept_beside(opened_metrics.outputs, options.keep, given)
        if kept != options.keep:
            task = make_task(model, data, output, replace(options, keep=kept))
        again = f"the same line{' without --overwrite' if overwrite else ''}, which then has the metrics, too"
        task = replace(task, overwrite=overwrite, is_verbose=wanted.is_verbose, goes_on_with=again)
        try:
            to_folder.run(task, wanted.progress, began, runner_of(options))
        except SameNames as error:
            hint = "give the column another name; or evaluate without --output"
            raise UsageError(error.problem, received=error.received, hint=hint) from None
        _check_parts(output)
        folding = Folding(judge, ColumnTargets(asked, classes), options.max_failures)
        return _fold(output, folding, opened_metrics, asked, task.request["data"], began)


def _kept_beside(outputs: Structure | None, keep: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """The columns that are written beside predictions. A label with the name of an output is left out.

    It is read from the input instead. `given` are columns that the user asked to write: they are not left out.
    """
    names = outputs.names if outputs is not None else ()
    return tuple(name for name in keep if name not in names or name in given)


def evaluate(
    folder: str, model: Any, data: Any, options: PredictOptions, asked: EvaluateOptions, wanted: Wanted
) -> Evaluation:
    """Evaluate predictions that `predict` wrote. Labels are among the kept columns, or are read from the input."""
    began = time.perf_counter()
    if not asked.label:
        raise UsageError("evaluation compares with true answers", hint="name their column: --label COLUMN")
    _, manifest = folder_state.open_job(folder)
    _check_parts(folder)
    asked_for = manifest.request
    location = model if model is not None else asked_for.get("model")
    is_by_name = bool(asked.metrics or asked.loss) and model is None
    file = None if is_by_name else _open_model(location, asked_for, options)
    given = data if data is not None else asked_for.get("data")
    has_folders = FOLDER in asked.label.values() and given is not None
    paths = open_data(given, ReadOptions())[0].paths if has_folders else ()
    classes = classes_for(asked, location if isinstance(location, str) else None, paths)
    request = request_of(asked, options, classes)
    with (
        run_context(wanted.is_verbose) as context,
        contextlib.closing(judge_for(model, file, request, options, context)) as judge,
    ):
        opened = _open(judge)
        folding = Folding(judge, ColumnTargets(asked, classes), options.max_failures)
        return _fold(folder, folding, opened, asked, given, began)


def _open_model(model: Any, request: Mapping[str, Any], options: PredictOptions) -> ModelFile | None:
    """The model whose loss and metrics are meant; None for a live one.

    Raises:
        UsageError: The model was only in memory when the predictions were written, and none is given now.
    """
    if model is None:
        raise UsageError(
            "the model of these predictions was in memory",
            received="no MODEL",
            hint="name what is measured: --metrics accuracy; or give MODEL",
        )
    if is_live_keras_model(model):
        return None
    before = from_request({name: value for name, value in request.items() if name not in _FUNCTIONS})
    loading = options.loading if options.loading.custom_objects else before.loading
    trust = options.trust_model or before.trust_model
    file, _, _ = open_model(resolved(model, options), replace(options, loading=loading, trust_model=trust))
    return file


def _open(judge: Judge) -> Opened:
    """Open the judge.

    Raises:
        ModelError: The model must see its inputs itself.
    """
    opened = judge.open()
    if opened.reason is not None:
        raise ModelError(
            "predictions alone do not give the loss and metrics of this model",
            received=opened.reason,
            hint="evaluate the model on its input, without a folder of predictions; or name others: --metrics",
        )
    return opened


def _fold(folder: str, folding: Folding, opened: Opened, asked: EvaluateOptions, data: Any, began: float) -> Evaluation:
    """Fold all predictions in a folder, in the order of their rows.

    Raises:
        OutputError: The folder does not hold whole outputs of the model.
    """
    place, manifest = folder_state.open_job(folder)
    records = committed_records(place, manifest)
    _check_outputs(manifest, folder)
    ordered = sorted(records, key=lambda each: (each.part, each.cut))
    parts = [{name: absolute(place.address(name)) for name in record.files} for record in ordered if record.rows]
    stored = _Stored(manifest, WrittenParts(manifest.part_suffix, manifest.schema, parts))
    columns = stored.columns_for(asked, data)
    outputs = stored.outputs(opened.outputs)
    specs = stored.specs(columns)
    for result in stored.results(outputs.names, columns):
        folding.add(result, outputs.kind, specs)
    folding.count_failed(sum(record.failed for record in records), place.address("_penstock/failures.jsonl"))
    found = folding.evaluation(folding.finish(), time.perf_counter() - began)
    request = manifest.request
    fed = fed_otherwise(request["model"], request, manifest.bindings if request["data"] is not None else ())
    return replace(found, notes=(*fed, *opened.notes, *found.notes), output=folder)


def _check_parts(folder: str) -> None:
    """Check that all parts are there and, on a disk, unchanged since they were written: else metrics would be wrong.

    Raises:
        OutputError: A part is missing or damaged.
    """
    place, manifest = folder_state.open_job(folder)
    records = committed_records(place, manifest)
    if not is_finished(manifest, records):
        raise OutputError("the job is not finished", received=folder, hint=f"penstock resume {folder}")
    if is_url(place.address()):
        return  # a store keeps its objects whole, and reading them twice costs money
    for altered in altered_files(place, manifest, records):
        raise OutputError(
            "a part is not as it was written",
            received=f"{place.address(altered.name)}: {altered.problem}",
            hint=f"predict it again: penstock resume {place.address()} --verify",
        )


def _check_outputs(manifest: Manifest, folder: str) -> None:
    """Refuse predictions from which no metric can be had.

    Raises:
        OutputError: Only the best classes or the results of a function were written, or a plugin wrote the parts.
    """
    request = manifest.request
    for name in ("top_k", "argmax", "postprocess", "squeeze"):
        if request.get(name):
            raise OutputError(
                "metrics need the whole outputs of the model",
                received=f"{folder}: written with --{name.replace('_', '-')}",
                hint="predict without it, or evaluate the model: penstock evaluate MODEL INPUT --label COLUMN",
            )
    if not is_readable(manifest.part_suffix):
        raise OutputError(
            "predictions of this format cannot be read back",
            received=f"{folder}: parts of {manifest.part_suffix}",
            allowed="parquet, arrow, npy, jsonl, csv",
            hint="predict with another --format, or evaluate the model",
        )


@dataclass(frozen=True)
class _Stored:
    """The predictions in a folder, with the labels beside them or in the input."""

    manifest: Manifest
    parts: WrittenParts

    def columns_for(self, asked: EvaluateOptions, data: Any) -> dict[str, str | _ByRow]:
        """The place of each column of labels and weights: its name in the parts, or the input.

        Raises:
            UsageError: A column is in neither of them.
        """
        kept = list(self.manifest.schema.names)[self.manifest.schema.num_outputs :]
        wanted = [*asked.label.values(), *([asked.weight] if asked.weight is not None else [])]
        places: dict[str, str | _ByRow] = {}
        for name in dict.fromkeys(wanted):
            written = name.removeprefix("@") if name == FOLDER else name
            written = self.manifest.request.get("rename", {}).get(name, written)
            places[name] = written if written in kept else self._in_input(name, data, kept)
        return places

    def _in_input(self, name: str, data: Any, kept: Sequence[str]) -> _ByRow:
        if data is None or len(self.manifest.generations) > 1:
            raise UsageError(
                "the column is not among the predictions, and the input cannot be read for it",
                received=f"{name!r}",
                allowed=", ".join(kept) or "no column was kept",
                hint=f"predict with --keep {name}",
            )
        source, _ = open_data(data, ReadOptions())
        changed = {path: how for path, how in changed_files(self.manifest, source.fragments()).items() if how}
        if changed:
            path, how = next(iter(changed.items()))
            raise InputError(f"the input changed since it was predicted: {path}", received=how)
        if name == FOLDER:
            source = FolderNames(source)
        find(source.schema(), name, "--label")
        return _ByRow(source, name)

    def specs(self, columns: Mapping[str, str | _ByRow]) -> dict[str, Any]:
        schema = {spec.name: spec for spec in self.manifest.schema.columns}
        return {
            name: schema[where] if isinstance(where, str) else where.source.schema()[name]
            for name, where in columns.items()
        }

    def outputs(self, declared: Structure | None) -> Structure:
        """The structure of the outputs: the model's own, or by name if only some were written or no model is known."""
        written = tuple(self.manifest.schema.names)[: self.manifest.schema.num_outputs]
        if declared is None or len(declared.names) != len(written):
            return Structure("single" if len(written) == 1 else "dict", written)
        is_reordered = set(declared.names) == set(written)
        return Structure(declared.kind, declared.names if is_reordered else written)

    def results(self, outputs: Sequence[str], columns: Mapping[str, str | _ByRow]) -> Iterator[Result]:
        """All rows as results, in order."""
        inside = [where for where in columns.values() if isinstance(where, str)]
        if not self.parts.addresses:
            return
        readers = {name: where.reader() for name, where in columns.items() if isinstance(where, _ByRow)}
        for index, read in enumerate(self.parts.read([*outputs, *inside])):
            rows = np.asarray(read[ROW])
            found: dict[str, Column] = {name: read[name] for name in outputs}
            for name, where in columns.items():
                found[KEPT + name] = read[where] if isinstance(where, str) else readers[name].take(rows)
            yield Result(Span(index, int(rows[0]), len(rows), (), None, _runs(rows)), found)


def _runs(rows: Array) -> tuple[tuple[int, int], ...]:
    """Runs of consecutive rows: the first row of each run, and its length.

    >>> _runs(np.array([3, 4, 9]))
    ((3, 2), (9, 1))
    """
    starts = np.flatnonzero(np.diff(rows, prepend=rows[0] - 2) != 1)
    lengths = np.diff(np.append(starts, len(rows)))
    return tuple(zip(rows[starts].tolist(), lengths.tolist(), strict=True))


@dataclass(frozen=True)
class _ByRow:
    """A column of the input, by row number."""

    source: Source
    name: str

    def reader(self) -> RowReader:
        return RowReader(self.source, self.name)
