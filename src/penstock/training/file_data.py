"""Training rows from files: columns bound to the inputs of a model, with labels and weights, read by loaders."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from penstock.core.job import Job
from penstock.core.missing import bind_nulls
from penstock.core.protocols import Source
from penstock.core.records import STRING, Binding, RowFailure, Signature, TensorSpec
from penstock.core.sharing import Share
from penstock.core.stillness import Timeouts
from penstock.core.training import Exchange, TrainingData
from penstock.errors import UsageError
from penstock.evaluation.targets import label_columns
from penstock.jobs import steps
from penstock.jobs.bind import bind, described_as_floats, fed_as_floats
from penstock.jobs.buckets import choose_buckets
from penstock.jobs.feeding import describe_feeding
from penstock.jobs.placement import needs_processes
from penstock.pool.devices.inventory import usable_cores
from penstock.sources.images.columns import find_images
from penstock.training import cache
from penstock.training.cutting import INPUT
from penstock.training.data import Loading, RowFormat, count_rows, from_columns, from_source, learn
from penstock.training.fit_job import FitJob, SourceRows
from penstock.training.gang_rows import GangRows
from penstock.training.roles import in_role, target_binding, weight_binding
from penstock.training.row_stream import RowStream

CACHE = os.path.join("_penstock", "cache")
_MOST_LOADERS = 64
_MOST_DECODING = 4
_WORTH_PROCESSES = 64 << 20
"""Bytes of files, in all epochs, from which on loader processes pay: a thread reads less before they have started."""


@dataclass(frozen=True)
class FileData:
    """How the rows of a job are made for its model.

    Args:
        job: The job.
        signature: The signature of the model.
        outputs: The column of labels of every output.
        log: Where loaders write.
        beat: Called for every batch while a cache is filled, which may take hours.
        exchange: The line to the other processes of the gang.
    """

    job: FitJob
    signature: Signature
    outputs: dict[str, str]
    log: IO[Any] | int
    beat: Callable[[], None]
    exchange: Exchange | None = None

    def train(self, failures: Iterable[RowFailure]) -> TrainingData:
        """The rows for training; `failures` are known to be bad."""
        asked = self.job.asked
        seed = asked.seed if asked.shuffle else None
        if asked.cache is not None:
            stream = self._from(self._cached, self.job.train, seed, failures)
        else:
            stream = self._stream(self.job.train, seed, failures, asked.epochs)
        return self._in_gang(stream, "training", failures)

    def validation(self, failures: Iterable[RowFailure]) -> TrainingData | None:
        """The rows for validation, in their order; `failures` are known to be bad."""
        if self.job.validation is None:
            return None
        if self.job.asked.cache is not None:
            stream = self._from(self._cached, self.job.validation, None, failures)
        else:
            # Every validation reads the same single epoch.
            stream = self._stream(self.job.validation, None, failures, epochs=1)
        return self._in_gang(stream, "validation", failures)

    def inputs(self) -> list[Binding]:
        """The binding of each input of the model."""
        _, row_format = self._of_train
        prefixed = [binding for binding in row_format.bindings if binding.input.startswith(INPUT)]
        return [
            replace(
                each, input=each.input.removeprefix(INPUT), mask_of=each.mask_of and each.mask_of.removeprefix(INPUT)
            )
            for each in prefixed
        ]

    def feeding(self) -> list[str]:
        """Lines for the user about how columns reach the model."""
        source, row_format = self._of_train
        has_function = row_format.preprocess is not None
        return describe_feeding(source, self.inputs(), self.job.options, has_function=has_function)

    def label_specs(self) -> dict[str, TensorSpec]:
        """The specs of the labels of every output."""
        schema = self.job.train.source.schema()
        return {output: schema[column] for output, column in self.outputs.items() if column in schema}

    @property
    def _share(self) -> Share | None:
        gang = self.job.gang
        return None if gang is None else Share(gang.rank, gang.size, gang.devices, self.job.batch_size)

    def _in_gang(self, stream: RowStream, name: str, failures: Iterable[RowFailure]) -> TrainingData:
        if self._share is None or self.exchange is None:
            return stream
        return GangRows(stream, self._share, self.exchange, name, [failure.row for failure in failures])

    def _stream(self, selected: SourceRows, seed: int | None, failures: Iterable[RowFailure], epochs: int) -> RowStream:
        is_train = selected.source is self.job.train.source
        source, row_format = self._of_train if is_train else self._formatted(selected.source)
        return from_source(
            source,
            row_format,
            self._loading(source, row_format, epochs),
            batch_size=self.job.batch_size,
            seed=seed,
            rows=selected.rows,
            failures=failures,
            share=self._share,
        )

    @functools.cached_property
    def _cached(self) -> cache.Cache:
        """Every row, decoded, for training and validation. Only a cache on disk can be used by the next process."""
        job = self.job
        source, row_format = self._of_train
        rows = count_rows(source)

        def read() -> TrainingData:
            loading = self._loading(source, row_format, epochs=1)
            return from_source(source, row_format, loading, batch_size=job.batch_size, seed=None)

        if job.asked.cache == "disk":
            return cache.on_disk(row_format.bindings, rows, Path(job.folder) / CACHE, job.cache_key, read, self.beat)
        return cache.in_memory(row_format.bindings, rows, read, self.beat)

    def _from(
        self, held: cache.Cache, selected: SourceRows, seed: int | None, failures: Iterable[RowFailure]
    ) -> RowStream:
        known = {failure.row: failure for failure in (*held.failures, *failures)}
        return from_columns(
            held.columns,
            batch_size=self.job.batch_size,
            seed=seed,
            rows=selected.rows,
            failures=known.values(),
            share=self._share,
        )

    @functools.cached_property
    def _of_train(self) -> tuple[Source, RowFormat]:
        return self._formatted(self.job.train.source)

    def _formatted(self, source: Source) -> tuple[Source, RowFormat]:
        """The source in the form that the model takes, and the form that rows get."""
        job, signature = self.job, self.signature
        taken = tuple(dict.fromkeys([*self.outputs.values(), *([job.asked.weight] if job.asked.weight else [])]))
        options = replace(job.options, keep=taken)
        source = source.fitted_to(signature.inputs)
        preprocess = steps.make_preprocess(source, signature, options)
        if preprocess is not None:
            source = source.with_floats(sorted(described_as_floats(preprocess.takes) - set(taken)))
            preprocess = learn(source, preprocess, self._loading(source, None, epochs=1))
            columns = dict(preprocess.gives)
        else:
            source = find_images(source, signature, options.inputs, options.reading, taken)
            columns = self._as_in_the_file(source.schema())
        bindings = bind(signature, source, columns, replace(options, keep=(*taken, *source.keeps)))
        bindings = bind_nulls(bindings, signature, options.nulls, has_function=preprocess is not None)
        if preprocess is None:
            source = source.with_floats(sorted(fed_as_floats(bindings) - set(taken)))
        buckets = choose_buckets(source, bindings, preprocess, options.buckets)
        inputs = in_role(INPUT, bindings)
        row_format = RowFormat(
            (*inputs, *self._targets(source)), preprocess, {INPUT + name: sizes for name, sizes in buckets.items()}
        )
        return source, row_format

    def _as_in_the_file(self, columns: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
        """The columns, with labels of text as text: they are numbers by now, but must feed no input of numbers."""
        coded = {column for output, column in self.outputs.items() if {output, ""} & set(self.job.classes)}
        return {name: TensorSpec(name, STRING, ()) if name in coded else spec for name, spec in columns.items()}

    def _targets(self, source: Source) -> list[Binding]:
        """The bindings of labels and weights. These columns do not go through the user's function."""
        weight = self.job.asked.weight
        bindings = [target_binding(source, column, output) for output, column in self.outputs.items()]
        return [*bindings, *([weight_binding(source, weight)] if weight is not None else [])]

    def _loading(self, source: Source, row_format: RowFormat | None, epochs: int) -> Loading:
        """How rows are loaded. If the user gave no number of loaders, `choose_loaders` decides."""
        options = self.job.options
        timeouts = Timeouts(options.row_timeout, options.hang_timeout, options.start_timeout)
        count = options.loaders
        if count is None:
            is_python = row_format is None or needs_processes(
                Job(source, row_format.bindings, (), 1, row_format.preprocess)
            )
            has_gpu = self.job.devices[0].kind == "gpu"
            count = choose_loaders(source, epochs, usable_cores(), is_python=is_python, has_gpu=has_gpu)
        return Loading(count, self.log, self.job.is_verbose, timeouts, epochs)


