"""Runs a batch in as few pieces as fit into the memory of the device.

A single row that does not fit is a row failure, and no reason to cut the batches of others. A row that has fitted
before is run to find out whether the failed row is too large, or the device has no memory left for any row.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from penstock.core.columns import join, take_positions, to_lists
from penstock.core.protocols import Stateful
from penstock.core.records import Column, Columns, RowFailure, Shortage
from penstock.core.state import NONE
from penstock.errors import OutOfMemory, one_line
from penstock.pool.guard.bisection import Rejected, row_at, size_of
from penstock.pool.guard.call_gate import Call, CallGate
from penstock.pool.processes.board import Notice

_HOPELESS = 8
"""If so many single rows do not fit before any did, none will."""
_PAUSES_S = (0.0, 1.0, 2.0, 4.0, 8.0)
_MOST_PROVEN = 16

Step = Callable[[Columns, int], tuple[Columns, Rejected]]
"""Runs one piece, of which so many rows are real."""
Pieced = tuple[Columns, Rejected, int | None]
"""The answers of a batch, the rows that have none, and the size of its smallest piece, where it was cut."""


@dataclass(frozen=True)
class Order:
    """A batch to be run: `rows` of it are wanted; the others get the answer of the last of these.

    `number` turns a place in the batch into the number of the row, for the board; None where it is no batch of the job.
    `left_out` are places where others stand in for rows that are not run; they are never run alone. `is_alone`: nothing
    else runs meanwhile.
    """

    arrays: Columns
    rows: int
    step: Step
    number: Callable[[int], int] | None = None
    left_out: Mapping[int, RowFailure] = field(default_factory=dict)
    is_alone: bool = False

    def notice(self, start: int, stop: int | None = None) -> Notice:
        """The notice of a call that runs it from the place `start` on."""
        size, row_bytes = size_of(self.arrays), _bytes_of_a_row(self.arrays)
        if self.number is None:
            return Notice(0.0, start, size, row_bytes, batch_row=-1)
        stop = self.rows if stop is None else stop
        return Notice(0.0, self.number(start), size, row_bytes, 1, self.number(0), start, stop)


@dataclass
class _Gathered:
    """The answers of the pieces so far, in order; None for a single row that has none."""

    pieces: list[Columns | None] = field(default_factory=list)
    rejected: Rejected = field(default_factory=dict)
    smallest: int | None = None

    def add(self, place: int, rows: int, size: int, outputs: Columns, rejected: Rejected) -> None:
        self.pieces.append({name: output[:rows] for name, output in outputs.items()})
        self.rejected |= {place + inside: why for inside, why in rejected.items()}
        self.smallest = size if self.smallest is None else min(self.smallest, size)

    def reject(self, place: int, why: tuple[str, str]) -> None:
        self.pieces.append(None)
        self.rejected[place] = why

    def to_size(self, size: int, example: Columns | None) -> Columns | None:
        """All answers, filled up to `size` with the last one. Rows without an answer have that of another row."""
        example = next((_first_row(piece) for piece in self.pieces if piece is not None), example)
        if example is None:
            return None
        whole = [example if piece is None else piece for piece in self.pieces] or [example]
        outputs = {name: joined([piece[name] for piece in whole]) for name in example}
        places = np.minimum(np.arange(size), len(next(iter(outputs.values()))) - 1)
        return {name: take_positions(output, places) for name, output in outputs.items()}


@dataclass
class PieceRunner:
    """Runs batches through the gate. `state` is what a call changes in the model; the rest is `GuardedReplica`'s."""

    gate: CallGate
    give_up: Callable[[MemoryError], NoReturn] | None
    pause: Callable[[float], None]
    state: str = NONE
    _proven: dict[int, Columns] = field(default_factory=dict)
    _example: Columns | None = None
    _unproven: int = 0

    def plain_step(self, piece: Columns, rows: int) -> tuple[Columns, Rejected]:
        """What the model gives. If it rejects the piece, no row is searched for."""
        return self.gate.replica.predict(piece), {}

    def run_batch(self, order: Order) -> Pieced:
        """Run a batch in as few pieces as fit. Where a piece does not fit, the next ones are smaller."""
        gate, size, row_bytes = self.gate, size_of(order.arrays), _bytes_of_a_row(order.arrays)
        before = gate.ceilings.known.get(row_bytes)
        gathered = _Gathered()
        put_back: Shortage | None = None
        place = 0
        while place < order.rows:
            # Where all of the batch runs at once, every row keeps its place.
            is_whole = place == 0 and len(order.left_out) < order.rows and gate.most(row_bytes, size) == size
            if (failure := order.left_out.get(place)) is not None and not is_whole:
                gathered.reject(place, (failure.error, failure.reason))
                place += 1
                continue
            call = gate.enter(order.notice(place), is_alone=order.is_alone)
            run = call.notice.rows
            real = min(run, order.rows - place)
            answered = self._run(call, order.arrays, place, real, order.step)
            if not isinstance(answered, str):
                if run == size and place == 0:
                    return *answered, None
                gathered.add(place, real, run, *answered)
                place += run
            elif not gate.make_room(call, size):
                is_to_blame = self._is_to_blame(call, answered)
                if is_to_blame:
                    gathered.reject(place, ("OutOfMemory", f"does not fit into the memory by itself: {answered}"))
                    place += 1
                put_back = Shortage(gate.device, 1, 0 if is_to_blame else 1)
            if put_back is not None and self._proven:
                # That row or that moment was the cause: neither shows anything about the rows to come.
                gate.put_back(row_bytes, before, put_back)
                put_back = None
        outputs = gathered.to_size(size, self._example)
        if outputs is None:
            raise self._nothing_fits(next(iter(gathered.rejected.values()))[1])
        return outputs, gathered.rejected, gathered.smallest if gathered.smallest != size else None

    def try_whole(self, order: Order, arrays: Columns, start: int, stop: int) -> None:
        """Run `arrays` in the place of those of the order, announced as its places from `start` to `stop`."""
        call = self.gate.enter(order.notice(start, stop), is_alone=order.is_alone)
        self._run(call, arrays, 0, order.rows, self.plain_step)

    def harmless(self, arrays: Columns) -> Columns | None:
        """A row of this shape that ran before; None, for zeros, where there is none."""
        row = self._proven.get(_bytes_of_a_row(arrays))
        if row is None or any(row[name].shape[1:] != array.shape[1:] for name, array in arrays.items()):
            return None
        return row_at(row, 0)

    def _run(self, call: Call, arrays: Columns, place: int, rows: int, step: Step) -> tuple[Columns, Rejected] | str:
        """The answers, or, where there was too little memory, the reason."""
        try:
            piece = _piece(arrays, place, call.notice.rows)
            if self.state != NONE and isinstance(self.gate.replica, Stateful):
                self.gate.replica.turn(call.notice.first_row)
            answered = step(piece, rows)
        except OutOfMemory as error:
            reason = error.received or error.problem
        except MemoryError as error:
            if self.give_up is not None:
                self.give_up(error)  # at once: even freeing the stack trace may wait for a lock of native code
            reason = one_line(error)
        else:
            self._keep(call, piece, answered)
            return answered
        finally:
            self.gate.leave(call)
        # Outside the except block: its stack trace keeps memory of the device in use, and so do cycles of references.
        gc.collect(1)
        return reason

    def _keep(self, call: Call, piece: Columns, answered: tuple[Columns, Rejected]) -> None:
        """Keep a row that fits, and what its answer looks like: both are needed when another row does not fit."""
        outputs, rejected = answered
        row_bytes = call.notice.row_bytes
        if row_bytes in self._proven or len(self._proven) >= _MOST_PROVEN or 0 in rejected:
            return
        self._example = self._example or _first_row(outputs)
        self._proven[row_bytes] = {name: array[:1].copy() for name, array in piece.items()}

    def _is_to_blame(self, call: Call, reason: str) -> bool:
        """Whether a row that did not fit is too large; False if the device had no memory for any row, and has now."""
        if call.notice.rows > 1:
            raise OutOfMemory(
                "a batch does not fit into the memory, and the model takes batches of one size only",
                received=f"{call.notice.rows} rows on {self.gate.device}: {reason}",
                hint="export the model with an open batch dimension, or make room on the device",
            )
        proven = self._proven.get(call.notice.row_bytes) or next(iter(self._proven.values()), None)
        if proven is None:
            self._unproven += 1
            if self._unproven >= _HOPELESS:
                raise self._nothing_fits(reason)
            return True
        for seconds in _PAUSES_S:
            if seconds:
                self.pause(seconds)
            notice = call.notice._replace(rows=1, row_bytes=_bytes_of_a_row(proven), batch_row=-1)
            trial = self.gate.enter(notice, is_alone=call.is_alone)
            if not isinstance(self._run(trial, proven, 0, 1, self.plain_step), str):
                return seconds == 0.0
        raise OutOfMemory(
            "the device has no memory left, not even for a row that it has held before",
            received=f"{self.gate.device}: {reason}",
            hint="does another program use it? what is committed stays: run it again when there is room",
        )

    def _nothing_fits(self, reason: str) -> OutOfMemory:
        return OutOfMemory(
            "not even one row fits into the memory",
            received=f"{self.gate.device}: {reason}",
            hint="use a device with more memory, or make room on this one",
        )


def _bytes_of_a_row(arrays: Columns) -> int:
    """The bytes of a row of all inputs together; text counts as the pointers to it."""
    return sum(array.nbytes // max(1, len(array)) for array in arrays.values())


def _piece(arrays: Columns, place: int, size: int) -> Columns:
    """`size` rows from `place` on; where there are fewer, the last one is repeated."""
    have = size_of(arrays)
    if place + size <= have:
        return {name: array[place : place + size] for name, array in arrays.items()}
    places = np.minimum(np.arange(place, place + size), have - 1)
    return {name: array[places] for name, array in arrays.items()}


def _first_row(outputs: Columns) -> Columns:
    """The first row by itself: a view would keep all of them."""
    return {name: take_positions(output, np.zeros(1, np.int64)) for name, output in outputs.items()}


def joined(pieces: list[Column]) -> Column:
    """The answers of several batches, one after the other."""
    shapes = {piece.shape[1:] if isinstance(piece, np.ndarray) else None for piece in pieces}
    # Rows are as long as the longest one of their piece: they become lists, as rows of different batches do.
    return join(pieces) if len(shapes) == 1 else to_lists(pieces)
