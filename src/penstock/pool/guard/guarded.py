"""A replica with a guard around it: every row of a batch gets its answer, or is named as a failure.

Rejected rows are found by bisection (`guard.bisection`). Batches that do not fit into the memory are cut into smaller
ones until they fit. When a batch does not fit, either several in flight were too much together, or it is too large by
itself. At the batch size of the job, fewer are let in at once first: the answers keep their bits. A batch that does not
fit alone is cut in half, and half of it is the ceiling for rows of that size from then on; below the job's own size the
bits are others anyway, and a smaller batch with all lanes busy is faster than a larger one alone.

A single row that does not fit is a row failure, and no reason to cut the batches of others. Whether it is the row, or
the device that has no memory left for any, is found out by running a row that has fitted before.
"""

from __future__ import annotations

import gc
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

import numpy as np

from penstock.core.batching import Batch
from penstock.core.columns import join, take_positions, to_lists
from penstock.core.job import Job
from penstock.core.memory import Ceilings
from penstock.core.messages import Care
from penstock.core.protocols import Replica, Stateful
from penstock.core.records import Column, Columns, RowFailure, Shortage, Signature
from penstock.core.state import NONE, VARIABLES
from penstock.errors import InputError, ModelError, OutOfMemory, PenstockError, one_line
from penstock.pool.guard.bisection import Rejected, ShapeRejected, answer, masked, row_at, size_of
from penstock.pool.processes.board import Board, Notice

_SMALL_BATCH = 32
"""Below this, one batch alone is faster than two halves at once."""
_HOPELESS = 8
"""So many single rows that do not fit, before any did: none will."""
_PAUSES_S = (0.0, 1.0, 2.0, 4.0, 8.0)
_MOST_PROVEN = 16
_PARTS = 8
"""Into so many parts suspected rows are divided: a process that starts anew costs more than a few batches."""

Step = Callable[[Columns, int], tuple[Columns, Rejected]]
"""Runs one piece, of which so many rows are real."""


class RowTooLarge(Exception):
    """A single row that does not fit into the memory of the device."""


@dataclass(frozen=True)
class _Order:
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

    def places(self, start: int, stop: int | None = None) -> _Places:
        """What a call of it is announced as, from the place `start` on."""
        if self.number is None:
            return _Places(start, -1, 0, 0, self.is_alone)
        stop = self.rows if stop is None else stop
        return _Places(self.number(start), self.number(0), start, stop, self.is_alone)


@dataclass(frozen=True)
class _Places:
    """Rows of a batch, as the board has them."""

    first_row: int
    batch_row: int
    start: int
    stop: int
    is_alone: bool = False


@dataclass(frozen=True)
class _Pieced:
    """The answers of a batch. `reduced_to` is the size of its smallest piece, where it was cut."""

    outputs: Columns
    rejected: Rejected
    reduced_to: int | None = None


@dataclass(eq=False)
class _Call:
    """One call of the model. `company` is the most that were under way at once while it ran, itself included."""

    places: _Places
    rows: int
    row_bytes: int
    generation: int
    company: int = 1


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
        """All answers, and after them the last one over and over. Rows without one have that of another row."""
        for piece in self.pieces:
            if piece is not None:
                example = _first_row(piece)
                break
        if example is None:
            return None
        whole = [example if piece is None else piece for piece in self.pieces] or [example]
        outputs = {name: joined([piece[name] for piece in whole]) for name in example}
        places = np.minimum(np.arange(size), len(next(iter(outputs.values()))) - 1)
        return {name: take_positions(output, places) for name, output in outputs.items()}