def choose_loaders(source: Source, epochs: int, cores: int, *, is_python: bool, has_gpu: bool) -> int:
    """How many loader processes read an input; 0 where a thread of the process that trains reads it.

    Such a thread shares the Python interpreter with the loop of training, even if it runs no Python code for each row.
    On two cores, two processes fed a small network from Parquet about 1.5 times as fast as the thread; one was slower.

    Args:
        source: The input.
        epochs: How often it is read.
        cores: How many cores this machine has.
        is_python: Whether Python code runs for every row.
        has_gpu: Whether training leaves the cores free. If a CPU trains, loaders share the cores with it: they wait
            when enough batches are ready.
    """
    most = max(1, cores - 1) if has_gpu else cores
    if is_python:
        return min(_MOST_LOADERS, most)
    read_bytes = epochs * sum(fragment.size for fragment in source.fragments())
    is_worth_it = not source.traits.reads_at_random and read_bytes >= _WORTH_PROCESSES and most > 1
    return min(_MOST_DECODING, most) if is_worth_it else 0


def outputs_of(signature: Signature, label: dict[str, str]) -> dict[str, str]:
    """The column of labels of every output.

    Raises:
        UsageError: An output has none, or there is no such output.
    """
    names = [spec.name for spec in signature.outputs]
    columns = label_columns(names, label)
    missing = [name for name in names if name not in columns]
    if missing:
        raise UsageError("an output has no labels", received=", ".join(missing), hint=f"--label {missing[0]}=COLUMN")
    return columns
