"""A batch on its way from a loader process to a replica: in place, without a copy, whole."""

from __future__ import annotations

import datetime
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.batching import Batch, cut
from penstock.core.bucketing import cut_by_size
from penstock.core.columns import to_arrow
from penstock.core.feeds import Dense, Feed, LoadedRows, Mask, Ragged
from penstock.core.messages import Chunk, Filled
from penstock.core.records import UNWATCHED, Array, Column, RowFailure
from penstock.pool.transfer.batches import SlotRoom, bytes_needed, open_batch
from penstock.pool.transfer.results import Assembly, Writable
from penstock.pool.transfer.slots import FreeSlots, Slots
from tests.unit.core.encoded import Diary

SLOT_BYTES = 1 << 12


@dataclass
class Line:
    """A loader and a replica that share slots, each with its own mapping of them, as in two processes."""

    theirs: Slots
    ours: Slots
    free: FreeSlots
    chunks: list[Chunk] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.assembly = Assembly(self.ours)
        self.room = SlotRoom(Writable(self.theirs, self.free, self.carry))

    def carry(self, message: Chunk) -> None:
        """What is sent ahead is copied out at once, and its slot is free again."""
        chunk = pickle.loads(pickle.dumps(message))
        self.chunks.append(chunk)
        self.assembly.add(chunk)
        view = self.ours.view(chunk.slot, self.ours.slot_bytes)
        view[:] = b"\xee" * self.ours.slot_bytes  # whoever reads it later reads this
        self.free.give_back(chunk.slot)

    def hand_over(self, batch: Batch) -> tuple[Filled, Batch]:
        """Only the message travels."""
        filled = pickle.loads(pickle.dumps(self.room.seal(7, batch)))
        return filled, open_batch(filled, self.ours, self.assembly)


@contextmanager
def line(count: int = 4, slot_bytes: int = SLOT_BYTES) -> Iterator[Line]:
    theirs = Slots.create(count, slot_bytes)
    ours = Slots(os.dup(theirs.descriptor), count, slot_bytes)
    try:
        yield Line(theirs, ours, FreeSlots(range(count)))
    finally:
        theirs.close()
        ours.close()


def in_slot(slots: Slots, slot: int | None, array: Array) -> bool:
    """Whether an array lies in a slot of this mapping."""
    assert slot is not None
    return np.shares_memory(array, np.frombuffer(slots.view(slot, slots.slot_bytes), np.uint8))


def plain(column: Column) -> list[Any]:
    return list(to_arrow(column).to_pylist())


def same(arrived: Batch, sent: Batch) -> None:
    """Every field of a batch is as it was."""
    assert (arrived.index, arrived.rows) == (sent.index, sent.rows)
    assert list(arrived.positions) == list(sent.positions)
    assert isinstance(arrived.positions, range) == isinstance(sent.positions, range)
    assert set(arrived.arrays) == set(sent.arrays)
    for name, array in sent.arrays.items():
        assert (arrived.arrays[name].dtype, arrived.arrays[name].shape) == (array.dtype, array.shape)
        assert arrived.arrays[name].tolist() == array.tolist()
    assert list(arrived.kept) == list(sent.kept)
    for name, column in sent.kept.items():
        assert plain(arrived.kept[name]) == plain(column)
    assert arrived.failures == sent.failures
    assert {name: each.tolist() for name, each in arrived.lengths.items()} == {
        name: each.tolist() for name, each in sent.lengths.items()
    }
    assert (arrived.values, arrived.padded) == (sent.values, sent.padded)
    assert {name: each.tolist() for name, each in arrived.encoded.items()} == {
        name: each.tolist() for name, each in sent.encoded.items()
    }


X = np.arange(24, dtype=np.float32).reshape(8, 3)
PIXELS = np.arange(32, dtype=np.uint8).reshape(8, 2, 2)
FAILURE = RowFailure(101, "a.png", "load", "OSError", "cut off")


def piece(kept: dict[str, Column] | None = None, **arrays: Array) -> LoadedRows:
    rows = len(next(iter(arrays.values())))
    return LoadedRows(100, rows, {name: Dense(array) for name, array in arrays.items()}, kept or {}, {101: FAILURE})


def test_numbers_are_written_into_the_slot_and_read_there_without_a_copy() -> None:
    with line() as between:
        (batch,) = cut([piece(x=X, pixels=PIXELS)], 8, between.room)
        before = {name: array.copy() for name, array in batch.arrays.items()}
        filled, arrived = between.hand_over(batch)
        for name, array in batch.arrays.items():
            assert in_slot(between.theirs, filled.slot, array)
            assert in_slot(between.ours, filled.slot, arrived.arrays[name])
            assert arrived.arrays[name].tolist() == before[name].tolist()
            assert arrived.arrays[name].ctypes.data % 64 == 0
        same(arrived, batch)
        assert between.chunks == []
        assert between.room.waited_s >= 0


