"""The processes of I: one fills a batch in place and hands it over, another reads it; between them may stand a third.

`python -m bench.hand_over_child COUNT ROUNDS` prints the times. The clock starts when the batch is decoded in its slot,
and stops when it is an array in the other process: the moment travels in the batch itself, and both read one clock.
"""

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median, quantiles
from typing import Any

import numpy as np

from penstock.core.batching import Batch
from penstock.core.messages import Emptied, Filled
from penstock.pool.processes.channel import Channel
from penstock.pool.transfer.batches import SlotRoom, open_batch
from penstock.pool.transfer.results import Assembly, Writable
from penstock.pool.transfer.slots import FreeSlots, Slots

ROWS = 128
SHAPE = (ROWS, 224, 224, 3)
BATCH_BYTES = int(np.prod(SHAPE))
SLOT_COUNT = 4
TO_MS = 1000.0


def main(count: int, rounds: int) -> None:
    times: dict[str, list[float]] = {"direct": [], "relayed": [], "queue": []}
    for _ in range(rounds):
        with _reader(has_relay=False) as slots_and_line:
            times["direct"] += through_slots(*slots_and_line, count)
        with _reader(has_relay=True) as slots_and_line:
            times["relayed"] += through_slots(*slots_and_line, count)
        times["queue"] += through_queue(count)
    document: dict[str, Any] = {way: _summary(seconds) for way, seconds in times.items()}
    print(json.dumps({**document, "megabytes": BATCH_BYTES / 1e6}))


def _summary(seconds: list[float]) -> dict[str, float]:
    return {"p50_ms": TO_MS * median(seconds), "p95_ms": TO_MS * quantiles(seconds, n=20)[-1]}


def through_slots(slots: Slots, line: Channel, count: int) -> list[float]:
    """Fill and hand over batches as a loader does, and collect what the reader measured."""
    free = FreeSlots(range(SLOT_COUNT))
    room = SlotRoom(Writable(slots, free, line.send))
    times = []
    for index in range(count):
        arrays = room({"image": (SHAPE, np.uint8)})
        _fill(arrays["image"], index)
        line.send(room.seal(0, Batch(index, range(ROWS), ROWS, arrays)))
        emptied, seconds = line.receive()
        free.give_back(emptied.slot)
        times.append(seconds)
    return times


def _fill(image: Any, index: int) -> None:
    """Write every byte, as decoding does, and last the moment at which the batch is whole."""
    moment = image.reshape(-1)[:8].view(np.float64)
    image[...] = index % 251
    moment[0] = time.perf_counter()


def _seconds_since_filled(image: Any, index: int) -> float:
    """To be called when the array is there: when it was filled stands in its first bytes."""
    seconds = time.perf_counter() - float(image.reshape(-1)[:8].view(np.float64)[0])
    if image.shape != SHAPE or not (image[-1] == index % 251).all():
        raise ValueError(f"batch {index} is not what was handed over")
    return seconds


@contextmanager
def _reader(has_relay: bool) -> Iterator[tuple[Slots, Channel]]:
    """Another process with the same slots, at the end of a line; with a relay, a third one passes messages on."""
    slots = Slots.create(SLOT_COUNT, BATCH_BYTES)
    processes = []
    line, theirs = Channel.pair()
    if has_relay:
        onward, far = Channel.pair()
        processes.append(_start("relay", theirs, onward.connection.fileno()))
        onward.close()
        theirs = far
    processes.append(_start("read", theirs, slots.descriptor))
    try:
        yield slots, line
    finally:
        line.close()
        for process in processes:
            process.wait(timeout=30)
        slots.close()


def _start(role: str, line: int, other: int) -> subprocess.Popen[bytes]:
    """Start a process that inherits two descriptors; the end of the line is closed here."""
    command = [sys.executable, "-m", "bench.hand_over_child", role, str(line), str(other)]
    process = subprocess.Popen(command, pass_fds=(line, other))
    os.close(line)
    return process


def read(line_descriptor: int, slots_descriptor: int) -> None:
    """Be the process that reads batches, as a replica does."""
    line, slots = Channel.inherited(line_descriptor), Slots(slots_descriptor, SLOT_COUNT, BATCH_BYTES)
    assembly = Assembly(slots)
    for filled in _messages(line):
        batch = open_batch(filled, slots, assembly)
        seconds = _seconds_since_filled(batch.arrays["image"], filled.index)
        assert filled.slot is not None
        line.send((Emptied(filled.slot), seconds))


def relay(line_descriptor: int, onward_descriptor: int) -> None:
    """Be the coordinator between a loader and a replica: it passes on messages and sees no batch."""
    line, onward = Channel.inherited(line_descriptor), Channel.inherited(onward_descriptor)
    for filled in _messages(line):
        onward.send(filled)
        line.send(onward.receive())


def _messages(line: Channel) -> Iterator[Filled]:
    try:
        while True:
            yield line.receive()
    except (EOFError, OSError):
        return  # the other side is done


def through_queue(count: int) -> list[float]:
    """Hand over the same array through multiprocessing.Queue."""
    spawning = multiprocessing.get_context("spawn")
    batches: Any = spawning.Queue()
    answers: Any = spawning.Queue()
    process = spawning.Process(target=_read_queue, args=(batches, answers, count))
    process.start()
    image, times = np.empty(SHAPE, np.uint8), []
    for index in range(count):
        _fill(image, index)
        batches.put((index, image))
        times.append(answers.get())
    process.join()
    return times


def _read_queue(batches: Any, answers: Any, count: int) -> None:
    for _ in range(count):
        index, image = batches.get()
        answers.put(_seconds_since_filled(image, index))


ROLES: dict[str, Callable[[int, int], None]] = {"read": read, "relay": relay}

if __name__ == "__main__":
    if sys.argv[1] in ROLES:
        ROLES[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))
    else:
        main(int(sys.argv[1]), int(sys.argv[2]))
