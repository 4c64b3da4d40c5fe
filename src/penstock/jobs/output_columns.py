"""The columns that a job writes: their names, the user's function behind the model, and how all that is described."""

import contextlib
from collections.abc import Generator, Iterable
from dataclasses import replace

import numpy as np

from penstock import plugins
from penstock.core import kinds
from penstock.core.output_selection import label_key, shown, squeezed, with_labels
from penstock.core.postprocessing import Postprocess
from penstock.core.protocols import Source
from penstock.core.records import KEPT, STRING, OutputSchema, Result, Span, TensorSpec
from penstock.core.scheduler import NOT_YET, NotYet
from penstock.errors import UsageError
from penstock.jobs import feeding, steps
from penstock.jobs.bring_up import Started, timeouts_of
from penstock.jobs.trained_with import fed_otherwise
from penstock.options.records import PredictOptions
from penstock.pool.devices.inventory import usable_cores
from penstock.pool.processes.finisher_pool import FinishedHere, Finishers, with_failures
from penstock.sinks.staging import ROW, check_distinct
from penstock.sources.derived.folder_names import FOLDER
from penstock.telemetry.meter import Meter

_MOST_FINISHERS = 4
_FILES = ("pq", "parq", "json", "npz", "tsv", "txt", "feather", "arrow", "h5", "tfrecord")
"""Suffixes of files that people write predictions to, besides those of the formats."""


def describe_source(source: Source) -> list[str]:
    """Lines about an input that are shown before it is read."""
    lines = source.remarks()
    if not source.traits.is_resumable:
        lines.append("this input can be read only once: the job cannot be resumed")
    return lines


def describe_output(output: str, format_: str) -> list[str]:
    """A line that says that an output is a folder, where its name looks like that of a file."""
    suffix = output.rstrip("/").rpartition(".")[2].lower()
    is_format = plugins.is_known(plugins.SINKS, suffix)
    if output.endswith("/") or not (is_format or suffix in _FILES):
        return []
    name = f"part-00000000{kinds.sink(format_).suffix}"
    other = f"; --format {suffix} writes {suffix} files" if is_format and suffix != format_ else ""
    return [f"{output} will be a folder: predictions are written as files in it, {name} …{other}"]


def describe_inputs(started: Started) -> list[str]:
    """What feeds each input, and whether that was given or guessed."""
    return feeding.describe_inputs(started.source, started.job.bindings, started.options)


def describe_feeding(started: Started) -> list[str]:
    """Lines about how columns reach the model."""
    job = started.job
    has = {"has_function": job.preprocess is not None, "has_engine": job.decoder is not None}
    lines = feeding.describe_feeding(started.source, job.bindings, started.options, **has)
    return [*started.decision.notes, *lines]


def describe_training(model: str | None, started: Started) -> list[str]:
    """A line that says in what this job differs from how the model was trained, if it does."""
    bindings = () if started.source.is_positional else started.job.bindings
    return fed_otherwise(model, steps.as_request(started.options), bindings)


def written_names(outputs: Iterable[str], options: PredictOptions) -> dict[str, str]:
    """The names under which columns are written, by their keys in a Result.

    If an output and a kept column have one name, a rename of it applies to the output.

    Raises:
        UsageError: A rename names nothing that is written, or gives the name of the row number.
    """
    keys = list(outputs)
    outputs = [shown(key) for key in keys]
    unknown = [name for name in options.rename if name not in outputs and name not in options.keep]
    if unknown:
        raise UsageError(
            "--rename names a column that is not written",
            received=unknown[0],
            allowed=", ".join([*outputs, *options.keep]),
        )
    taken = next((old for old, new in options.rename.items() if new == ROW), None)
    if taken is not None:
        raise UsageError(
            f"{ROW!r} is the name of the row number", received=f"--rename {taken}={ROW}", hint=f"--rename {taken}=NEW"
        )
    names = {key: options.rename.get(name, name) for key, name in zip(keys, outputs, strict=True)}
    for name in options.keep:
        plain = name.removeprefix("@") if name == FOLDER else name
        names[KEPT + name] = name if name in outputs else options.rename.get(name, plain)
    return names


