"""What a replica and the coordinator say to each other. Descriptors only: rows travel through slots."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from penstock.core.records import Device, Job, ModelFile, RowFailure, Signature, Span, TensorSpec, Timings
from penstock.errors import PenstockError


# Coordinator to replica.
@dataclass(frozen=True)
class Load:
    """Import the framework and load the model."""

    runtime: Any
    model: ModelFile
    device: Device
    threads: int
    import_path: tuple[str, ...]


@dataclass(frozen=True)
class Prepare:
    """Take this job, and compile and time the step on the rows of `sample`."""

    job: Job
    sample: Span
    loaders: int
    lanes: int


@dataclass(frozen=True)
class Work:
    """Predict this span."""

    span: Span


@dataclass(frozen=True)
class Release:
    """The coordinator has copied the slot's bytes: it may be written again."""

    slot: int


@dataclass(frozen=True)
class Drain:
    """Give back the spans that no loader has begun; finish the others."""


# Replica to coordinator.
@dataclass(frozen=True)
class Loaded:
    signature: Signature


@dataclass(frozen=True)
class Prepared:
    """The step is compiled. `batch_seconds` is the time of one warm batch."""

    outputs: tuple[TensorSpec, ...]
    batch_seconds: float


@dataclass(frozen=True)
class Chunk:
    """`nbytes` of the result of a span lie in `slot`; they belong at `offset` of its `total` bytes."""

    span: int
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


@dataclass(frozen=True)
class Returned:
    """Spans that were given back."""

    spans: tuple[int, ...]


@dataclass(frozen=True)
class Failed:
    """The replica cannot go on. `error` is set where the cause is known; `details` is the stack trace."""

    error: PenstockError | None
    kind: str
    details: str


ToReplica = Load | Prepare | Work | Release | Drain
ToCoordinator = Loaded | Prepared | Chunk | SpanDone | Returned | Failed
