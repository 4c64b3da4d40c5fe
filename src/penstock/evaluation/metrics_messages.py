"""Messages between the coordinator and the metrics process. Columns travel through a mailbox."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.job import Job
from penstock.core.messages import Parcel
from penstock.core.records import ModelFile, RowFailure, Span
from penstock.evaluation.metric_records import FoldShape, MetricRequest, Structure
from penstock.evaluation.targets import Targets


@dataclass(frozen=True)
class Open:
    """Load the model, if one is given, and check the request. `sys_path` is the user's `sys.path`."""

    model: ModelFile | None
    request: MetricRequest
    sys_path: tuple[str, ...]


@dataclass(frozen=True)
class Opened:
    """The model is loaded.

    Args:
        reason: Why it must see the inputs itself; None if it need not.
        notes: Lines for the user.
        outputs: The structure of its outputs; None where the model does not declare it.
    """

    reason: str | None = None
    notes: tuple[str, ...] = ()
    outputs: Structure | None = None


@dataclass(frozen=True)
class Begin:
    """Describes the columns of the next messages."""

    shape: FoldShape


@dataclass(frozen=True)
class Add:
    """Fold the rows in the mailbox."""

    columns: Parcel


@dataclass(frozen=True)
class Test:
    """Read these spans, and run the model's `test_step` on their rows.

    Args:
        job: The job; its kept columns include labels and weights.
        spans: The spans.
        targets: How labels and weights are read.
    """

    job: Job
    spans: tuple[Span, ...]
    targets: Targets


@dataclass(frozen=True)
class Added:
    """The rows are folded. `failures` are the rows of a `Test` that failed."""

    failures: tuple[RowFailure, ...] = ()


@dataclass(frozen=True)
class End:
    """There are no more rows: answer with the results."""
