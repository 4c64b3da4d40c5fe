"""Batches on their way to an accelerator: the next ones are gathered and copied while a step runs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from penstock.core.training import TrainBatch

DEPTH = 2
"""Batches that wait on the device beside the one that is worked on."""


@dataclass
class PlacedBatch(TrainBatch):
    """A batch that is on the device; its source was released."""

    placed: Any = None


def placed_ahead(batches: Iterator[TrainBatch], place: Callable[[TrainBatch], Any]) -> Iterator[TrainBatch]:
    """The same batches, placed by a thread that is up to `DEPTH` batches ahead. Closing it ends the thread."""
    waiting: queue.Queue[Any] = queue.Queue(DEPTH)
    is_closed = threading.Event()
    thread = threading.Thread(target=_fill, args=(batches, place, waiting, is_closed), name="feeder", daemon=True)
    thread.start()
    try:
        while (item := waiting.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        is_closed.set()
        while thread.is_alive():  # it may wait for room
            try:
                waiting.get(timeout=0.01)
            except queue.Empty:
                continue
        thread.join()


def _fill(batches: Iterator[TrainBatch], place: Callable[[TrainBatch], Any], waiting: Any, is_closed: Any) -> None:
    last: BaseException | None = None
    try:
        for batch in batches:
            if is_closed.is_set():
                break
            placed = place(batch)
            waiting.put(PlacedBatch(batch.rows, {}, {}, {}, batch.numbers, placed=placed))
            batch.release()
    except BaseException as error:
        last = error
    finally:
        close = getattr(batches, "close", None)
        if close is not None:
            close()
        waiting.put(last)