class GuardedReplica:
    """A live model, and what is done when it rejects rows or runs out of memory. Used by several threads at once.

    Args:
        replica: The live model.
        device: Where it is, for the messages.
        tell: Takes every shortage of memory, and the ceilings that are known since.
        ceilings: The ceilings that are known already, from a replica that was here before.
        is_alone: Never run two batches at once: the one before died, and it must be seen at which row this one does.
        board: Where to write what is under way, for the coordinator that finds this process dead.
        give_up: Ends this process, where another can be started: one in which native code was interrupted by
            `bad_alloc` may hold its own locks for ever, as TensorFlow does.
        pause: Waits for memory that others may give back.
    """

    def __init__(
        self,
        replica: Replica,
        device: str,
        tell: Callable[[Shortage, Mapping[int, int]], None],
        *,
        ceilings: Mapping[int, int] | None = None,
        is_alone: bool = False,
        board: Board | None = None,
        give_up: Callable[[MemoryError], NoReturn] | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.replica = replica
        self._state = NONE
        self._may_reject_shapes = False
        self._left_out: dict[int, RowFailure] = {}
        self._care: dict[int, Care] = {}
        self._device = device
        self._tell = tell
        self._ceilings = Ceilings(ceilings)
        self._most_at_once = 1 if is_alone else None
        self._at_once = self._most_at_once
        self._board = board
        self._give_up = give_up
        self._pause = pause
        self._generation = 0
        self._calls: list[_Call] = []
        self._waiting_alone = 0
        self._changed = threading.Condition()
        self._proven: dict[int, Columns] = {}
        self._example: Columns | None = None
        self._unproven = 0

    @property
    def signature(self) -> Signature:
        return self.replica.signature

    def take(self, job: Job) -> None:
        """Predict batches of this job from now on."""
        self._state = job.state
        # Where each size has a shape of its own, one may be rejected by itself.
        self._may_reject_shapes = job.fewest_rows is not None

    def leave_out(self, failures: Iterable[RowFailure]) -> None:
        """Never run these rows again: they killed a replica."""
        self._left_out |= {failure.row: failure for failure in failures}

    def take_care(self, span_start: int, care: Care | None) -> None:
        """Run the batches of a span with care, or, with None, as all others."""
        self._care.pop(span_start, None)
        if care is not None:
            self._care[span_start] = care

    def limit(self, ceilings: Mapping[int, int]) -> None:
        """Others on the same memory found out that more does not fit."""
        with self._changed:
            for row_bytes, most in ceilings.items():
                self._ceilings.lower(row_bytes, most)

    def predict(self, batch: Batch, span_start: int) -> tuple[Columns | None, list[RowFailure]]:
        """The answers to a batch of a span, and the rows that have none.

        Without any answers, where the model rejects the shape of the batch and the job has one shape for each size.

        Raises:
            PenstockError: Not a matter of rows: no memory at all, or the model rejects even an empty batch.
        """
        try:
            return self.answer(batch, span_start)
        except ShapeRejected as error:
            if not self._may_reject_shapes:
                raise
            why = ("ModelError", error.received or error.problem)
            return None, _to_failures(dict.fromkeys(range(batch.rows), why), batch, span_start)

    def answer(self, batch: Batch, span_start: int) -> tuple[Columns, list[RowFailure]]:
        """As `predict`; a shape that the model rejects is an error.

        Raises:
            PenstockError: As `predict`.
            ShapeRejected: The model rejects batches of this shape, whatever is in them.
        """
        if self._state == VARIABLES:
            return self._answer_in_turn(batch), []

        def number(place: int) -> int:
            return span_start + int(batch.positions[place])

        left_out = self._left_out_of(batch, span_start)
        arrays = self._without(left_out, batch)
        spares = {name: array[: batch.rows] for name, array in arrays.items()}
        step: Step = lambda piece, rows: answer(self.replica, piece, rows, spares)  # noqa: E731
        care = self._care.get(span_start)
        order = _Order(arrays, batch.rows, step, number, left_out, care is not None)
        if care is not None and (suspected := care.suspects.get(number(0))) is not None:
            self._try_few(order, *suspected)
        pieced = self._in_pieces(order)
        batch.reduced_to = pieced.reduced_to
        rejected = pieced.rejected | {place: (failure.error, failure.reason) for place, failure in left_out.items()}
        return pieced.outputs, _to_failures(dict(sorted(rejected.items())), batch, span_start)

    def runnable(self, batch: Batch, span_start: int) -> Columns:
        """The arrays of a batch, with others in the places of rows that killed a replica."""
        return self._without(self._left_out_of(batch, span_start), batch)

    def _left_out_of(self, batch: Batch, span_start: int) -> dict[int, RowFailure]:
        """The places of a batch whose rows killed a replica."""
        if not self._left_out:
            return {}
        known = ((place, self._left_out.get(span_start + int(batch.positions[place]))) for place in range(batch.rows))
        return {place: failure for place, failure in known if failure is not None}

    def _without(self, left_out: Mapping[int, RowFailure], batch: Batch) -> Columns:
        if not left_out:
            return batch.arrays
        alive = np.ones(size_of(batch.arrays), dtype=bool)
        alive[list(left_out)] = False
        alive[batch.rows :] = alive[batch.rows - 1]  # what fills the batch up is its last row
        fill = self._harmless(batch.arrays)
        if fill is None and alive[: batch.rows].any():
            fill = row_at(batch.arrays, int(np.argmax(alive)))
        return masked(batch.arrays, alive, fill)

    def _harmless(self, arrays: Columns) -> Columns | None:
        """A row of this shape that ran before; None, for zeros, where there is none."""
        row = self._proven.get(bytes_of_a_row(arrays))
        if row is None or any(row[name].shape[1:] != array.shape[1:] for name, array in arrays.items()):
            return None
        return row_at(row, 0)

    def _try_few(self, order: _Order, start: int, stop: int) -> None:
        """Run a few of these rows at a time, with harmless ones in all other places: a death names those that run.

        First none of them: a model that dies of that does not die of a row. Where it rejects some, they are tried in
        halves: one that it rejects may hide one that it dies of. What it answers does not matter here.
        """
        size, row_bytes = size_of(order.arrays), bytes_of_a_row(order.arrays)
        fill = self._harmless(order.arrays)
        few = -(-(stop - start) // _PARTS)
        tried = deque([(start, start), *((at, min(at + few, stop)) for at in range(start, stop, few))])
        while tried:
            first, last = tried.popleft()
            alive = np.zeros(size, dtype=bool)
            alive[first:last] = True
            call = self._enter(order.places(first, last), row_bytes, size)
            try:
                self._run(call, masked(order.arrays, alive, fill), 0, order.rows, self._call)
            except Exception:
                middle = (first + last) // 2
                tried.extendleft([(middle, last), (first, middle)] if last - first > 1 else [])

    def call(self, arrays: Columns) -> Columns:
        """The answers to arrays that are no batch of a span, as the model gives them; in pieces where they do not fit.

        Raises:
            RowTooLarge: A single row does not fit.
            OutOfMemory: No row fits, or the model takes batches of one size only.
        """
        pieced = self._in_pieces(_Order(arrays, size_of(arrays), self._call))
        for _, reason in pieced.rejected.values():
            raise RowTooLarge(reason)
        return pieced.outputs

    def _call(self, piece: Columns, rows: int) -> tuple[Columns, Rejected]:
        return self.replica.predict(piece), {}

    def _answer_in_turn(self, batch: Batch) -> Columns:
        """The answers of a model that every call changes: each batch is run once, whole, or the job ends."""
        if batch.failures:
            failure = batch.failures[0]
            raise InputError(
                "a row failed, and the model keeps state: the answers of all rows after it depend on it",
                received=f"row {failure.row}: {failure.reason}",
                hint="mend the row, or leave it out of the input",
            )
        try:
            return self.replica.predict(batch.arrays)
        except (PenstockError, MemoryError):
            raise
        except Exception as error:
            raise ModelError(
                "the model rejects a batch, and it keeps state: the rows at fault cannot be looked for",
                received=one_line(error),
                hint="mend the rows, or leave them out of the input",
            ) from error

    def _in_pieces(self, order: _Order) -> _Pieced:
        """Run a batch in as few pieces as fit. All pieces have one size."""
        size, row_bytes = size_of(order.arrays), bytes_of_a_row(order.arrays)
        before = self._ceilings.known.get(row_bytes)
        gathered = _Gathered()
        put_back: Shortage | None = None
        place = 0
        while place < order.rows:
            # Where all of the batch runs at once, every row keeps its place.
            is_whole = place == 0 and len(order.left_out) < order.rows and self._most(row_bytes, size) == size
            if (failure := order.left_out.get(place)) is not None and not is_whole:
                gathered.reject(place, (failure.error, failure.reason))
                place += 1
                continue
            call = self._enter(order.places(place), row_bytes, size)
            real = min(call.rows, order.rows - place)
            answered = self._run(call, order.arrays, place, real, order.step)
            if not isinstance(answered, str):
                if call.rows == size and place == 0:
                    return _Pieced(*answered)
                gathered.add(place, real, call.rows, *answered)
                place += call.rows
            elif not self._make_room(call, size):
                is_to_blame = self._is_to_blame(call, answered)
                if is_to_blame:
                    gathered.reject(place, ("OutOfMemory", f"does not fit into the memory by itself: {answered}"))
                    place += 1
                put_back = Shortage(self._device, 1, 0 if is_to_blame else 1)
            if put_back is not None and self._proven:
                # It was that row, or that moment: neither says anything about the rows to come.
                self._put_back(row_bytes, before, put_back)
                put_back = None
        outputs = gathered.to_size(size, self._example)
        if outputs is None:
            raise self._nothing_fits(next(iter(gathered.rejected.values()))[1])
        return _Pieced(outputs, gathered.rejected, gathered.smallest if gathered.smallest != size else None)

    def _most(self, row_bytes: int, size: int) -> int:
        return self._ceilings.most(row_bytes, size) if self._is_divisible else size

    def _enter(self, places: _Places, row_bytes: int, size: int) -> _Call:
        """Wait for a turn; how much may run is known only then."""
        with self._changed:
            self._waiting_alone += places.is_alone
            while self._must_wait(places.is_alone):
                self._changed.wait()
            self._waiting_alone -= places.is_alone
            call = _Call(places, self._most(row_bytes, size), row_bytes, self._generation)
            self._calls.append(call)
            for each in self._calls:
                each.company = max(each.company, len(self._calls))
            self._announce()
            return call

    def _must_wait(self, is_alone: bool) -> bool:
        if is_alone:
            return bool(self._calls)
        if self._waiting_alone or any(call.places.is_alone for call in self._calls):
            return True
        return self._at_once is not None and len(self._calls) >= self._at_once

    def _leave(self, call: _Call) -> None:
        with self._changed:
            self._calls.remove(call)
            self._announce()
            self._changed.notify_all()

    def _announce(self) -> None:
        if self._board is None:
            return
        if self._calls:
            last, places = self._calls[-1], self._calls[-1].places
            stop = min(places.stop, places.start + last.rows)
            self._board.put(
                Notice(
                    time.monotonic(), places.first_row, last.rows, last.row_bytes,
                    len(self._calls), places.batch_row, places.start, stop,
                )
            )  # fmt: skip
        else:
            self._board.clear()

    def _run(self, call: _Call, arrays: Columns, place: int, rows: int, step: Step) -> tuple[Columns, Rejected] | str:
        """The answers, or, where there was too little memory, the reason."""
        try:
            piece = _piece(arrays, place, call.rows)
            if self._state != NONE and isinstance(self.replica, Stateful):
                self.replica.turn(call.places.first_row)
            answered = step(piece, rows)
        except OutOfMemory as error:
            reason = error.received or error.problem
        except MemoryError as error:
            if self._give_up is not None:
                self._give_up(error)  # at once: already letting go of the stack trace may wait for such a lock
            reason = one_line(error)
        else:
            self._keep(call, piece, answered)
            return answered
        finally:
            self._leave(call)
        # Outside the except block: the stack trace holds what was on the device, and so does what refers to itself.
        gc.collect(1)
        return reason

    def _keep(self, call: _Call, piece: Columns, answered: tuple[Columns, Rejected]) -> None:
        """A row that fits, and what its answer looks like: for the day when another one does not."""
        outputs, rejected = answered
        if call.row_bytes in self._proven or len(self._proven) >= _MOST_PROVEN or 0 in rejected:
            return
        self._example = self._example or _first_row(outputs)
        self._proven[call.row_bytes] = {name: array[:1].copy() for name, array in piece.items()}

    def _make_room(self, call: _Call, size: int) -> bool:
        """After a call that did not fit: let fewer in at once, or cut smaller. False where it was one row, alone."""
        with self._changed:
            if call.generation != self._generation:
                return True  # another lane has made room since this call began
            can_be_cut = call.rows > 1 and self._is_divisible
            keeps_size = not can_be_cut or call.rows == size or call.rows <= _SMALL_BATCH
            if call.company > 1 and keeps_size:
                self._at_once = call.company - 1
                shortage = Shortage(self._device, call.rows, call.rows, self._at_once)
            elif can_be_cut:
                self._ceilings.lower(call.row_bytes, call.rows // 2)
                self._at_once = self._most_at_once
                shortage = Shortage(self._device, call.rows, call.rows // 2)
            else:
                return False
            self._generation += 1
            self._changed.notify_all()
            known = dict(self._ceilings.known)
        self._tell(shortage, known)
        return True

    @property
    def _is_divisible(self) -> bool:
        return self.signature.fixed_batch is None

    def _is_to_blame(self, call: _Call, reason: str) -> bool:
        """Whether a row that does not fit is too large, or the device had no memory for any, and has now."""
        if call.rows > 1:
            raise OutOfMemory(
                "a batch does not fit into the memory, and the model takes batches of one size only",
                received=f"{call.rows} rows on {self._device}: {reason}",
                hint="export the model with an open batch dimension, or make room on the device",
            )
        proven = self._proven.get(call.row_bytes) or next(iter(self._proven.values()), None)
        if proven is None:
            self._unproven += 1
            if self._unproven >= _HOPELESS:
                raise self._nothing_fits(reason)
            return True
        for seconds in _PAUSES_S:
            if seconds:
                self._pause(seconds)
            trial = self._enter(replace(call.places, batch_row=-1), bytes_of_a_row(proven), 1)
            if not isinstance(self._run(trial, proven, 0, 1, self._call), str):
                return seconds == 0.0
        raise OutOfMemory(
            "the device has no memory left, not even for a row that it has held before",
            received=f"{self._device}: {reason}",
            hint="does another program use it? what is committed stays: run it again when there is room",
        )

    def _put_back(self, row_bytes: int, before: int | None, shortage: Shortage) -> None:
        with self._changed:
            self._ceilings.put_back(row_bytes, before)
            known = dict(self._ceilings.known)
        self._tell(shortage, known)

    def _nothing_fits(self, reason: str) -> OutOfMemory:
        return OutOfMemory(
            "not even one row fits into the memory",
            received=f"{self._device}: {reason}",
            hint="use a device with more memory, or make room on this one",
        )


def bytes_of_a_row(arrays: Columns) -> int:
    """What a row of all inputs takes together; text counts as what points to it."""
    return sum(array.nbytes // max(1, len(array)) for array in arrays.values())


def _to_failures(rejected: Rejected, batch: Batch, span_start: int) -> list[RowFailure]:
    return [
        RowFailure(span_start + int(batch.positions[place]), "", "predict", error, reason)
        for place, (error, reason) in rejected.items()
    ]


def _piece(arrays: Columns, place: int, size: int) -> Columns:
    """`size` rows from `place` on; where there are fewer, the last one again and again."""
    have = size_of(arrays)
    if size == have and place == 0:
        return arrays
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
    # As long as the longest row of its piece: lists, as they would be from batch to batch.
    return join(pieces) if len(shapes) == 1 else to_lists(pieces)