def test_rows_that_are_still_encoded_are_known_behind_the_slot() -> None:
    with line() as between:
        (batch,) = cut([piece(x=X, pixels=PIXELS)], 8, between.room)
        batch.encoded = {"pixels": np.array([0, 4, 0, 0, 3, 0, 0, 0])}
        _, arrived = between.hand_over(batch)
        same(arrived, batch)


def test_message_is_small_whatever_the_batch() -> None:
    with line(slot_bytes=1 << 20) as between:
        (batch,) = cut([piece(x=np.zeros((8, 30_000), np.float32))], 8, between.room)
        assert len(pickle.dumps(between.room.seal(0, batch))) < 1500


def test_every_batch_lies_in_a_slot_of_its_own() -> None:
    with line(count=3) as between:
        filled = [between.hand_over(batch)[0] for batch in cut([piece(x=X)], 3, between.room)]
        assert sorted(each.slot for each in filled if each.slot is not None) == [0, 1, 2]
        assert [each.offset for each in filled] == [0, 3, 6]
        assert [each.rows for each in filled] == [3, 3, 2]


KEPT: dict[str, Column] = {
    "id": np.arange(8),
    "vector": np.arange(16.0).reshape(8, 2),
    "name": pa.array([f"row {i}" for i in range(8)]),
    "word": np.array(["a", "é", "", "b", "c", "d", "e", "f"], dtype=object),
    "raw": pa.array([b"\xff\x00"] * 8),
    "list": pa.array([[1], [2, 3], None, [], [4], [5], [6], [7]]),
    "day": pa.array([datetime.date(2024, 1, 1 + i) for i in range(8)]),
    "maybe": pa.array([1, None, 3, 4, 5, 6, 7, 8]),
}


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("slot_bytes", [SLOT_BYTES, 128], ids=["behind the inputs", "sent ahead"])
def test_kept_columns_arrive(name: str, slot_bytes: int) -> None:
    with line(slot_bytes=slot_bytes) as between:
        (batch,) = cut([piece({name: KEPT[name]}, x=X)], 8, between.room)
        filled, arrived = between.hand_over(batch)
        same(arrived, batch)
        assert bool(between.chunks) == bool(filled.spilled) == (slot_bytes == 128)
        assert filled.slot is not None


def test_kept_columns_of_all_kinds_arrive_together_and_may_be_called_like_inputs() -> None:
    with line(slot_bytes=1 << 14) as between:
        kept: dict[str, Column] = {**KEPT, "x": np.arange(8), "positions": np.arange(8), "lengths": pa.array(["l"] * 8)}
        (batch,) = cut([piece(kept, x=X)], 8, between.room)
        filled, arrived = between.hand_over(batch)
        same(arrived, batch)
        assert filled.spilled == ()
        assert not arrived.lengths


def test_what_is_kept_outlives_the_slot() -> None:
    with line() as between:
        (batch,) = cut([piece(dict(KEPT), x=X)], 8, between.room)
        filled, arrived = between.hand_over(batch)
        wanted = {name: plain(column) for name, column in batch.kept.items()}
        assert filled.slot is not None
        between.ours.view(filled.slot, SLOT_BYTES)[:] = b"\xee" * SLOT_BYTES
        assert {name: plain(column) for name, column in arrived.kept.items()} == wanted


@pytest.mark.parametrize("shape", [(8,), (8, 1), (4, 2)], ids=str)
def test_text_arrives_in_its_shape_and_outlives_the_slot(shape: tuple[int, ...]) -> None:
    words = np.array([b"a", b"\xff\x00", b"", "é".encode(), b"long" * 9, b"f", b"g", b"h"], dtype=object)
    words = words.reshape(shape)
    with line() as between:
        (batch,) = cut([piece(text=words, x=X[: len(words)])], 8, between.room)
        filled, arrived = between.hand_over(batch)
        same(arrived, batch)
        assert filled.slot is not None
        between.ours.view(filled.slot, SLOT_BYTES)[:] = b"\xee" * SLOT_BYTES
        assert arrived.arrays["text"].tolist() == batch.arrays["text"].tolist()


def test_batch_of_text_alone_needs_no_slot_of_its_own() -> None:
    with line(count=1) as between:
        words = np.array([b"a", b"bc", b"d"], dtype=object)
        for batch in cut([piece(text=words)], 2, between.room):
            filled, arrived = between.hand_over(batch)
            assert filled.slot is None
            same(arrived, batch)
        assert {chunk.key for chunk in between.chunks} == {(7, 0, 0), (7, 1, 0)}


