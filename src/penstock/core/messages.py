"""Messages between the coordinator, replicas and loaders. Descriptors only: rows travel through slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.core.agreement import Noise, Strangers
from penstock.core.job import Job
from penstock.core.postprocessing import Postprocess
from penstock.core.preprocessing import Preprocess
from penstock.core.records import Column, Device, ModelFile, RowFailure, Shortage, Signature, Span, TensorSpec, Timings
from penstock.core.source import Source
from penstock.core.state import STATELESS, State
from penstock.core.tracing import Level, Mark
from penstock.errors import PenstockError


@dataclass(frozen=True)
class Asked:
    """What a replica finds out with the first rows, besides compiling and timing.

    It returns the answers to `answers_rows` rows, to be compared with others; with `is_alone`, also the answers to each
    of these rows alone. With a `tolerance`, it tries whether padding changes an answer. It returns `learn_rows` rows as
    a result has them, from which a function behind the model learns its types. It also tries rows of kinds that no
    sample has: the kinds in `strangers` or, where that is None, those that are safe.
    """

    answers_rows: int = 0
    is_alone: bool = False
    tolerance: float | None = None
    learn_rows: int = 0
    strangers: tuple[str, ...] | None = None


NOTHING_ASKED = Asked()


@dataclass(frozen=True)
class PaddingTrial:
    """Whether padding changes an answer of the model, as far as the first rows show.

    `difference` is the largest one between rows alone and padded, as a share of an output's spread. `problem` says why
    nothing was found out.
    """

    difference: float = 0.0
    problem: str | None = None

    def is_harmless(self, tolerance: float) -> bool:
        return self.problem is None and self.difference <= tolerance


@dataclass(frozen=True)
class Care:
    """How to run a span in which replicas crashed or hung: one batch at a time, so that a crash shows its batch.

    `suspects` maps the first row of a suspected batch to a range of its places: these are tried a few at a time before
    the whole batch is run.
    """

    suspects: Mapping[int, tuple[int, int]] = field(default_factory=dict)


# Coordinator to replica.
@dataclass(frozen=True)
class Load:
    """Import the framework and load the model."""

    runtime: Any
    model: ModelFile
    device: Device
    threads: int
    import_path: tuple[str, ...]
    sent: float = 0.0
    """When its process was started, by the clock that all processes share."""


@dataclass(frozen=True)
class Prepare:
    """Take this job, and compile and time the step on the rows of `sample`."""

    job: Job
    sample: Span
    loaders: int
    lanes: int
    slot_bytes: int = 0
    slot_count: int = 0
    warm: Filled | None = None
    warm_chunks: tuple[tuple[Chunk, bytes], ...] = ()
    """`warm` is the first batch, where loader processes read it; `warm_chunks` is what of it fits into no slot."""
    asked: Asked = NOTHING_ASKED
    ceilings: Mapping[int, int] = field(default_factory=dict)
    """The most rows of a batch that fit into the memory, by the bytes of a row, as far as these are known."""
    is_alone: bool = False
    """Run one batch at a time: a replica died here, and the next death must show at which batch."""
    poisoned: tuple[RowFailure, ...] = ()
    """Rows that killed a replica: they are left out."""
    care: Care | None = None


@dataclass(frozen=True)
class Measure:
    """Run the step on batches of `batch_size` rows, made of the first rows, for about `seconds`."""

    batch_size: int
    seconds: float
    lanes: int
    room_bytes: int | None = None
    """Do not run a batch that is known to need more memory than this."""
    is_warm: bool = False
    """Whether this size ran before: then nothing is left to compile."""


@dataclass(frozen=True)
class Convert:
    """Write the whole step, as it is compiled for this job, to `folder` in a form that other runtimes read."""

    folder: str


@dataclass(frozen=True)
class FindNoise:
    """Find out how far the answers to so many of the first rows are from the truth."""

    rows: int


@dataclass(frozen=True)
class Work:
    """Predict this span: read it or, where loader processes read, wait for its batches. `poisoned` rows, at which a
    replica died, are left out."""

    span: Span
    poisoned: tuple[RowFailure, ...] = ()
    care: Care | None = None


@dataclass(frozen=True)
class Limit:
    """More rows than this do not fit into the memory, as another replica on the same memory found out."""

    ceilings: Mapping[int, int]


@dataclass(frozen=True)
class Release:
    """The coordinator has copied the slot's bytes: it may be written again."""

    slot: int


