"""The main of the process that trains: `python -m penstock.training.trainer_process CHANNEL BOARD`.

It holds the model on all its devices, starts its own loaders, and writes checkpoints, history and the trained model.
"""

import faulthandler
import sys
import threading
from typing import Any

import pyarrow as pa

from penstock.pool.processes.board import Board
from penstock.pool.processes.channel import Channel
from penstock.pool.processes.serving import Serving
from penstock.training.file_training import FileTraining
from penstock.training.fit_job import Stop, Train
from penstock.training.stages import StageClock


class TrainerProcess:
    """Handles the messages of the coordinator."""

    def __init__(self, channel: Channel, board: Board) -> None:
        self._channel = channel
        self._board = board
        self._stop = threading.Event()

    def serve(self) -> None:
        Serving(self._channel, self._handle, self._take_at_once).serve()

    def _take_at_once(self, message: Any) -> bool:
        if isinstance(message, Stop):
            self._stop.set()
            return True
        return False

    def _handle(self, message: Any) -> None:
        assert isinstance(message, Train)
        sys.path += [entry for entry in message.sys_path if entry not in sys.path]
        clock = StageClock(self._board, is_traced=message.job.options.trace is not None)
        FileTraining(message.job, self._channel.send, self._stop.is_set, clock).run()


def main() -> None:
    channel, board = map(int, sys.argv[1:3])
    faulthandler.enable()
    pa.set_cpu_count(1)
    TrainerProcess(Channel.inherited(channel), Board(board)).serve()


if __name__ == "__main__":
    main()
