"""A result on its way from a replica to the coordinator."""

from __future__ import annotations

import datetime
import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.columns import to_arrow
from penstock.core.messages import Chunk, SpanDone
from penstock.core.records import Column, Result, RowFailure, Span, Timings
from penstock.pool.transfer.results import Assembly, send
from penstock.pool.transfer.slots import FreeSlots, Slots


@contextmanager
def slots_of(count: int, slot_bytes: int) -> Iterator[Slots]:
    slots = Slots.create(count, slot_bytes)
    try:
        yield slots
    finally:
        slots.close()


def carry(
    columns: Mapping[str, Column], rows: int, *, count: int = 4, slot_bytes: int = 1 << 16, failures: int = 0
) -> tuple[Result, list[Chunk]]:
    """Send a result and put it together again, the slots released at once."""
    lost = tuple(RowFailure(100 + rows + i, "o", "read", "E", "r") for i in range(failures))
    result = Result(Span(3, 100, rows + failures, ((0, 1),)), columns, lost)
    chunks: list[Chunk] = []
    done: list[SpanDone] = []
    with slots_of(count, slot_bytes) as slots:
        free, assembly = FreeSlots(range(slots.count)), Assembly(slots)

        def say(message: Chunk | SpanDone) -> None:
            if isinstance(message, Chunk):
                assembly.add(message)
                slots.view(message.slot, slot_bytes)[:] = b"\xee" * slot_bytes  # whoever reads it later reads this
                free.give_back(message.slot)
                chunks.append(message)
            else:
                done.append(message)

        send(result, Timings(rows=rows), slots, free, say)
        assert len(done) == 1
        assert done[0].timings.rows == rows
        return assembly.finish(result.span, done[0]), chunks


def plain(column: Column) -> list[Any]:
    return list(to_arrow(column).to_pylist())


COLUMNS: dict[str, Column] = {
    "float32": np.arange(7, dtype=np.float32),
    "uint8": np.arange(7, dtype=np.uint8),
    "bool": np.arange(7) % 2 == 0,
    "float16 matrix": np.arange(21, dtype=np.float16).reshape(7, 3),
    "int64 cube": np.arange(84).reshape(7, 3, 2, 2),
    "nan": np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1, 2]),
    "big endian": np.arange(7, dtype=">i4"),
    "strided": np.arange(42).reshape(7, 6)[:, ::2],
    "reversed": np.arange(7)[::-1],
    "days": np.arange(7).astype("datetime64[D]"),
    "words": np.array(["a", "bc", "", "é", "d", "e", "f"], dtype=object),
    "bytes": np.array([b"a", b"\xff", b"", b"c", b"d", b"e", b"f"], dtype=object),
    "fixed words": np.array(["a", "bc", "", "é", "d", "e", "f"]),
    "fixed bytes": np.array([b"a", b"bc", b"", b"x", b"d", b"e", b"f"]),
    "arrow numbers": pa.array([1, None, 3, 4, 5, 6, 7]),
    "arrow words": pa.array(["a", None, "c", "d", "e", "f", "g"]),
    "arrow slice": pa.array(range(20)).slice(5, 7),
    "arrow lists": pa.array([[1], [2, 3], None, [], [4], [5], [6]]),
    "arrow list slice": pa.array([[i, i] for i in range(20)]).slice(9, 7),
    "arrow dictionary": pa.array(["x", "y", "x", "z", "x", "y", "x"]).dictionary_encode(),
    "arrow days": pa.array([datetime.date(2024, 1, day) for day in range(1, 8)]),
    "arrow structs": pa.array([{"a": i, "b": str(i)} for i in range(7)]),
    "arrow tensors": to_arrow(np.arange(42, dtype=np.float32).reshape(7, 3, 2)),
    "arrow bools": pa.array([True, None, False, True, False, True, True]).slice(0, 7),
    "arrow nulls": pa.nulls(7),
}


@pytest.mark.parametrize("slot_bytes", [64, 200, 4096])
@pytest.mark.parametrize("kind", COLUMNS)
def test_column_of_any_kind_arrives_as_it_was_sent(kind: str, slot_bytes: int) -> None:
    column = COLUMNS[kind]
    result, _ = carry({"c": column}, 7, slot_bytes=slot_bytes)
    arrived = result.columns["c"]
    if isinstance(column, np.ndarray) and column.dtype.kind not in "OSU":
        assert isinstance(arrived, np.ndarray)
        assert (arrived.dtype, arrived.shape) == (column.dtype, column.shape)
        np.testing.assert_array_equal(arrived, column)
    else:
        assert plain(arrived) == plain(column)
    if isinstance(column, pa.Array):
        assert to_arrow(arrived).type == column.type


def test_columns_of_all_kinds_arrive_together_in_their_order() -> None:
    result, _ = carry(COLUMNS, 7, slot_bytes=256)
    assert list(result.columns) == list(COLUMNS)
    for name in ("float32", "int64 cube", "strided"):
        np.testing.assert_array_equal(result.columns[name], COLUMNS[name])
    for name in ("words", "arrow lists", "arrow tensors"):
        assert plain(result.columns[name]) == plain(COLUMNS[name])


