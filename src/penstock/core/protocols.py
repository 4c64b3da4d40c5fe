"""The five seams of penstock: sources, runtimes, replicas, sinks and engines.

A protocol declares everything that its users call. What only some implementations can do is a small protocol of its
own, asked for with `isinstance`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from penstock.core.events import NOTHING_ASKED, Asked, Prepared
from penstock.core.preprocessing import Preprocess
from penstock.core.records import (
    Binding,
    Block,
    Columns,
    Device,
    Extent,
    Fragment,
    Job,
    ModelFile,
    OutputSchema,
    Placement,
    Result,
    Shortage,
    Signature,
    Span,
    TensorSpec,
)
from penstock.core.row_watch import Watch
from penstock.core.state import State

S = TypeVar("S")


@dataclass(frozen=True)
class SourceTraits:
    """What a source is. Known before any of its rows is read."""

    is_resumable: bool = True
    """Its rows can be read again, also by a later process. Those of a stream cannot."""
    runs_python: bool = False
    """Reading runs Python code for every row: loaders are processes of their own."""
    is_frame: bool = False
    """The columns are those of one table, which together may feed one input."""
    may_have_targets: bool = False
    """Columns without names may include, after those that the model takes, what it was trained to answer."""


class Source(Protocol):
    """Where rows come from. Picklable; `read` runs in a loader, in another process.

    A source is never changed after it was made: `fitted_to` and `with_floats` return another one. A class that
    inherits from this protocol needs the five methods without a body; the rest has defaults.
    """

    @property
    def traits(self) -> SourceTraits:
        return SourceTraits()

    @property
    def is_positional(self) -> bool:
        """Whether columns have no names of their own, so that they feed inputs in order. May look at the first row."""
        return False

    @property
    def keeps(self) -> tuple[str, ...]:
        """Columns that are written beside the predictions by default. May look at the first rows."""
        return ()

    def fragments(self) -> Sequence[Fragment]:
        """The files that the fingerprint covers, in input order."""
        ...

    def schema(self) -> dict[str, TensorSpec]:
        """The columns, in their order."""
        ...

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterable[Span]:
        """All rows in order, cut into spans. Deterministic.

        A span may be larger where the format wants it (a row group), up to `most_rows`.
        """
        ...

    def origin(self, span: Span, row: int) -> str:
        """Where a row of `span` comes from, in words: the file, and the place in it."""
        ...

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        """The rows of `span` in order, in blocks of whatever size is read fastest."""
        ...

    def fitted_to(self, inputs: Sequence[TensorSpec]) -> Source:
        """The source with its columns read as a model with these inputs takes them."""
        return self

    def with_floats(self, columns: Sequence[str]) -> Source:
        """The source with these columns read as floats, where the file itself has no types (text)."""
        return self


def with_changes(source: S, /, **attributes: Any) -> S:
    """A copy of a source in which these attributes differ. What was learnt from the files is shared."""
    made = object.__new__(type(source))
    made.__dict__.update(source.__dict__ | attributes)
    return made


@runtime_checkable
class OfFiles(Protocol):
    """A source that can say which bytes of which files a span is made from."""

    def extents(self, span: Span, columns: Sequence[str]) -> Iterable[Extent]:
        """The bytes behind these columns of a span, in a fixed order."""
        ...


@runtime_checkable
class HasPaths(Protocol):
    """A source that is read from files."""

    @property
    def paths(self) -> Sequence[str]:
        """The files, in input order."""
        ...


@runtime_checkable
class Releases(Protocol):
    """A source that holds the rows of a span in memory until they are not needed any more."""

    def release(self, span: Span) -> None:
        """Free the memory of a span whose result is there."""
        ...

    def close(self) -> None:
        """Free the memory of all spans."""
        ...


@runtime_checkable
class Watchable(Protocol):
    """A source that reports each row before it works on it, as that runs code of the user."""

    def watched_by(self, watch: Watch) -> Source:
        """The source, reporting to `watch`, and leaving out the rows that it calls poisoned."""
        ...


@runtime_checkable
class Remarks(Protocol):
    """A source that has something to tell about its files."""

    def remarks(self) -> list[str]:
        """What people should know before the files are read, in words."""
        ...


class Runtime(Protocol):
    """What executes models of some kinds. Picklable and light: the framework is imported in `load`."""

    def environment(self, device: Device, threads: int) -> dict[str, str]:
        """The variables that pin device, memory and threads; set before the framework is imported."""
        ...

    def load(self, model: ModelFile, device: Device, threads: int) -> Replica:
        """Import the framework and load the model onto the device."""
        ...


class Replica(Protocol):
    """A live model on a device. Never pickled. `predict` is called by several threads at once."""

    @property
    def signature(self) -> Signature: ...

    def predict(self, batch: Columns) -> Columns:
        """Copy in, compute, copy out. Every array has the batch's number of rows."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Exporting(Protocol):
    """A replica that can write its whole step in a form that other runtimes read."""

    def export(self, folder: str, bindings: Sequence[Binding]) -> str | None:
        """Write the step into `folder`, which is there and empty; returns why that is impossible, in words, or None."""
        ...


