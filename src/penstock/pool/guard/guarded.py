"""A replica with a guard around it: every row of a batch gets its answer, or is named as a failure.

Rejected rows are found by bisection (`guard.bisection`). Batches that do not fit into the memory are cut into pieces
(`guard.pieces`), and fewer run at once (`guard.call_gate`). Rows that killed a replica are left out.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

import numpy as np

from penstock.core.batching import Batch
from penstock.core.job import Job
from penstock.core.memory import Ceilings
from penstock.core.messages import Care
from penstock.core.protocols import Replica
from penstock.core.records import Columns, RowFailure, Signature
from penstock.core.state import VARIABLES
from penstock.errors import InputError, ModelError, PenstockError, one_line
from penstock.pool.guard.bisection import Rejected, ShapeRejected, answer, masked, row_at, size_of
from penstock.pool.guard.call_gate import CallGate, Report
from penstock.pool.guard.pieces import Order, PieceRunner, Step
from penstock.pool.processes.board import Board

_PARTS = 8
"""Suspected rows are divided into so many groups: starting a process again costs more than a few batches."""


class RowTooLarge(Exception):
    """A single row that does not fit into the memory of the device."""


class GuardedReplica:
    """A live model, and what is done when it rejects rows or runs out of memory. Used by several threads at once.

    Args:
        replica: The live model.
        device: Where it is, for the messages.
        report: Takes every shortage of memory, and the ceilings that are known after it.
        ceilings: The ceilings that are known already, from a replica that was here before.
        is_alone: Never run two batches at once: the replica before this one died, and the next death must show its row.
        board: Where to write what is under way, for the coordinator that finds this process dead.
        give_up: Ends this process, where another can be started: after `bad_alloc`, native code such as TensorFlow's
            may hold its own locks for ever.
        pause: Waits for memory that others may give back.
    """

    def __init__(
        self,
        replica: Replica,
        device: str,
        report: Report,
        *,
        ceilings: Mapping[int, int] | None = None,
        is_alone: bool = False,
        board: Board | None = None,
        give_up: Callable[[MemoryError], NoReturn] | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.replica = replica
        self._may_reject_shapes = False
        self._left_out: dict[int, RowFailure] = {}
        self._care: dict[int, Care] = {}
        self._gate = CallGate(replica, device, report, Ceilings(ceilings), 1 if is_alone else None, board)
        self._pieces = PieceRunner(self._gate, give_up, pause)

    @property
    def signature(self) -> Signature:
        return self.replica.signature

    def take(self, job: Job) -> None:
        """Predict batches of this job from now on."""
        self._pieces.state = job.state
        # Where each size of rows has its own shape, the model may reject one shape and take the others.
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
        """Lower the ceilings to those that another replica on the same memory found."""
        self._gate.limit(ceilings)

    def predict(self, batch: Batch, span_start: int) -> tuple[Columns | None, list[RowFailure]]:
        """The answers to a batch of a span, and the rows that have none.

        The answers are None where the model rejects the shape of the batch, and the job has one shape for each size.

        Raises:
            PenstockError: No row is to blame: there is no memory at all, or the model rejects even an empty batch.
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
        if self._pieces.state == VARIABLES:
            return self._answer_in_turn(batch), []

        def number(place: int) -> int:
            return span_start + int(batch.positions[place])

        arrays, left_out = self._with_stand_ins(batch, span_start)
        spares = {name: array[: batch.rows] for name, array in arrays.items()}
        step: Step = lambda piece, rows: answer(self.replica, piece, rows, spares)  # noqa: E731
        care = self._care.get(span_start)
        order = Order(arrays, batch.rows, step, number, left_out, care is not None)
        if care is not None and (suspected := care.suspects.get(number(0))) is not None:
            self._try_few(order, *suspected)
        outputs, rejected, batch.reduced_to = self._pieces.run_batch(order)
        rejected = rejected | {place: (failure.error, failure.reason) for place, failure in left_out.items()}
        return outputs, _to_failures(dict(sorted(rejected.items())), batch, span_start)

    def runnable(self, batch: Batch, span_start: int) -> Columns:
        """The arrays of a batch, with other rows in the places of those that killed a replica."""
        return self._with_stand_ins(batch, span_start)[0]

    def call(self, arrays: Columns) -> Columns:
        """The answers to arrays that are no batch of a span, as the model gives them; in pieces where they do not fit.

        Raises:
            RowTooLarge: A single row does not fit.
            OutOfMemory: No row fits, or the model takes batches of one size only.
        """
        outputs, rejected, _ = self._pieces.run_batch(Order(arrays, size_of(arrays), self._pieces.plain_step))
        for _, reason in rejected.values():
            raise RowTooLarge(reason)
        return outputs

    def _with_stand_ins(self, batch: Batch, span_start: int) -> tuple[Columns, dict[int, RowFailure]]:
        """The arrays of a batch, with other rows in the places of those that killed a replica, and these places."""
        if not self._left_out:
            return batch.arrays, {}
        known = ((place, self._left_out.get(span_start + int(batch.positions[place]))) for place in range(batch.rows))
        left_out = {place: failure for place, failure in known if failure is not None}
        if not left_out:
            return batch.arrays, {}
        alive = np.ones(size_of(batch.arrays), dtype=bool)
        alive[list(left_out)] = False
        alive[batch.rows :] = alive[batch.rows - 1]  # what fills the batch up is its last row
        fill = self._pieces.harmless(batch.arrays)
        if fill is None and alive[: batch.rows].any():
            fill = row_at(batch.arrays, int(np.argmax(alive)))
        return masked(batch.arrays, alive, fill), left_out

    def _try_few(self, order: Order, start: int, stop: int) -> None:
        """Run a few of these rows at a time, with harmless ones in all other places: a death shows which rows ran.

        At first none of them runs: if the model dies then, no row is to blame. Rows that the model rejects are tried in
        halves: a row that it rejects may hide one at which it dies. The answers are not used.
        """
        fill = self._pieces.harmless(order.arrays)
        few = -(-(stop - start) // _PARTS)
        tried = deque([(start, start), *((at, min(at + few, stop)) for at in range(start, stop, few))])
        while tried:
            first, last = tried.popleft()
            alive = np.zeros(size_of(order.arrays), dtype=bool)
            alive[first:last] = True
            try:
                self._pieces.try_whole(order, masked(order.arrays, alive, fill), first, last)
            except Exception:
                middle = (first + last) // 2
                tried.extendleft([(middle, last), (first, middle)] if last - first > 1 else [])

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


def _to_failures(rejected: Rejected, batch: Batch, span_start: int) -> list[RowFailure]:
    return [
        RowFailure(span_start + int(batch.positions[place]), "", "predict", error, reason)
        for place, (error, reason) in rejected.items()
    ]
