"""The line between the coordinator and one replica: small messages, whole, in order."""

from __future__ import annotations

import pickle
import socket
import struct
import threading
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from penstock.core.messages import Chunk, Emptied, Filled, Grant, LoadSpan, Release, SpanDone, SpanLoaded, Work

_PLAIN = (Chunk, Emptied, Filled, Grant, LoadSpan, Release, SpanDone, SpanLoaded, Work)


class Channel:
    """One end of the line. `send` may be called from several threads; `receive` from one."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    @classmethod
    def pair(cls, timeout_s: int = 0) -> tuple[Channel, int]:
        """This process's end, and the descriptor of the other one, to be inherited and then closed here.

        Args:
            timeout_s: `send` raises BlockingIOError if the other side reads nothing for so many seconds, and `receive`
                if it sends nothing, be it in the middle of a message; 0: they wait.
        """
        ours, theirs = socket.socketpair()
        for direction in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, direction, struct.pack("@ll", timeout_s, 0))
        return cls(Connection(ours.detach())), theirs.detach()

    @classmethod
    def inherited(cls, descriptor: int) -> Channel:
        return cls(Connection(descriptor))

    @property
    def connection(self) -> Connection[Any, Any]:
        """For waiting on several lines at once."""
        return self._connection

    def send(self, message: object) -> None:
        # By value where needed: a source or a builder may be of the user's __main__, which is not imported again.
        # What is sent for every batch is our own, and plain pickling takes a third of the time.
        is_plain = isinstance(message, _PLAIN)
        raw = pickle.dumps(message, pickle.HIGHEST_PROTOCOL) if is_plain else cloudpickle.dumps(message)
        with self._lock:
            self._connection.send_bytes(raw)

    def receive(self) -> Any:
        """The next message. Raises EOFError or OSError when the other side is gone."""
        return pickle.loads(self._connection.recv_bytes())

    def close(self) -> None:
        self._connection.close()
