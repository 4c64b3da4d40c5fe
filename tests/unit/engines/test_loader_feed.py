"""The side of the local engine that loader processes feed, as far as it needs no process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.batching import on_the_heap
from penstock.core.job import Job
from penstock.core.messages import Chunk, Filled, SpanLoaded
from penstock.core.records import STRING, Binding, Device, ModelFile, Shape, Span, Timings
from penstock.core.stillness import Timeouts
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
def delivered() -> list[object]:
    return []


@pytest.fixture
def feed(delivered: list[object]) -> Iterator[LoaderFeed]:
    """A feed without loaders."""
    with tempfile.TemporaryFile() as log:
        launch = Launch(NoRuntime(), ModelFile("keras", "m", "d", ("jax",)), 1, log)  # type: ignore[arg-type]
        yield LoaderFeed(launch, delivered.append, Timeouts())
        launch.close()


def filled(span: int, slot: int | None, index: int = 0) -> Filled:
    return Filled(span, index, 4, 0, slot, (), (), ())


def free(feed: LoaderFeed) -> list[int]:
    return feed.pool._free


def test_what_is_not_of_the_first_batch_is_delivered(feed: LoaderFeed, delivered: list[object]) -> None:
    messages = [filled(1, 5), Chunk((0, 0), 2, 0, 10, 10), SpanLoaded(0, 1, 0.5, 0.0)]
    for message in messages:
        feed._take(message)  # type: ignore[arg-type]
    assert delivered == messages


def test_first_batch_stays_in_its_slot_and_the_rest_of_its_span_is_dropped(feed: LoaderFeed) -> None:
    feed._sample, warm = Span(-1, 0, 4, ()), filled(-1, 2)
    feed._take(warm)
    feed._take(filled(-1, 3, 1))
    feed._take(Chunk((-1, 1), 6, 0, 10, 10))
    feed._take(SpanLoaded(-1, 2, 2.0, 0.0))
    assert feed.warm == warm
    assert sorted(free(feed)) == [3, 6]
    assert feed.rows_loaded_per_s == 2.0


def test_the_first_rows_are_read_twice_as_the_first_time_is_slow(feed: LoaderFeed) -> None:
    feed._sample, feed._is_timed = Span(-1, 0, 4, ()), True
    feed._take(SpanLoaded(-1, 1, 0.5, 0.0))
    assert feed.rows_loaded_per_s is None
    assert feed.pool.withdraw() == [feed._sample]
    feed._take(SpanLoaded(-1, 1, 0.1, 0.0))
    assert feed.rows_loaded_per_s == 40.0
    assert feed.pool.withdraw() == []


def test_timings_of_a_finished_span_have_what_its_loader_waited(feed: LoaderFeed) -> None:
    feed._take(SpanLoaded(0, 1, 0.5, 0.25))
    for waited in (0.25, 0.0):
        timings = Timings(rows=4)
        feed.finish(0, timings)
        assert timings.wait_for_room == waited
