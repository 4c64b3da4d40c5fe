"""The first worker of a gang, on a machine that is cut off while it writes and comes back: `OUTPUT STAGING POINT`.

It freezes at a crash point of its second checkpoint, until somebody sends SIGCONT, and then goes on writing.
"""

import contextlib
import os
import signal
import sys

import numpy as np

from penstock import crash_points
from penstock.core.training import Checkpoint, Position, Progress
from penstock.crash_points import Point
from penstock.storage.disk import make_folders
from penstock.training.checkpoints import CheckpointFolder
from penstock.training.history import TrainingRecords

KEEP = 2


class _Freeze:
    def __init__(self, point: str) -> None:
        self._point, self._left = point, 2

    def visit(self, point: Point) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGSTOP)


class Writer:
    """Writes what the first worker writes. Its weights are its mark."""

    def __init__(self, output: str, staging: str, mark: float) -> None:
        make_folders(output)
        self._mark = mark
        self.checkpoints = CheckpointFolder(os.path.join(output, "checkpoints"), KEEP, staging)
        self._records = TrainingRecords(output, 1, staging=staging)

    def begin(self) -> int:
        """Go on from the newest checkpoint; its step."""
        found = self.checkpoints.newest()
        start = found.checkpoint if found is not None else None
        position = start.progress.position if start is not None else Position()
        self._records.begin(position, start.records if start is not None else None)
        return position.step

    def step(self, number: int) -> None:
        """A step, which is an epoch, and its checkpoint."""
        position = Position(number - 1, number)
        self._records.step(position, lambda: {"loss": self._mark})
        self._records.epoch(position, {"loss": self._mark})
        state = {"weights/0": np.full(50_000, self._mark, np.float32)}
        self.checkpoints.write(Checkpoint(Progress(position), state, records=self._records.state()))

    def close(self) -> None:
        self._records.close()


def main(output: str, staging: str, point: str) -> None:
    writer = Writer(output, staging, mark=1.0)
    writer.begin()
    crash_points._crash = _Freeze(point)  # type: ignore[assignment]
    for number in range(1, 9):
        with contextlib.suppress(OSError):  # as whoever keeps checkpoints does
            writer.step(number)
    writer.begin()
    writer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
