"""Rows that a device decodes ahead of the lanes, with real threads, a small real decoder and a small real model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from penstock.core.batching import Batch
from penstock.core.decoding import OnDevice
from penstock.core.deferred import BadRows
from penstock.core.job import Job
from penstock.core.records import Array, Columns, Result, Span
from penstock.core.state import VARIABLES
from penstock.errors import OutOfMemory
from penstock.pool.decoding import AHEAD, THREADS, BatchDecoder, Places
from penstock.pool.pipeline import Pipeline

from .piping import TIMEOUT_S, Blocks, Doubler, Outlet, Waiting, X, inputs_of, piping, spans_of

SIZE = 4
JOB = Job(Blocks([SIZE]), (X,), (), batch_size=SIZE)
CANNOT_BE_READ = np.float32(np.nan)


@dataclass
class Negatives:
    """A decoder, and how it is opened: an encoded row has the wrong sign, and one that is broken has no numbers."""

    share: float = 1.0
    fetched: list[int] = field(default_factory=list)
    decoded: list[int] = field(default_factory=list)
    """The first value of every batch, in the order in which they were decoded."""
    begin: Callable[[], None] = lambda: None
    decides_bits: bool = True
    host: Negatives | None = None
    reserved: list[tuple[tuple[int, ...], int, int]] = field(default_factory=list)

    def open(self) -> Negatives:
        return self

    def on_host(self) -> Negatives:
        return self.host or Negatives()

    def decode(self, rows: Array, encoded: Array, real: int) -> tuple[OnDevice, BadRows]:
        self.begin()
        decoded, bad = rows.copy(), BadRows()
        for place in np.flatnonzero(encoded[:real]).tolist():
            decoded[place] = -rows[place]
            if np.isnan(rows[place]).any():
                bad.blame(place, ValueError("broken"))
                decoded[place] = 0
        decoded[real:] = decoded[real - 1]
        self.decoded.append(int(decoded[0, 0]))
        return OnDevice(decoded, lambda: self._fetch(decoded)), bad

    def reserve(self, shape: tuple[int, ...], batches: int, at_once: int) -> None:
        self.reserved.append((shape, batches, at_once))
        self.begin()

    def close(self) -> None:
        pass

    def _fetch(self, decoded: Array) -> Array:
        self.fetched.append(1)
        return decoded


class TakesOver(Doubler):
    """A model that takes rows over from the device."""

    def __init__(self, *, poison: float | None = None) -> None:
        super().__init__(poison=poison)
        self.taken_over: list[bool] = []

    def predict(self, batch: Columns) -> Columns:
        x = batch["x"]
        self.taken_over.append(isinstance(x, OnDevice))
        return super().predict({"x": x.array if isinstance(x, OnDevice) else x})


class Slot:
    """A batch of a span, every second row of it encoded, in memory that is overwritten when it is released."""

    def __init__(self, span: Span, broken: tuple[int, ...] = ()) -> None:
        rows = inputs_of(np.arange(span.start, span.stop))
        rows[::2] *= -1
        rows[list(broken)] = CANNOT_BE_READ
        self._memory = np.concatenate([rows, np.repeat(rows[-1:], SIZE - len(rows), axis=0)])
        sizes = np.zeros(SIZE, np.int64)
        sizes[: span.rows : 2] = 1
        self.batch = Batch(0, range(span.rows), span.rows, {"x": self._memory}, encoded={"x": sizes})
        self.released = threading.Event()

    def release(self) -> None:
        assert not self.released.is_set(), "released twice"
        self._memory[:] = -77
        self.released.set()


@contextmanager
def decoding(
    replica: Doubler, decoder: Negatives, *, lanes: int = 2, ahead: int = AHEAD, on_device: bool = True
) -> Iterator[tuple[Pipeline, Outlet]]:
    batches = BatchDecoder(decoder, stays_on_device=on_device)
    with piping(replica, JOB, loaders=0, lanes=lanes, decoder=batches, ahead=ahead) as piped:
        yield piped


def give(pipeline: Pipeline, spans: list[Span], slots: list[Slot] | None = None) -> list[Slot]:
    slots = slots or [Slot(span) for span in spans]
    for span, slot in zip(spans, slots, strict=True):
        pipeline.give(span, slot.batch, slot.release)
        pipeline.end(span, 1, 0.0)
    return slots


def check(results: list[Result], spans: list[Span]) -> None:
    for span, result in zip(spans, results, strict=True):
        np.testing.assert_array_equal(result.columns["y"], inputs_of(np.arange(span.start, span.stop)) * 2)


@pytest.mark.parametrize("on_device", [True, False])
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("ahead", [-1, 0, AHEAD])
def test_all_rows_are_decoded_once_whatever_is_ahead(ahead: int, lanes: int, on_device: bool) -> None:
    spans, decoder, model = spans_of(20, SIZE), Negatives(), TakesOver()
    with decoding(model, decoder, lanes=lanes, ahead=ahead, on_device=on_device) as (pipeline, outlet):
        slots = give(pipeline, spans)
        check(outlet.take(20), spans)
        assert all(slot.released.wait(TIMEOUT_S) for slot in slots)
    assert sorted(decoder.decoded) == [span.start for span in spans]
    assert sum(model.taken_over) == (20 if on_device else 0)
    # Of rows that are taken over none are copied, but for the one row that the guard keeps, and each lane may be first.
    assert len(decoder.fetched) in (range(1, lanes + 1) if on_device else [20])


def test_a_few_batches_are_decoded_ahead_and_their_slots_are_free_at_once() -> None:
    class Counting(Waiting):
        def predict(self, batch: Columns) -> Columns:
            answers = super().predict({"x": np.asarray(batch["x"])})
            with lock:
                unfinished.pop()
            return answers

    def begin() -> None:
        with lock:
            unfinished.append(1)
            most.append(len(unfinished))

    lock = threading.Lock()
    unfinished: list[int] = []
    most: list[int] = []
    spans, model = spans_of(20, SIZE), Counting()
    with decoding(model, Negatives(begin=begin), lanes=2, ahead=3) as (pipeline, outlet):
        slots = give(pipeline, spans)
        # No lane has run anything yet.
        assert all(slot.released.wait(TIMEOUT_S) for slot in slots[:5])
        model.may_go.set()
        check(outlet.take(20), spans)
    assert max(most) == 5


def test_batches_in_which_nothing_is_encoded_pass() -> None:
    spans, decoder = spans_of(6, SIZE), Negatives()
    slots = [Slot(span) for span in spans]
    for span, slot in list(zip(spans, slots, strict=True))[::2]:
        slot.batch.arrays["x"][:] = inputs_of(np.arange(span.start, span.stop))
        slot.batch.encoded = {}
    with decoding(TakesOver(), decoder) as (pipeline, outlet):
        give(pipeline, spans, slots)
        check(outlet.take(6), spans)
        assert all(slot.released.wait(TIMEOUT_S) for slot in slots)
    assert sorted(decoder.decoded) == [span.start for span in spans[1::2]]


def test_a_row_that_cannot_be_decoded_is_a_failed_row_and_costs_no_other() -> None:
    span = Span(0, 0, 3, ())
    with decoding(TakesOver(), Negatives()) as (pipeline, outlet):
        give(pipeline, [span], [Slot(span, broken=(2,))])
        result = outlet.take(1)[0]
    assert [(failure.row, failure.reason) for failure in result.failures] == [(2, "ValueError: broken")]
    np.testing.assert_array_equal(result.columns["y"], inputs_of(np.arange(2)) * 2)


def test_rows_that_the_model_rejects_are_found_though_they_lie_on_the_device() -> None:
    spans, decoder = spans_of(3, SIZE), Negatives()
    with decoding(TakesOver(poison=11), decoder, lanes=1) as (pipeline, outlet):
        give(pipeline, spans)
        results = outlet.take(3)
    check(results[:2], spans[:2])
    assert [failure.row for failure in results[2].failures] == [11]
    np.testing.assert_array_equal(results[2].columns["y"], inputs_of(np.arange(8, 11)) * 2)


def test_a_batch_that_does_not_fit_is_run_in_pieces_though_it_lies_on_the_device() -> None:
    class Small(TakesOver):
        def predict(self, batch: Columns) -> Columns:
            if len(batch["x"]) > 2:
                raise OutOfMemory("the device ran out of memory", received="too many")
            return super().predict(batch)

    spans = spans_of(3, SIZE)
    with decoding(Small(), Negatives(), lanes=1) as (pipeline, outlet):
        give(pipeline, spans)
        results = outlet.take(3)
    check(results, spans)
    assert {result.reduced_to for result in results} == {2}


def test_an_error_of_the_decoder_ends_the_run() -> None:
    def begin() -> None:
        raise RuntimeError("the engine is gone")

    with decoding(TakesOver(), Negatives(begin=begin)) as (pipeline, outlet):
        give(pipeline, spans_of(3, SIZE))
        assert str(outlet.errors.get(timeout=TIMEOUT_S)) == "the engine is gone"


def test_a_decoder_without_memory_waits_for_the_batches_before_it_and_goes_on_with_one_at_a_time() -> None:
    class LateStarter(TakesOver):
        def predict(self, batch: Columns) -> Columns:
            assert is_short.wait(TIMEOUT_S)
            answers = super().predict(batch)
            held.pop()
            return answers

    def begin() -> None:
        with lock:
            if len(held) >= 3:
                is_short.set()
                raise OutOfMemory("the GPU has no memory left", received="3 batches")
            held.append(1)
            if is_short.is_set():
                since.append(len(held))

    lock = threading.Lock()
    is_short = threading.Event()
    held: list[int] = []
    since: list[int] = []
    spans = spans_of(12, SIZE)
    with decoding(LateStarter(), Negatives(begin=begin), lanes=1) as (pipeline, outlet):
        give(pipeline, spans)
        check(outlet.take(12), spans)
    # A second thread may have had a place by then.
    assert since[THREADS - 1 :] == [1] * (9 - (THREADS - 1))


def test_batches_that_have_no_memory_beside_each_other_are_decoded_one_after_the_other() -> None:
    def begin() -> None:
        with lock:
            attempts.append(1)
            is_early = len(attempts) <= THREADS
        if is_early:
            both_began.wait(TIMEOUT_S)
            raise OutOfMemory("the GPU has no memory left", received="2 batches")

    lock, both_began = threading.Lock(), threading.Barrier(THREADS)
    attempts: list[int] = []
    spans = spans_of(6, SIZE)
    with decoding(TakesOver(), Negatives(begin=begin), lanes=1) as (pipeline, outlet):
        give(pipeline, spans)
        check(outlet.take(6), spans)
    assert len(attempts) == 6 + THREADS


def test_a_model_that_every_call_changes_gets_its_batches_in_their_order() -> None:
    spans, decoder = spans_of(20, SIZE), Negatives()
    batches = BatchDecoder(decoder, stays_on_device=True)
    job = replace(JOB, state=VARIABLES)
    with piping(TakesOver(), job, loaders=0, lanes=1, decoder=batches) as (pipeline, outlet):
        give(pipeline, spans)
        check(outlet.take(20), spans)
    assert decoder.decoded == [span.start for span in spans]


def test_a_decoder_that_has_no_memory_by_itself_ends_the_run() -> None:
    def begin() -> None:
        raise OutOfMemory("the GPU has no memory left", received="one batch")

    with decoding(TakesOver(), Negatives(begin=begin)) as (pipeline, outlet):
        give(pipeline, spans_of(3, SIZE))
        assert isinstance(outlet.errors.get(timeout=TIMEOUT_S), OutOfMemory)


def test_a_decoder_that_has_no_memory_by_itself_goes_on_without_its_device_where_no_bit_depends_on_it() -> None:
    def begin() -> None:
        if decoder.decoded:
            raise OutOfMemory("the GPU has no memory left", received="one batch")

    host = Negatives()
    decoder = Negatives(begin=begin, decides_bits=False, host=host)
    spans, model = spans_of(8, SIZE), TakesOver()
    with decoding(model, decoder, lanes=1) as (pipeline, outlet):
        give(pipeline, spans)
        check(outlet.take(8), spans)
    assert sorted(decoder.decoded + host.decoded) == [span.start for span in spans]
    assert sum(model.taken_over) == len(decoder.decoded) <= THREADS


def test_a_decoder_of_the_host_leaves_nothing_on_the_device() -> None:
    spans, model, decoder = spans_of(4, SIZE), TakesOver(), Negatives()
    decoder.host = decoder
    with decoding(model, decoder) as (pipeline, outlet):
        give(pipeline, spans)
        check(outlet.take(4), spans)
    assert not any(model.taken_over)


def test_places_are_as_many_as_at_first_when_nothing_lies_on_the_device_any_more() -> None:
    places = Places(3)
    assert places.take()
    assert not places.take_alone()  # it is alone already, and there is one place from now on
    places.open_all()
    assert places.take()
    assert places.take()


def test_memory_is_taken_for_batches_like_those_that_were_decoded_and_may_be_short() -> None:
    decoder = Negatives()
    batches = BatchDecoder(decoder, stays_on_device=True)
    batches.reserve(7)
    assert decoder.reserved == []
    batches(Slot(spans_of(1, SIZE)[0]).batch, 0)

    def begin() -> None:
        raise OutOfMemory("the GPU has no memory left")

    decoder.begin = begin
    batches.reserve(7)
    assert decoder.reserved == [((SIZE, 3), 7, THREADS)]


def test_closing_ends_the_decoder_that_waits_for_a_lane() -> None:
    model, before = Waiting(), threading.active_count()
    decoder = Negatives()
    with decoding(model, decoder, lanes=1, ahead=1, on_device=False) as (pipeline, _):
        slots = give(pipeline, spans_of(9, SIZE))
        assert all(slot.released.wait(TIMEOUT_S) for slot in slots[:2])
        model.may_go.set()
    assert threading.active_count() == before


def test_a_place_alone_is_waited_for_only_where_others_are_taken() -> None:
    places = Places(2)
    assert places.take()
    assert not places.take_alone()
    places.give_back()
    places.close()
    assert not places.take()


def test_rows_on_the_device_are_read_like_an_array_and_fetched_once() -> None:
    decoder = Negatives()
    span = spans_of(1, SIZE)[0]
    slot = Slot(span)
    rows, bad = decoder.decode(slot.batch.arrays["x"], slot.batch.encoded["x"], SIZE)
    assert not bad
    assert (rows.shape, rows.dtype, rows.nbytes, len(rows)) == ((4, 3), np.float32, 48, 4)
    assert rows[:] is rows
    assert rows[:4] is rows
    assert decoder.fetched == []
    expected = inputs_of(np.arange(SIZE))
    np.testing.assert_array_equal(rows[1:3], expected[1:3])
    np.testing.assert_array_equal(rows[2], expected[2])
    np.testing.assert_array_equal(np.asarray(rows), expected)
    np.testing.assert_array_equal(np.asarray(rows, np.float64), expected)
    copied = rows.copy()
    copied[:] = 0
    np.testing.assert_array_equal(rows[[0, 3]], expected[[0, 3]])
    assert decoder.fetched == [1]
