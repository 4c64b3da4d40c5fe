"""Running out of a device's memory: one message, whichever framework ran out."""

from __future__ import annotations

from penstock.core.records import Columns
from penstock.errors import OutOfMemory


def out_of_memory(batch: Columns, reason: str) -> OutOfMemory:
    """The error for a batch that did not fit; `reason` is the framework's own, in one line."""
    rows = len(next(iter(batch.values())))
    return OutOfMemory(
        "the device ran out of memory",
        received=f"a batch of {rows} rows: {reason}",
        hint=f"try --batch-size {max(1, rows // 2)}",
    )