def start_finisher(started: Started, meter: Meter, schema: OutputSchema | None = None) -> None:
    """Start the user's function behind the model, where there is one, and find out what it gives.

    The parts of a resumed job already have a schema: then the function gives what `schema` says. Otherwise it gives
    what it gave for the first rows.

    Raises:
        UsageError: An output and a kept column have one name: the function would get only one of them.
    """
    if started.options.postprocess is None:
        return
    function = Postprocess.of(started.options.postprocess)
    if schema is not None:
        function = replace(function, gives={spec.name: spec for spec in schema.columns[: schema.num_outputs]})
    names = written_names([spec.name for spec in _labelled(started)], started.options)
    kept = tuple(name for key, name in names.items() if key.startswith(KEPT))
    check_distinct([name for key, name in names.items() if not key.startswith(KEPT)], kept)
    rows = len(next(iter(started.prepared.first.values())))
    sample = renamed(Result(Span(0, 0, rows, ()), started.prepared.first), started.options)
    if started.launch is None:
        started.finisher = FinishedHere(function, kept, meter.postprocessing)
    else:
        count = max(1, min(_MOST_FINISHERS, usable_cores() // 2))
        timeouts = timeouts_of(started.options)
        started.finisher = Finishers(function, kept, started.launch, count, timeouts, meter.postprocessing)
    meter.postprocessed_rows = 0
    started.finisher.learn(sample.columns)


def finished(started: Started, results: Iterable[Result | NotYet]) -> Generator[Result]:
    """Results as they are written: under their names, and as the user's function makes them.

    `NOT_YET` among them means that more may come much later: the results under way are then waited for, and given.
    """
    named = (result if result is NOT_YET else renamed(result, started.options) for result in results)
    if started.finisher is None:
        yield from (result for result in named if result is not NOT_YET)
        return
    with contextlib.closing(started.finisher.run(named)) as running:
        for result, made in running:
            origins = {failure.row: _origin(started.source, result, failure.row) for failure in made.failures}
            yield with_failures(result, made, origins)


def _origin(source: Source, result: Result, index: int) -> str:
    """Where a row of a result comes from."""
    every = replace(result, failures=()).row_numbers()
    position = int(np.flatnonzero(every == result.row_numbers()[index])[0])
    return source.origin(result.span, result.span.start + position)


def output_schema(started: Started, options: PredictOptions) -> OutputSchema:
    """The columns that will be written, under the names that they will have."""
    kept = dict(started.job.preprocess.gives) if started.job.preprocess is not None else {}
    kept |= {name: as_kept(spec) for name, spec in started.source.schema().items()}
    outputs = _labelled(started)
    specs = {spec.name: spec for spec in outputs}
    specs |= {KEPT + name: kept[name] for name in options.keep}
    names = written_names([spec.name for spec in outputs], options)
    named = tuple(replace(spec, name=names[key]) for key, spec in specs.items())
    if started.finisher is None or options.postprocess is None:
        return OutputSchema(named, len(outputs))
    given = started.finisher.function.gives
    return OutputSchema(
        (*given.values(), *(spec for spec in named[len(outputs) :] if spec.name not in given)), len(given)
    )


def _labelled(started: Started) -> list[TensorSpec]:
    """The outputs, with columns for the names of their classes."""
    options = started.options
    outputs = [spec for output in started.prepared.outputs for spec in _with_label(output, options)]
    return [_squeezed(spec) for spec in outputs] if options.squeeze else outputs


def _squeezed(spec: TensorSpec) -> TensorSpec:
    return replace(spec, shape=()) if spec.shape == (1,) and not spec.varies else spec


def _with_label(spec: TensorSpec, options: PredictOptions) -> list[TensorSpec]:
    """An output, with a column for the names of its classes where it has any."""
    label = label_key(spec.name, options.labels)
    return [spec] if label is None else [spec, TensorSpec(label, STRING, spec.shape)]


def as_kept(spec: TensorSpec) -> TensorSpec:
    """A column as it is written: images and audio as the bytes that they were."""
    return spec if spec.encoding is None else TensorSpec(spec.name, STRING, ())


def renamed(result: Result, options: PredictOptions) -> Result:
    """A result under the names that are written, with the names of its classes."""
    result = replace(result, columns=with_labels(result.columns, options.labels))
    outputs = [key for key in result.columns if not key.startswith(KEPT)]
    names = written_names(outputs, options) if result.columns else {}
    columns = result.columns.items()
    if options.squeeze:
        columns = {key: squeezed(column) if key in outputs else column for key, column in columns}.items()
    return replace(result, columns={names[key]: column for key, column in columns})
