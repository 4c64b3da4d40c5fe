"""Where a sweep over batch sizes ends: what is left out, and why. Pure: points go in, sizes come out."""

from collections.abc import Sequence
from dataclasses import dataclass, field

MOST_ROWS = 1 << 16
MOST_BATCH_BYTES = 1 << 30
IN_A_ROW = 3
# Slower than this share of the best seen so far, and no longer getting faster: three sizes of that are enough.
HOPELESS = 0.6
STILL_GROWS = 1.05
# Larger sizes cost next to nothing while calls are as short as this: there is no reason to leave any out.
QUICK_CALL_S = 0.1


@dataclass(frozen=True)
class SweepPoint:
    """One batch size of one runtime, in one short window; `problem` says why it did not run."""

    batch_size: int
    rows_per_s: float = 0.0
    memory_bytes: int = 0
    problem: str | None = None


@dataclass
class Climb:
    """Every power of two of one runtime, until there is a reason to end.

    Args:
        most: The largest size that the input, or a batch of 1 GiB, allows.
        call_limit_s: What a call may take.
        room_bytes: The memory that its process may hold.
    """

    most: int
    call_limit_s: float
    room_bytes: int
    start: int = 1
    points: list[SweepPoint] = field(default_factory=list)

    def why_end(self, best_rate: float) -> str | None:
        """Why no larger size is tried; None where one is. `best_rate` is the best of all runtimes so far."""
        if not self.points:
            return None
        last, size = self.points[-1], self.next_size
        if last.problem is not None:
            return f"{last.batch_size:,} rows: {last.problem}"
        if size > self.most:
            return f"{self.most:,} rows are the most"
        # By the best of its sizes: one window that something else disturbed must not end it.
        seconds = size / max(point.rows_per_s for point in self.points)
        if seconds > self.call_limit_s * (1 if len(self.points) > 1 else IN_A_ROW):
            return f"a call of {size:,} rows would take {seconds:.1f} s"
        if self._memory_of(size) > self.room_bytes:
            return f"{size:,} rows would not fit into {self.room_bytes / 2**30:.1f} GiB"
        is_quick = last.batch_size / last.rows_per_s < QUICK_CALL_S
        if not is_quick and _is_hopeless([point.rows_per_s for point in self.points[-IN_A_ROW:]], best_rate):
            return f"the last {IN_A_ROW} sizes are below {HOPELESS:.0%} of the best, and none is faster than the others"
        return None

    @property
    def next_size(self) -> int:
        return 2 * self.points[-1].batch_size if self.points else min(self.start, self.most)

    def _memory_of(self, size: int) -> float:
        """What the last step took, carried on in a straight line."""
        if len(self.points) < 2:
            return 0.0
        before, last = self.points[-2:]
        slope = max(0, last.memory_bytes - before.memory_bytes) / (last.batch_size - before.batch_size)
        return last.memory_bytes + slope * (size - last.batch_size)


def _is_hopeless(last: Sequence[float], best_rate: float) -> bool:
    if len(last) < IN_A_ROW or max(last) >= HOPELESS * best_rate:
        return False
    return last[-1] < STILL_GROWS * max(last[:-1])
