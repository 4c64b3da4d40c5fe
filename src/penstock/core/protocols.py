"""The five seams of penstock: sources, runtimes, replicas, sinks and engines.

A protocol declares everything that its users call. What only some implementations can do is a small protocol of its
own, which callers check with `isinstance`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from penstock.core.agreement import Noise
from penstock.core.job import Job
from penstock.core.messages import NOTHING_ASKED, Asked, Measure, Measured, Prepared
from penstock.core.preprocessing import Preprocess
from penstock.core.records import (
    Binding,
    Columns,
    Device,
    ModelFile,
    OutputSchema,
    Placement,
    Result,
    Shortage,
    Signature,
    Span,
    Timings,
)
from penstock.core.source import FileGone as FileGone
from penstock.core.source import Source as Source
from penstock.core.source import SourceTraits as SourceTraits
from penstock.core.source import with_changes as with_changes
from penstock.core.state import State
from penstock.core.stopping import StopFlag
from penstock.core.tracing import Mark
from penstock.errors import DeviceError

ShowLine = Callable[[str], None]
"""Shows a line to the user."""

Observe = Callable[[int, Device, Timings], None]
"""Takes the replica's number, its device and its timings of every finished span."""


def show_nothing(line: str) -> None:
    """A `ShowLine` that shows nothing."""


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


class StepNotKept(DeviceError):
    """A replica failed because its framework cannot keep a compiled step. A new process that keeps none can run it."""


@runtime_checkable
class Exporting(Protocol):
    """A replica that can write its whole step in a form that other runtimes read."""

    def export(self, folder: str, bindings: Sequence[Binding]) -> str | None:
        """Write the step into `folder`, which is there and empty; returns why that is impossible, in words, or None."""
        ...


@runtime_checkable
class Exact(Protocol):
    """A replica that can compute its step in float64, too: slowly, and nearer to the truth."""

    def predict_exactly(self, batch: Columns) -> Columns:
        """As `predict`, in float64. Where an operation has no float64, raises the error of the framework."""
        ...


@runtime_checkable
class TakesAnySize(Protocol):
    """A replica that compiles for one shape of batches, but can run without compiling."""

    def take_any_size(self) -> None:
        """From now on, rows come in many sizes: compile nothing for any of them."""
        ...


@runtime_checkable
class Looping(Protocol):
    """A replica that can say whether its model has a loop whose length depends on the values."""

    def has_loops(self, batch: Columns) -> bool:
        """Whether it has such a loop with batches of this shape."""
        ...


@runtime_checkable
class Gauged(Protocol):
    """A replica that reports the memory of its device, which the memory of the process does not include."""

    def peak_bytes(self) -> int | None:
        """The most memory of the device that this process has held so far; None if the device has none of its own."""
        ...

    def predicted_bytes(self, batch: Columns) -> int | None:
        """The bytes that a batch would take, found without running it; None where it has to be run."""
        ...


@runtime_checkable
class Copying(Protocol):
    """A replica that measures copying apart from computing."""

    def copied_s(self) -> float:
        """How long the calling thread has spent so far on getting batches to the device."""
        ...


@runtime_checkable
class Registering(Protocol):
    """A replica whose device copies faster from memory that is registered with it."""

    def register(self, memory: memoryview) -> Callable[[], None] | None:
        """Register memory, which must stay mapped, and return a function that undoes it; None where it fails."""
        ...


@runtime_checkable
class TakingOver(Protocol):
    """A replica that may use rows that lie on its device already: see `decoding.OnDevice`."""

    def takes_over(self) -> bool:
        """Whether it does; otherwise it gets only arrays on the host."""
        ...


@runtime_checkable
class Noting(Protocol):
    """A replica that notes the steps of its start."""

    def take_marks(self) -> tuple[Mark, ...]:
        """The marks since the last call."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """A replica that finds out what a call changes in its model, and can undo it."""

    def look(self, batch: Columns) -> State:
        """What calls with batches of this shape change. To look changes nothing."""
        ...

    def hold(self, seed: int | None) -> None:
        """Remember the model as it is. Random numbers follow from `seed`, or from the model's own generators."""
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


@runtime_checkable
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


@runtime_checkable
class Merges(Sink, Protocol):
    """A sink that can write several parts as one, in the order of their rows: what a retry needs."""

    def merge(self, parts: Sequence[Mapping[str, str]], writer: PartWriter, spans: Sequence[Span]) -> dict[str, str]:
        """Write the rows of parts, each of which is in order, to one part that is new.

        Args:
            parts: Folder to path, of every file of each part; the folders are those of `folders`.
            writer: The part to write, just opened.
            spans: The spans of the part: its bytes are as if their results had been written to it.

        Returns:
            What `PartWriter.finish` returns.
        """
        ...


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

        Until `run` is called, it may take another job instead.
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


@runtime_checkable
class Tunable(Engine, Protocol):
    """An engine whose step can be measured and converted before it runs: what the search for a plan needs."""

    @property
    def is_up(self) -> bool:
        """Whether it has a replica that could run."""
        ...

    def measure(self, order: Measure, replicas: int, stop: StopFlag) -> list[Measured]:
        """How fast the step is at one batch size, on so many replicas of the placement at once. After `prepare`."""
        ...

    def convert(self, folder: str, stop: StopFlag) -> str | None:
        """Write the whole step to `folder`; returns why that is impossible, in words, or None."""
        ...

    def find_noise(self, rows: int, stop: StopFlag) -> Noise:
        """How far the answers to so many of the first rows are from the truth."""
        ...
