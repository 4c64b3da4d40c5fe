"""Rows of several processes that train together: their shares are the batches of one, also where rows are bad."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from penstock.core.job import Job
from penstock.core.records import Binding, Block, RowFailure, Span
from penstock.core.sharing import Share
from penstock.core.shuffling import AllRows
from penstock.core.training import TrainBatch
from penstock.errors import InputError
from penstock.sources.derived.shuffled import Order, RandomRows
from penstock.sources.derived.wrapper import Around
from penstock.sources.python.memory import InMemory
from penstock.training.gang_rows import GangRows
from penstock.training.row_stream import RowStream, ThisProcess

ROWS, BATCH = 101, 12


class Threads:
    """A line between threads (`core.training.Exchange`)."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.said: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)

    def of(self, rank: int) -> _Line:
        return _Line(self, rank)


class _Line:
    def __init__(self, threads: Threads, rank: int) -> None:
        self._threads, self._rank = threads, rank
        self._counts: dict[str, int] = defaultdict(int)

    def gather(self, topic: str, message: str = "") -> list[str]:
        place = topic, self._counts[topic]
        self._counts[topic] += 1
        if message:
            self._threads.said[place][self._rank] = message
        self._threads.barrier.wait(30)
        found = [self._threads.said[place][rank] for rank in sorted(self._threads.said[place])]
        self._threads.barrier.wait(30)
        return found


class SomeBroken(Around):
    """Rows of which some are broken."""

    def __init__(self, broken: Sequence[int]) -> None:
        super().__init__(InMemory({"input:x": np.arange(ROWS) * 2}))
        self.broken = broken
        self.read_rows = 0

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        for block in self.source.read(span, columns):
            found = [place for place, number in enumerate(span.locator[0].tolist()) if number in self.broken]
            self.read_rows += block.rows
            failures = tuple(RowFailure(block.start + place, "", "load", "Broken", "it is") for place in found)
            yield Block(block.start, block.rows, block.columns, failures)


def stream(broken: Sequence[int], share: Share | None = None) -> tuple[RowStream, SomeBroken]:
    inside = SomeBroken(broken)
    source = RandomRows(inside, Order(AllRows(ROWS), 9), share)
    job = Job(source, (Binding("input:x", ("input:x",), "int64", ()),), (), source.read_of(BATCH) * 2)
    return RowStream(job, source, BATCH, ThisProcess(job)), inside


def in_gang(size: int, broken_on: Callable[[int], Sequence[int]], *, is_shared: bool = True) -> list[GangRows]:
    line = Threads(size)
    members = []
    for rank in range(size):
        share = Share(rank, size, size, BATCH)
        data, _ = stream(broken_on(rank), share if is_shared else None)
        members.append(GangRows(data, share, line.of(rank), "training"))
    return members


def all_of(members: Sequence[GangRows], epoch: int, skip: int = 0) -> list[list[int]]:
    """The batches of an epoch, put together from the shares of all."""
    with ThreadPoolExecutor(len(members)) as pool:
        read = list(pool.map(lambda member: list(member.batches(epoch, skip)), members))
    return [_joined(parts, len(members)) for parts in zip(*read, strict=True)]


def _joined(parts: Sequence[TrainBatch], size: int) -> list[int]:
    rows = parts[0].rows
    assert all((part.inputs["x"] == part.numbers * 2).all() for part in parts)
    if rows % size:
        assert all(part.numbers.tolist() == parts[0].numbers.tolist() for part in parts)
        return list(parts[0].numbers)
    assert {len(part.numbers) for part in parts} == {rows // size}
    return list(np.concatenate([part.numbers for part in parts]))


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("broken", [(), (5, 50), tuple(range(0, ROWS, 3)), tuple(range(1, ROWS))])
@pytest.mark.parametrize("size", [2, 3])
def test_batches_are_those_of_one_process(size: int, broken: Sequence[int], is_shared: bool) -> None:
    alone, _ = stream(broken)
    members = in_gang(size, lambda rank: broken, is_shared=is_shared)
    for epoch in range(3):
        assert all_of(members, epoch) == [batch.numbers.tolist() for batch in alone.batches(epoch)]
    for member in members:
        assert sorted(member.failures) == sorted(alone.failures) == list(broken)
        assert member.rows == alone.rows


def test_an_epoch_goes_on_where_a_checkpoint_was_taken() -> None:
    alone, _ = stream([7, 90])
    members = in_gang(2, lambda rank: [7, 90])
    assert all_of(members, 0) == [batch.numbers.tolist() for batch in alone.batches(0)]  # bad rows are known now
    whole = [batch.numbers.tolist() for batch in alone.batches(1)]
    assert all_of(members, 1, 4 * BATCH) == whole[4:]
    assert all_of(members, 2) == [batch.numbers.tolist() for batch in alone.batches(2)]


def test_a_row_that_is_bad_for_one_process_is_left_out_by_all() -> None:
    alone, _ = stream([11])
    members = in_gang(2, lambda rank: [11] if rank else [])
    found = all_of(members, 0) + all_of(members, 1)
    if 11 in members[0].failures:  # the share of the other had it
        assert found[-9:] == [batch.numbers.tolist() for batch in alone.batches(1)]
    assert members[0].failures == members[1].failures


def test_processes_that_read_all_rows_and_find_others_bad_end_with_an_error() -> None:
    members = in_gang(2, lambda rank: [11] * rank, is_shared=False)
    with pytest.raises(InputError, match="did not read the same rows"):
        all_of(members, 0)


def test_a_process_reads_its_share_alone() -> None:
    """101 rows are 8 batches of 12, and 5 rows that two processes do not divide."""
    data, inside = stream([], Share(0, 2, 2, BATCH))
    rows = [len(batch.numbers) for batch in data.batches(0)]
    assert rows == [6] * 8 + [5]
    assert inside.read_rows == 6 * 8 + 5


def test_an_input_of_bad_rows_only_is_refused_by_all() -> None:
    members = in_gang(2, lambda rank: range(ROWS))
    with pytest.raises(InputError, match="every row of the input is bad"):
        all_of(members, 0)
