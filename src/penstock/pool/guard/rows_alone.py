"""The answers of the model to a row alone, at its own size: every answer of a job is compared with these."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.core.agreement import largest_difference
from penstock.core.batching import Batch
from penstock.core.messages import PaddingTrial
from penstock.core.records import Array, Column, Columns
from penstock.core.reordering import answers
from penstock.errors import OutOfMemory, PenstockError, one_line
from penstock.pool.guard.guarded import GuardedReplica
from penstock.pool.guard.pieces import joined

_PREFIXES = (1, 2, 5)
"""Rows are also tried cut down to so few values: what padding adds to a sum or to a maximum shows best there."""
_ROWS_OF_A_SIZE = 8

Sizes = Mapping[str, tuple[int, ...]]
"""The size of every input that varies."""


def answers_alone(
    replica: GuardedReplica, batch: Batch, places: Sequence[int], follows: Mapping[str, str]
) -> dict[int, Columns]:
    """What the model answers to each of these rows of a batch, one at a time, without those that it rejects."""
    by_place: dict[int, Columns] = {}
    for place in places:
        sizes = {name: tuple(each[place].tolist()) for name, each in batch.sizes.items()}
        row = _cut({name: array[place : place + 1] for name, array in batch.arrays.items()}, sizes)
        try:
            outputs = replica.call(_filled(row, replica.signature.fixed_batch or 1))
        except (PenstockError, MemoryError):
            raise
        except Exception:
            continue
        alone = Batch(0, range(1), 1, row, sizes={name: np.array([size]) for name, size in sizes.items()})
        by_place[place] = {name: answers(follows, name, output[:1], alone) for name, output in outputs.items()}
    return by_place


def join_answers(batches: Sequence[Columns]) -> dict[str, Column]:
    """The answers of several batches, one after the other."""
    return {name: joined([piece[name] for piece in batches]) for name in batches[0]} if batches else {}


def try_padding(
    replica: GuardedReplica,
    batch: Batch,
    places: Sequence[int],
    follows: Mapping[str, str],
    masks: Container[str],
    largest: Sizes,
) -> PaddingTrial:
    """Whether the model answers rows as if alone when zeros follow them.

    Rows of this batch are run at a few exact sizes: those that rows have, and shorter ones, to which rows are cut down.
    A row of few values shows what padding does where a longer one hides it: behind the maximum of many values, say.
    Numbers are also tried with their sign changed. Then the same rows are run with zeros up to the batch's own shape,
    and up to the `largest` sizes that the job pads to.
    """
    trial = _Trial(replica, follows)
    for sizes in _sizes_to_try(batch, places):
        rows = [place for place in places if all(_holds(batch.sizes[name][place], sizes[name]) for name in sizes)]
        taken = np.resize(rows[:_ROWS_OF_A_SIZE], replica.signature.fixed_batch or 2 * _ROWS_OF_A_SIZE)
        exact = _cut({name: array[taken] for name, array in batch.arrays.items()}, sizes)
        for name, array in exact.items():
            if array.dtype.kind == "f" and name not in masks:
                array[len(array) // 2 :] *= -1
        own_shape = {name: batch.arrays[name].shape[1 : 1 + len(size)] for name, size in sizes.items()}
        for room in (own_shape, largest) if largest != own_shape else (own_shape,):
            trial.compare(exact, _padded(exact, sizes, room), sizes)
    return trial.verdict()


@dataclass
class _Trial:
    """Pairs of answers to the same rows, exact and padded."""

    replica: GuardedReplica
    follows: Mapping[str, str]
    exact: list[Mapping[str, Column]] = field(default_factory=list)
    padded: list[Mapping[str, Column]] = field(default_factory=list)
    problem: str = "there are no rows to try it with"
    is_changed: bool = False

    def compare(self, exact: Columns, padded: Columns, sizes: Sizes) -> None:
        try:
            alone = self.replica.call(exact)
        except (OutOfMemory, MemoryError):
            raise
        except Exception as error:  # the rows may be too short for the model, which shows nothing about padding
            self.problem = one_line(error)
            return
        try:
            together = self.replica.call(padded)
        except (PenstockError, MemoryError):
            raise
        except Exception:
            self.is_changed = True
            return
        self.exact.append(self._as_written(exact, sizes, alone))
        self.padded.append(self._as_written(padded, sizes, together))

    def _as_written(self, rows: Columns, sizes: Sizes, outputs: Columns) -> dict[str, Column]:
        """Answers, cut as those of a job are cut."""
        count = len(next(iter(rows.values())))
        own = {name: np.tile(np.array(size), (count, 1)) for name, size in sizes.items()}
        batch = Batch(0, range(count), count, rows, sizes=own)
        return {name: answers(self.follows, name, output, batch) for name, output in outputs.items()}

    def verdict(self) -> PaddingTrial:
        if self.is_changed:
            return PaddingTrial(float("inf"))
        if not self.exact:
            return PaddingTrial(problem=self.problem)
        difference, constant = largest_difference(self.padded, self.exact)
        if constant is not None:
            return PaddingTrial(difference, f"the output {constant} is the same in every row")
        return PaddingTrial(difference)


def _sizes_to_try(batch: Batch, places: Sequence[int]) -> list[Sizes]:
    """Sizes that rows have (the smallest, the middle, the largest), and sizes of only a few values."""
    if not len(places):
        return []
    by_size = sorted(places, key=lambda place: sum(int(sizes[place].prod()) for sizes in batch.sizes.values()))
    full = [by_size[0], by_size[len(by_size) // 2], by_size[-1]]
    to_try = [{name: tuple(sizes[place].tolist()) for name, sizes in batch.sizes.items()} for place in full]
    longest = to_try[-1]
    to_try += [{name: tuple(min(n, most) for n in size) for name, size in longest.items()} for most in _PREFIXES]
    return list({tuple(sorted(each.items())): each for each in to_try}.values())


def _holds(size: Array, wanted: tuple[int, ...]) -> bool:
    return bool((size >= np.asarray(wanted)).all())


def _cut(arrays: Columns, sizes: Sizes) -> Columns:
    """Rows cut to a size: the first dimensions are those that vary."""
    return {
        name: array[(slice(None), *(slice(length) for length in sizes.get(name, ())))].copy()
        for name, array in arrays.items()
    }


def _padded(exact: Columns, sizes: Sizes, room: Sizes) -> Columns:
    """The same rows in the size of `room`, which is larger; where it is not, in twice their own."""
    padded = dict(exact)
    for name, size in sizes.items():
        array = exact[name]
        lengths = [max(most, 2 * own, 1) if most <= own else most for own, most in zip(size, room[name], strict=True)]
        wider = np.zeros((len(array), *lengths, *array.shape[1 + len(size) :]), array.dtype)
        if array.dtype == object:
            wider[:] = b""
        wider[(slice(None), *(slice(length) for length in size))] = array
        padded[name] = wider
    return padded


def _filled(row: Columns, rows: int) -> Columns:
    """One row, repeated to the batch size that the model requires."""
    return {name: np.repeat(array, rows, axis=0) for name, array in row.items()} if rows > 1 else row
