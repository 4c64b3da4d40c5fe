"""Write checkpoints into a folder, after the newest that is there; `full` writes too large ones until that ends."""

import os
import sys

import numpy as np

from penstock.core.training import Checkpoint, Position, Progress
from penstock.errors import OutputError
from penstock.training.checkpoints import Cadence, CheckpointFolder, CheckpointKeeper

COUNT, KEEP = 6, 2


def checkpoint(step: int, size: int = 1000) -> Checkpoint:
    return Checkpoint(Progress(Position(0, step)), {"weights/0": np.full(size, step, np.float32)})


def main(path: str) -> None:
    folder = CheckpointFolder(path, KEEP)
    found = folder.newest()
    first = found.checkpoint.progress.position.step if found is not None else 0
    print(first)
    for step in range(first + 1, first + COUNT + 1):
        folder.write(checkpoint(step))


def fill(path: str) -> None:
    folder = CheckpointFolder(path, KEEP)
    keeper = CheckpointKeeper(folder, Cadence(steps=1), print)
    keeper.keep(checkpoint(1))
    try:
        for step in range(2, 10):
            keeper.keep(checkpoint(step, 16_000))
    except OutputError as error:
        print(error.problem)
    found = folder.newest()
    assert found is not None
    print(f"{found.checkpoint.progress.position.step} in {len(os.listdir(path))} file")


if __name__ == "__main__":
    (fill if sys.argv[2:] else main)(sys.argv[1])