def test_batch_that_is_too_large_for_a_slot_is_sent_in_pieces() -> None:
    big = np.random.default_rng(0).integers(0, 256, (8, 700), dtype=np.uint8)
    with line(count=2, slot_bytes=1000) as between:
        (batch,) = cut([piece(dict(KEPT), big=big, x=X)], 8, between.room)
        filled, arrived = between.hand_over(batch)
        assert filled.slot is None
        assert len(between.chunks) > 5
        same(arrived, batch)


def test_batches_of_different_sizes_follow_each_other_through_the_same_room() -> None:
    with line(count=2, slot_bytes=1000) as between:
        for width in (10, 700, 5):
            (batch,) = cut([piece(big=np.full((8, width), width % 256, np.uint8))], 8, between.room)
            filled, arrived = between.hand_over(batch)
            same(arrived, batch)
            if filled.slot is not None:
                between.free.give_back(filled.slot)


def test_rows_that_were_sorted_by_size_arrive_with_their_places_and_lengths() -> None:
    lengths = [3, 1, 5, 0, 2]
    tokens = Ragged(np.arange(1, 12, dtype=np.int32), np.cumsum([0, *lengths]))
    feeds: dict[str, Feed] = {"tokens": tokens, "mask": Mask(tokens.sizes()[:, 0], np.dtype(np.bool_))}
    pieces = [LoadedRows(100, 5, feeds, {"name": pa.array(list("abcde"))}, {101: FAILURE})]
    boundaries = {"tokens": [[2, 4, 8]], "mask": [[2, 4, 8]]}
    with line() as between:
        places: list[int] = []
        for batch in cut_by_size(pieces, 2, boundaries, between.room, UNWATCHED):
            filled, arrived = between.hand_over(batch)
            same(arrived, batch)
            assert in_slot(between.ours, filled.slot, arrived.arrays["tokens"])
            places += [int(place) for place in arrived.positions]
        assert sorted(places) == [0, 1, 2, 3, 4]


@given(
    rows=st.integers(1, 20),
    batch_size=st.integers(1, 8),
    width=st.integers(0, 40),
    slot_bytes=st.integers(64, 2000),
    word=st.binary(max_size=30),
    is_kept=st.booleans(),
)
def test_batches_of_any_size_arrive_as_they_are_through_slots_of_any_size(
    rows: int, batch_size: int, width: int, slot_bytes: int, word: bytes, is_kept: bool
) -> None:
    numbers = np.random.default_rng(rows).integers(0, 1000, (rows, width))
    words = np.array([word * (row % 3) for row in range(rows)] + [None], dtype=object)[:-1]
    kept: dict[str, Column] = {"n": np.arange(rows), "w": pa.array(words.tolist(), pa.binary())} if is_kept else {}
    with line(count=3, slot_bytes=slot_bytes) as between:
        plainly = list(cut([piece(kept, x=numbers, w=words)], batch_size))
        for batch, expected in zip(
            cut([piece(kept, x=numbers, w=words)], batch_size, between.room), plainly, strict=True
        ):
            filled, arrived = between.hand_over(batch)
            same(arrived, expected)
            if filled.slot is not None:
                between.free.give_back(filled.slot)


def test_waiting_for_a_slot_is_not_hanging_in_a_row() -> None:
    with line() as between:
        diary = Diary()
        room = SlotRoom(Writable(between.theirs, between.free, between.carry), diary)
        diary.begin(5, 1)
        room({"x": ((8, 3), np.dtype(np.float32))})
        assert diary.ends == 1


@given(
    shapes=st.lists(
        st.tuples(
            st.lists(st.integers(0, 9), min_size=1, max_size=3), st.sampled_from(["uint8", "float32", "int64", object])
        ),
        max_size=4,
    )
)
def test_bytes_that_a_batch_needs_are_enough_for_its_numbers(shapes: list[tuple[list[int], Any]]) -> None:
    wanted = {str(place): (tuple(shape), kind) for place, (shape, kind) in enumerate(shapes)}
    needed = bytes_needed(wanted)
    numbers = sum(
        int(np.prod(shape)) * np.dtype(kind).itemsize for shape, kind in wanted.values() if kind is not object
    )
    assert numbers <= needed <= numbers + 64 * len(wanted)
    with line(count=1, slot_bytes=max(1, needed)) as between:
        arrays = between.room(wanted)
        assert {name: array.shape for name, array in arrays.items()} == {name: s for name, (s, _) in wanted.items()}
        assert all(array.dtype == wanted[name][1] for name, array in arrays.items())
        if numbers:
            slots = np.frombuffer(between.theirs.view(0, needed), np.uint8)
            sized = [array for array in arrays.values() if array.dtype != object and array.size]
            assert all(np.shares_memory(array, slots) for array in sized)
            assert not any(np.shares_memory(a, b) for a in sized for b in sized if a is not b)
