"""How many rows may fail: one rule for predictions, evaluation and training."""

from __future__ import annotations

from penstock.errors import TooManyFailures

_JUDGED_FROM_ROWS = 100


def exceeds(failed: int, rows: int, allowed: float, *, is_whole: bool) -> bool:
    """Whether more rows failed than are allowed.

    Args:
        failed: How many rows failed.
        rows: How many rows were seen, those that failed among them.
        allowed: The share of rows that may fail. It is never allowed that every row of an input fails.
        is_whole: Whether these are all rows of the input. Until then, few rows are not judged.

    >>> exceeds(5, 20, 0.1, is_whole=False), exceeds(5, 20, 0.1, is_whole=True), exceeds(20, 20, 1.0, is_whole=True)
    (False, True, True)
    """
    if not failed or (rows < _JUDGED_FROM_ROWS and not is_whole):
        return False
    return failed > allowed * rows or (is_whole and failed == rows)


def too_many(received: str, allowed: float, hint: str) -> TooManyFailures:
    """The error with which such a job ends."""
    return TooManyFailures("too many rows failed", received=received, allowed=f"{100 * allowed:.3g}%", hint=hint)
