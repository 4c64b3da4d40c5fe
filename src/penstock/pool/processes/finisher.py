"""The main of a finisher process: `python -m penstock.pool.processes.finisher CHANNEL BOARD INBOX OUTBOX`.

It applies the user's function to results, one after the other. What the function prints goes to the log.
"""

import sys

import pyarrow as pa

from penstock.core.messages import Applied, Finish
from penstock.core.postprocessing import Postprocess, finish
from penstock.core.records import Block
from penstock.pool.processes.board import Board
from penstock.pool.processes.channel import Channel
from penstock.pool.processes.serving import BoardWatch, Serving
from penstock.pool.transfer.parcels import Mailbox


class FinisherProcess:
    """One finisher's side of the conversation."""

    def __init__(self, channel: Channel, inbox: Mailbox, outbox: Mailbox, board: Board) -> None:
        self._channel = channel
        self._inbox = inbox
        self._outbox = outbox
        self._watch = BoardWatch(board)
        self._function: Postprocess | None = None

    def serve(self) -> None:
        Serving(self._channel, self._handle, lambda message: False).serve()

    def _handle(self, order: Finish) -> None:
        self._function = function = order.function or self._function
        assert function is not None
        columns, watch = self._inbox.take(order.columns), self._watch
        watch.take(order.poisoned, is_careful=order.is_careful)
        if order.is_learning:
            rows = len(next(iter(columns.values())))
            learnt = function.on(columns).learn([Block(0, rows, columns)], watch)
            self._channel.send(Applied(learnt=learnt))
            return
        finished = finish(function, columns, order.kept, watch)
        self._channel.send(Applied(self._outbox.put(finished.columns), finished.failures))


def main() -> None:
    channel_descriptor, board_descriptor, inbox, outbox = map(int, sys.argv[1:5])
    sys.path += [entry for entry in sys.argv[5:] if entry not in sys.path]
    pa.set_cpu_count(1)
    channel, board = Channel.inherited(channel_descriptor), Board(board_descriptor)
    FinisherProcess(channel, Mailbox(inbox), Mailbox(outbox), board).serve()


if __name__ == "__main__":
    main()
