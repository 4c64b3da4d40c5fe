"""What the process that converts models tells the tests, which import no TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.agreement import Strangers
from penstock.core.records import Columns, Signature

ROWS = 6


@dataclass(frozen=True)
class Told:
    """What became of one model: why it was not converted, what it was fed, and what TensorFlow answered."""

    reason: str | None
    batch: Columns
    answers: Columns
    signature: Signature
    strangers: dict[str, Strangers]