@dataclass(frozen=True)
class Drain:
    """Give back the spans that are not begun, also loaded ones if the device would need long; finish the others."""


# Coordinator to loader.
@dataclass(frozen=True)
class Begin:
    """Take this job; batches are written into these slots."""

    job: Job
    slot_bytes: int
    slot_count: int


@dataclass(frozen=True)
class Learn:
    """Run the user's function on the first rows, and return what it gives."""

    source: Source
    preprocess: Preprocess
    sample: Span
    poisoned: tuple[RowFailure, ...] = ()


@dataclass(frozen=True)
class LoadSpan:
    """Load this span. `is_careful`: a loader died in it; `poisoned`: rows that are left out because of that.

    A span may be loaded again, for another replica, while a loader is still at it: every message about it carries its
    `attempt`, and messages of an older attempt are dropped.
    """

    span: Span
    attempt: int = 0
    is_careful: bool = False
    poisoned: tuple[RowFailure, ...] = ()


@dataclass(frozen=True)
class Grant:
    """This slot may be written."""

    slot: int


# Loader to coordinator.
@dataclass(frozen=True)
class Learnt:
    preprocess: Preprocess


@dataclass(frozen=True)
class Filled:
    """A batch lies in `slot`, or, where it is too large for one, was sent in chunks before this message.

    `layout` says where its columns are: inputs, kept columns, positions.
    """

    span: int
    index: int
    rows: int
    offset: int
    slot: int | None
    layout: tuple[ColumnLayout, ...]
    spilled: tuple[ColumnLayout, ...]
    failures: tuple[RowFailure, ...]
    attempt: int = 0
    text_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    values: int = 0
    padded: int = 0


@dataclass(frozen=True)
class SpanLoaded:
    """Every batch of a span was sent. `waited_s` of the time was spent waiting for a slot."""

    span: int
    num_batches: int
    read_s: float
    waited_s: float
    attempt: int = 0
    marks: tuple[Mark | Level, ...] = ()


# Replica to coordinator.
@dataclass(frozen=True)
class Emptied:
    """The replica no longer reads this slot of a loader."""

    slot: int


@dataclass(frozen=True)
class Loaded:
    """The model is loaded; `marks` say how long each step of that took."""

    signature: Signature
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class Prepared:
    """The step is compiled. `batch_seconds` is the time of one warm batch, `rows_loaded_per_s` what one loader
    process managed with the first rows, where there are such processes; `first_failures` are those of the first
    batch, which has `first_rows` rows. `follows`: outputs that have one value for each value of an input's row.
    `answers` are those of the first rows that have any, where they were asked for, and `alone` are those to each of the
    same rows alone; `answered` are the numbers of these rows in the whole input. `padding` is the result of a trial of
    padding. `strangers` are the answers to rows of kinds that no sample has, where answers were asked for. `first` are
    some of the first rows that have answers, as a Result has them, where the job's function behind the model is to
    learn from them. `state` is what a call changes in the model; where the job was made without it, the rest of this
    record is empty, and the job has to be prepared again. `marks` say how long each step took. `undecoded` says why the
    device does not decode rows: then, too, the rest is empty."""

    outputs: tuple[TensorSpec, ...]
    batch_seconds: float
    rows_loaded_per_s: float | None = None
    first_rows: int = 0
    first_failures: tuple[RowFailure, ...] = ()
    follows: Mapping[str, str] = field(default_factory=dict)
    answers: Mapping[str, Column] | None = None
    alone: Mapping[str, Column] | None = None
    answered: tuple[int, ...] = ()
    strangers: Mapping[str, Strangers] = field(default_factory=dict)
    padding: PaddingTrial | None = None
    first: Mapping[str, Column] = field(default_factory=dict)
    state: State = STATELESS
    marks: tuple[Mark, ...] = ()
    undecoded: str | None = None


