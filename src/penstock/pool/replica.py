"""The main of a replica process: `python -m penstock.pool.replica CHANNEL SLOTS`.

Device, memory and threads were pinned in the environment before this process began. It serves the coordinator until
the line is closed, and ends at once when it is: a coordinator that was killed leaves no process behind.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import traceback
from typing import Any

from penstock.core.events import Drain, Failed, Load, Loaded, Prepare, Prepared, Release, Returned, Work
from penstock.core.protocols import Replica
from penstock.core.records import Result, Timings
from penstock.errors import PenstockError
from penstock.pool.channel import Channel
from penstock.pool.pipeline import Pipeline
from penstock.pool.slots import FreeSlots, Slots
from penstock.pool.transfer import send
from penstock.pool.warmup import warm_up


class ReplicaProcess:
    """One replica's side of the conversation."""

    def __init__(self, channel: Channel, slots: Slots) -> None:
        self._channel = channel
        self._slots = slots
        self._free = FreeSlots(slots)
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._replica: Replica | None = None
        self._pipeline: Pipeline | None = None

    def serve(self) -> None:
        threading.Thread(target=self._listen, daemon=True, name="listener").start()
        while True:
            message = self._inbox.get()
            try:
                self._handle(message)
            except BaseException as error:
                self._fail(error)

    def _listen(self) -> None:
        """Runs beside everything else, so that slots are released and a lost coordinator is noticed at any time."""
        while True:
            try:
                message = self._channel.receive()
            except (EOFError, OSError):
                os._exit(0)
            except Exception as error:  # a message that cannot be read: the job cannot go on, but must be told so
                self._fail(error)
                continue
            if isinstance(message, Release):
                self._free.give_back(message.slot)
            else:
                self._inbox.put(message)

    def _handle(self, message: object) -> None:
        match message:
            case Load(runtime=runtime, model=model, device=device, threads=threads, import_path=path):
                sys.path += [entry for entry in path if entry not in sys.path]
                self._replica = runtime.load(model, device, threads)
                self._channel.send(Loaded(self._replica.signature))
            case Prepare():
                self._channel.send(self._prepare(message))
            case Work(span=span):
                assert self._pipeline is not None
                self._pipeline.add(span)
            case Drain():
                unbegun = self._pipeline.drain() if self._pipeline is not None else []
                self._channel.send(Returned(tuple(span.index for span in unbegun)))

    def _prepare(self, message: Prepare) -> Prepared:
        assert self._replica is not None
        prepared = warm_up(self._replica, message.job, message.sample)
        self._pipeline = Pipeline(
            self._replica, message.job, self._emit, self._fail, loaders=message.loaders, lanes=message.lanes
        )
        return prepared

    def _emit(self, result: Result, timings: Timings) -> None:
        send(result, timings, self._slots, self._free, self._channel.send)

    def _fail(self, error: BaseException) -> None:
        details = "".join(traceback.format_exception(error))
        sys.stderr.write(details)
        sys.stderr.flush()
        known = error if isinstance(error, PenstockError) else None
        self._channel.send(Failed(known, type(error).__name__, details))


def main() -> None:
    channel_descriptor, slots_descriptor, count, slot_bytes = map(int, sys.argv[1:])
    channel = Channel.inherited(channel_descriptor)
    ReplicaProcess(channel, Slots(slots_descriptor, count, slot_bytes)).serve()


if __name__ == "__main__":
    main()