def test_span_failures_and_row_numbers_arrive() -> None:
    result, _ = carry({"y": np.arange(5)}, 5, failures=2)
    assert result.span == Span(3, 100, 7, ((0, 1),))
    assert [failure.row for failure in result.failures] == [105, 106]
    assert result.row_numbers().tolist() == [100, 101, 102, 103, 104]


def test_result_without_rows_arrives() -> None:
    columns = {"y": np.empty((0, 10), "float32"), "words": np.empty(0, dtype=object)}
    result, _ = carry(columns, 0, failures=3)
    assert result.columns["y"].shape == (0, 10)
    assert len(result.columns["words"]) == 0
    assert result.rows == 0


def test_result_without_columns_arrives() -> None:
    result, chunks = carry({}, 0, failures=3)
    assert dict(result.columns) == {}
    assert chunks == []


def test_chunks_follow_each_other_and_cover_every_byte_of_the_columns() -> None:
    columns = {"a": np.arange(1000, dtype=np.uint8), "b": np.arange(500, dtype=np.int64)}
    _, chunks = carry(columns, 500, slot_bytes=512)
    assert {chunk.key for chunk in chunks} == {(3,)}
    assert all(chunk.total == 1024 + 4032 for chunk in chunks)
    covered = [place for chunk in chunks for place in range(chunk.offset, chunk.offset + chunk.nbytes)]
    assert covered == sorted(set(covered))
    assert set(covered) >= {*range(1000), *range(1024, 1024 + 4000)}


def test_arrays_that_arrive_are_aligned_and_can_be_written() -> None:
    result, _ = carry({"a": np.arange(3, dtype=np.uint8), "b": np.arange(5, dtype=np.float64)}, 5)
    arrived = result.columns["b"]
    assert arrived.flags.aligned
    arrived[0] = 7.0
    assert arrived.tolist() == [7.0, 1.0, 2.0, 3.0, 4.0]


@given(
    widths=st.lists(st.integers(0, 300), min_size=1, max_size=5),
    rows=st.integers(0, 9),
    slot_bytes=st.integers(1, 700),
    count=st.integers(1, 3),
)
def test_result_of_any_size_arrives_through_slots_of_any_size(
    widths: list[int], rows: int, slot_bytes: int, count: int
) -> None:
    chance = np.random.default_rng(1)
    columns: dict[str, Column] = {
        str(i): chance.integers(0, 256, (rows, width), dtype=np.uint8) for i, width in enumerate(widths)
    }
    result, chunks = carry(columns, rows, count=count, slot_bytes=slot_bytes)
    for name, column in columns.items():
        np.testing.assert_array_equal(result.columns[name], column)
    assert all(0 < chunk.nbytes <= slot_bytes for chunk in chunks)


def test_result_larger_than_all_slots_waits_for_a_thread_that_releases() -> None:
    values = np.random.default_rng(2).integers(0, 256, (1000, 97), dtype=np.uint8)
    messages: queue.Queue[Chunk | SpanDone] = queue.Queue()
    with slots_of(2, 4096) as slots:
        free, assembly = FreeSlots(range(slots.count)), Assembly(slots)
        result = Result(Span(0, 0, 1000, ()), {"y": values, "words": pa.array(["w" * 50] * 1000)})
        sender = threading.Thread(target=send, args=(result, Timings(), slots, free, messages.put), daemon=True)
        sender.start()
        held: list[Chunk] = []
        while not isinstance(message := messages.get(timeout=10), SpanDone):
            held.append(message)
            assert len(held) <= 2, "a slot was written before it was released"
            if len(held) == 2 or message.offset + message.nbytes >= message.total:
                for chunk in held:
                    assembly.add(chunk)
                    free.give_back(chunk.slot)
                held = []
            else:
                # The sender can fill the second slot while the first is not yet emptied.
                continue
        for chunk in held:
            assembly.add(chunk)
        arrived = assembly.finish(result.span, message)
        sender.join(timeout=10)
        assert not sender.is_alive()
    np.testing.assert_array_equal(arrived.columns["y"], values)
    assert plain(arrived.columns["words"]) == ["w" * 50] * 1000


def test_several_threads_send_results_through_the_same_slots() -> None:
    chance = np.random.default_rng(3)
    results = [
        Result(Span(i, i * 50, 50, ()), {"y": chance.integers(0, 256, (50, 33), dtype=np.uint8)}) for i in range(12)
    ]
    messages: queue.Queue[Chunk | SpanDone] = queue.Queue()
    with slots_of(2, 512) as slots:
        free, assembly = FreeSlots(range(slots.count)), Assembly(slots)
        senders = [
            threading.Thread(target=send, args=(result, Timings(), slots, free, messages.put), daemon=True)
            for result in results
        ]
        for sender in senders:
            sender.start()
        arrived: dict[int, Result] = {}
        while len(arrived) < len(results):
            message = messages.get(timeout=10)
            if isinstance(message, Chunk):
                assembly.add(message)
                free.give_back(message.slot)
            else:
                arrived[message.span] = assembly.finish(results[message.span].span, message)
        for sender in senders:
            sender.join(timeout=10)
    for index, result in enumerate(results):
        np.testing.assert_array_equal(arrived[index].columns["y"], result.columns["y"])