@dataclass(frozen=True)
class Measured:
    """How fast the step is at one batch size. `problem` says why there is no figure: the memory, mostly.

    `peak_bytes` is the most memory that the process (on a GPU: its share of the device) has held so far.
    """

    batch_size: int
    rows: int = 0
    seconds: float = 0.0
    peak_bytes: int = 0
    problem: str | None = None

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Converted:
    """The step was written, or `problem` says why not, with the operation's name."""

    problem: str | None = None


@dataclass(frozen=True)
class Chunk:
    """`nbytes` lie in `slot`; they belong at `offset` of the `total` bytes of a result, or of a batch.

    `key` is the span of a result, or the span, the index and the attempt of a batch.
    """

    key: tuple[int, ...]
    slot: int
    offset: int
    nbytes: int
    total: int


@dataclass(frozen=True)
class ColumnLayout:
    """Where a column lies in the bytes of a result. Without `dtype` the bytes are an Arrow IPC stream."""

    name: str
    offset: int
    nbytes: int
    dtype: str | None
    shape: tuple[int, ...]


@dataclass(frozen=True)
class SpanDone:
    span: int
    layout: tuple[ColumnLayout, ...]
    failures: tuple[RowFailure, ...]
    timings: Timings = field(default_factory=Timings)
    reduced_to: int | None = None


@dataclass(frozen=True)
class RanShort:
    """The replica ran out of memory and goes on with these ceilings."""

    shortage: Shortage
    ceilings: Mapping[int, int]


@dataclass(frozen=True)
class Returned:
    """Spans that were given back."""

    spans: tuple[int, ...]


@dataclass(frozen=True)
class Failed:
    """A worker cannot go on. `error` is set where the cause is known; `details` is the stack trace."""

    error: PenstockError | None
    kind: str
    details: str

    @property
    def last_line(self) -> str:
        """The last line of the stack trace: the error itself."""
        return self.details.strip().splitlines()[-1][:300]

    def as_error(self, worker: str) -> PenstockError:
        """The error to raise: the known one, or a bug in this worker."""
        return self.error or PenstockError(
            f"{worker} failed with {self.kind}",
            received=self.last_line,
            hint="this is a bug of penstock: please report it with the stack trace from --verbose",
        )


Probe = Measure | Convert | FindNoise
ProbeAnswer = Measured | Converted | Noise
LoadedData = Chunk | Filled | SpanLoaded
"""What a loader process sends, and the coordinator passes on to the replica of the span."""
ReplicaReport = Loaded | Prepared | ProbeAnswer | Emptied | RanShort | Returned
"""What a replica reports besides results."""


# Coordinator to finisher, and back. The columns lie in memory that both have.
@dataclass(frozen=True)
class Parcel:
    """Columns in shared memory: `head` is their pickle; their buffers, of `sizes` bytes, follow one another."""

    head: bytes
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Finish:
    """Apply the user's function to the columns of a result or, with `is_learning`, learn what it gives.

    `function` is None where the function of the last message is to be used again. `is_careful`: a process died at these
    rows; `poisoned`: those that are left out because of that.
    """

    function: Postprocess | None
    kept: tuple[str, ...]
    columns: Parcel
    is_learning: bool = False
    is_careful: bool = False
    poisoned: tuple[RowFailure, ...] = ()


@dataclass(frozen=True)
class Applied:
    """What the function gave: columns, and failures by their place in the result; or the function with its types."""

    columns: Parcel | None = None
    failures: tuple[RowFailure, ...] = ()
    learnt: Postprocess | None = None
