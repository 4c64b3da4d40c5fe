"""Crash points: named steps of the commit protocol at which a test has this process killed.

`PENSTOCK_CRASH_AT=journal_written:3` in the environment kills the process, by SIGKILL, when it comes to that point for
the third time. Without the variable a visit is one comparison, a few times for each part.
"""

import os
import signal
from typing import Literal, get_args

Point = Literal[
    "lock_opened",
    "lock_taken",
    "manifest_begun",
    "manifest_written",
    "manifest_synced",
    "manifest_renamed",
    "manifest_settled",
    "recovery_begun",
    "recovery_removed",
    "part_begun",
    "part_span_written",
    "part_closed",
    "part_synced",
    "failures_begun",
    "failures_written",
    "failures_synced",
    "publish_begun",
    "publish_renamed",
    "publish_unsettled",
    "publish_settled",
    "attempt_staged",
    "attempt_uploaded",
    "attempt_confirmed",
    "journal_begun",
    "journal_written",
    "journal_synced",
    "segment_written",
    "summary_begun",
    "summary_done",
    "retry_copied",
    "retry_merged",
    "replace_begun",
    "replace_recorded",
    "replace_done",
    "checkpoint_begun",
    "checkpoint_written",
    "checkpoint_synced",
    "checkpoint_renamed",
    "checkpoint_settled",
    "checkpoint_removed",
]
POINTS: tuple[Point, ...] = get_args(Point)
VARIABLE = "PENSTOCK_CRASH_AT"


class _Crash:
    """Counts the visits of one point, and kills this process at the one that was asked for."""

    def __init__(self, asked: str) -> None:
        self._point, _, visit = asked.partition(":")
        self._left = int(visit or 1)

    def visit(self, point: Point) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def arm(asked: str | None) -> None:
    """Let this process be killed at `point:visit`; None disarms it."""
    global _crash
    _crash = _Crash(asked) if asked else None


def crash_point(point: Point) -> None:
    """A step of the commit protocol: the process ends here where a test asks for it."""
    if _crash is not None:
        _crash.visit(point)


_crash: _Crash | None = None
arm(os.environ.get(VARIABLE))
