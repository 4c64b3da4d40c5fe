"""The side of the local engine that loader processes feed, as far as it needs no process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.batching import on_the_heap
from penstock.core.events import Chunk, Filled, SpanLoaded
from penstock.core.job import Job
from penstock.core.records import STRING, Binding, Device, ModelFile, Shape, Span, Timings
from penstock.engines.loader_feed import LoaderFeed, slot_bytes_of
from penstock.pool.processes.supervisor import Launch
from penstock.pool.transfer.batches import bytes_needed
from penstock.sources.python.memory import InMemory


def job_of(*bindings: Binding, batch_size: int = 64, keep: tuple[str, ...] = (), **buckets: list[list[int]]) -> Job:
    return Job(InMemory({"a": np.zeros(1)}), bindings, keep, batch_size, buckets=buckets)


def binding(name: str, dtype: str, shape: Shape, mask_of: str | None = None) -> Binding:
    return Binding(name, (name,), dtype, shape, mask_of)


def test_slot_holds_a_batch_of_images() -> None:
    size = slot_bytes_of(job_of(binding("x", "uint8", (224, 224, 3))))
    assert 64 * 224 * 224 * 3 <= size <= 64 * 224 * 224 * 3 + (1 << 17)


def test_slot_of_a_small_batch_has_a_least_size() -> None:
    assert slot_bytes_of(job_of(binding("x", "float32", ()))) == 1 << 20


def test_slot_is_made_of_whole_pages() -> None:
    assert slot_bytes_of(job_of(binding("x", "uint8", (20_001,)), batch_size=77)) % (1 << 16) == 0


def test_slot_holds_the_largest_bucket_and_its_mask() -> None:
    tokens, mask = binding("tokens", "int32", (None,)), binding("mask", "int32", (None,), mask_of="tokens")
    size = slot_bytes_of(job_of(tokens, mask, batch_size=1024, tokens=[[16, 64, 4096]]))
    assert size >= 2 * 1024 * 4096 * 4


def test_slot_holds_the_largest_size_in_every_dimension() -> None:
    image = binding("x", "uint8", (None, None, 3))
    assert slot_bytes_of(job_of(image, x=[[64, 512], [128, 1024]])) >= 64 * 512 * 1024 * 3


def test_slot_has_room_for_kept_columns() -> None:
    image = binding("x", "uint8", (224, 224, 3))
    assert slot_bytes_of(job_of(image, keep=("a", "b"), batch_size=1024)) > slot_bytes_of(
        job_of(image, batch_size=1024)
    )


def test_text_has_no_size_beforehand() -> None:
    assert slot_bytes_of(job_of(binding("x", STRING, ()))) == 1 << 20


@given(
    shapes=st.lists(st.tuples(st.sampled_from(["uint8", "float32", "int64"]), st.integers(1, 3000)), max_size=4),
    batch_size=st.integers(1, 300),
)
def test_batch_always_fits_into_its_slot(shapes: list[tuple[str, int]], batch_size: int) -> None:
    bindings = [binding(str(place), dtype, (width,)) for place, (dtype, width) in enumerate(shapes)]
    job = job_of(*bindings, batch_size=batch_size)
    wanted = {each.input: ((batch_size, *(n or 0 for n in each.shape)), np.dtype(each.dtype)) for each in bindings}
    assert slot_bytes_of(job) >= bytes_needed(wanted) >= sum(a.nbytes for a in on_the_heap(wanted).values())


class NoRuntime:
    """Nothing is started here."""

    def environment(self, device: Device, threads: int) -> dict[str, str]:
        return {}


@pytest.fixture
def sent() -> list[tuple[int, object]]:
    return []


@pytest.fixture
def feed(sent: list[tuple[int, object]]) -> Iterator[LoaderFeed]:
    """A feed without loaders, and two replicas, 0 and 1, that take what they are sent."""

    def send(replica: int, message: object) -> bool:
        if replica in (0, 1):
            sent.append((replica, message))
        return replica in (0, 1)

    with tempfile.TemporaryFile() as log:
        launch = Launch(NoRuntime(), ModelFile("keras", "m", "d", ("jax",)), 1, log)  # type: ignore[arg-type]
        yield LoaderFeed(launch, send, timeout_s=60)
        launch.close()


def filled(span: int, slot: int | None, index: int = 0) -> Filled:
    return Filled(span, index, 4, 0, slot, (), (), ())


def spans_of(count: int) -> list[Span]:
    return [Span(index, index * 4, 4, ()) for index in range(count)]


def free(feed: LoaderFeed) -> list[int]:
    return feed.pool._free


def test_messages_go_to_the_replica_of_their_span(feed: LoaderFeed, sent: list[tuple[int, object]]) -> None:
    first, second = spans_of(2)
    feed.route(first, 1)
    feed.route(second, 0)
    messages = [filled(1, 5), Chunk((0, 0), 2, 0, 10, 10), filled(0, 3), SpanLoaded(0, 1, 0.5, 0.0)]
    for message in messages:
        feed._deliver(message)  # type: ignore[arg-type]
    assert sent == [(0, messages[0]), (1, messages[1]), (1, messages[2]), (1, messages[3])]
    assert free(feed) == []


def test_slot_is_free_when_its_replica_has_emptied_it(feed: LoaderFeed) -> None:
    feed.route(spans_of(1)[0], 0)
    feed._deliver(filled(0, 5))
    feed.emptied(0, 5)
    assert free(feed) == [5]


def test_slots_of_a_lost_replica_are_free_each_once(feed: LoaderFeed, sent: list[tuple[int, object]]) -> None:
    first, second = spans_of(2)
    feed.route(first, 0)
    feed.route(second, 1)
    for message in (filled(0, 5), filled(0, 6, 1), filled(1, 7), filled(0, 8, 2)):
        feed._deliver(message)
    feed.emptied(0, 6)
    feed.lose(0)
    assert sorted(free(feed)) == [5, 6, 8]
    # What still comes for it has nowhere to go.
    feed._deliver(filled(0, 9, 3))
    feed._deliver(SpanLoaded(0, 4, 0.0, 0.0))
    assert sorted(free(feed)) == [5, 6, 8, 9]
    feed.lose(0)
    assert sorted(free(feed)) == [5, 6, 8, 9]
    assert len(sent) == 4


def test_slot_for_a_replica_that_is_gone_is_free_at_once(feed: LoaderFeed) -> None:
    feed.route(spans_of(1)[0], 99)
    feed._deliver(filled(0, 5))
    assert free(feed) == [5]


def test_batch_without_a_slot_frees_none(feed: LoaderFeed) -> None:
    feed._deliver(filled(3, None))
    assert free(feed) == []


def test_spans_that_no_loader_has_begun_are_taken_back_by_replica(feed: LoaderFeed) -> None:
    first, second, third = spans_of(3)
    feed.route(first, 0)
    feed.route(second, 1)
    feed.route(third, 0)
    assert feed.withdraw() == {0: [0, 2], 1: [1]}
    assert feed.withdraw() == {}


def test_span_that_goes_to_another_replica_is_loaded_once_more_but_waits_once(feed: LoaderFeed) -> None:
    (span,) = spans_of(1)
    feed.route(span, 0)
    feed.lose(0)
    feed.route(span, 1)
    assert feed.withdraw() == {1: [0]}


def test_first_batch_stays_in_its_slot_and_the_rest_of_its_span_is_dropped(feed: LoaderFeed) -> None:
    feed._sample, warm = Span(-1, 0, 4, ()), filled(-1, 2)
    feed._deliver(warm)
    feed._deliver(filled(-1, 3, 1))
    feed._deliver(Chunk((-1, 1), 6, 0, 10, 10))
    feed._deliver(SpanLoaded(-1, 2, 2.0, 0.0))
    assert feed.warm == warm
    assert sorted(free(feed)) == [3, 6]
    assert feed.rows_loaded_per_s == 2.0


def test_the_first_rows_are_read_twice_as_the_first_time_is_slow(feed: LoaderFeed) -> None:
    feed._sample, feed._is_timed = Span(-1, 0, 4, ()), True
    feed._deliver(SpanLoaded(-1, 1, 0.5, 0.0))
    assert feed.rows_loaded_per_s is None
    assert feed.pool.withdraw() == [feed._sample]
    feed._deliver(SpanLoaded(-1, 1, 0.1, 0.0))
    assert feed.rows_loaded_per_s == 40.0
    assert feed.pool.withdraw() == []


def test_span_that_is_finished_is_forgotten(feed: LoaderFeed) -> None:
    (span,) = spans_of(1)
    feed.route(span, 0)
    feed.finish(0, Timings(rows=4))
    feed._deliver(filled(0, 5))
    assert free(feed) == [5]


def test_number_of_loaders_is_told_in_words(feed: LoaderFeed) -> None:
    assert feed.describe() == "0"