@runtime_checkable
class TakesAnySize(Protocol):
    """A replica that is compiled for one shape of batches, but can run without that."""

    def take_any_size(self) -> None:
        """From now on, rows come in many sizes: compile nothing for any of them."""
        ...


@runtime_checkable
class Gauged(Protocol):
    """A replica that knows about its device's memory, where the process's own memory does not tell."""

    def peak_bytes(self) -> int | None:
        """The most that this process has held on the device so far; None where that is all of its memory."""
        ...

    def predicted_bytes(self, batch: Columns) -> int | None:
        """What a batch would take, told without running it; None where only running tells."""
        ...


@runtime_checkable
class Copying(Protocol):
    """A replica that can tell copying from computing."""

    def copied_s(self) -> float:
        """How long the calling thread has spent so far on getting batches to the device."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """A replica that can tell what a call changes in its model, and undo it."""

    def look(self, batch: Columns) -> State:
        """What calls with batches of this shape change. Nothing is changed by looking."""
        ...

    def hold(self, seed: int | None) -> None:
        """Remember the model as it is. Random numbers are drawn by `seed`, or else from where the model stands."""
        ...

    def restore(self) -> None:
        """Make the model what it was when it was held."""
        ...

    def turn(self, row: int) -> None:
        """The next call of this thread is for the batch that begins with this row."""
        ...


class PartWriter(Protocol):
    """One part while it is written, under temporary names."""

    def write(self, result: Result) -> None: ...

    def finish(self) -> dict[str, str]:
        """Close and fsync the files; returns temporary path to final name (relative to the output folder)."""
        ...

    def abandon(self) -> None:
        """Close without keeping anything."""
        ...


class Sink(Protocol):
    """Where predictions go. Picklable."""

    @property
    def suffix(self) -> str:
        """How the name of each file of a part ends: `.parquet`."""
        ...

    def folders(self, schema: OutputSchema) -> tuple[str, ...]:
        """The folders of the output that hold files of parts, relative to it; "" is the output itself."""
        ...

    def check(self, schema: OutputSchema) -> None:
        """Raise OutputError or UsageError if this format cannot hold these columns."""
        ...

    def open_part(self, name: str, folder: str, schema: OutputSchema) -> PartWriter: ...


class Engine(Protocol):
    """What runs a job: load the model, learn what the user's function gives, compile the step, predict spans."""

    def load(self) -> Signature:
        """Load the model and say what it takes and gives."""
        ...

    def learn(self, source: Source, preprocess: Preprocess, sample: Span) -> Preprocess:
        """Run the user's function on the rows of `sample`, where loaders run, and note what it gives."""
        ...

    def prepare(self, job: Job, placement: Placement, sample: Span, asked: Asked = NOTHING_ASKED) -> Prepared:
        """Take the job; compile and time the step on the rows of `sample`; find out what is asked.

        Until it runs, another job may be taken instead.
        """
        ...

    def run(self, spans: Iterable[Span], *, is_ordered: bool = True) -> Iterator[Result]:
        """The result of every span, each once: in the order of `spans`, or as they are finished.

        Ends early when its stop flag is raised.
        """
        ...

    def loaders(self) -> str | None:
        """How many loader processes there were, in words; None where threads read."""
        ...

    def shortages(self) -> Mapping[Shortage, int]:
        """How the devices ran out of memory and went on, and how often."""
        ...

    def close(self) -> None: ...
