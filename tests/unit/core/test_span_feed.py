"""Spans that come as they come, and an error among them that waits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.core.records import Span
from penstock.core.span_feed import SpanFeed
from penstock.errors import InputError


def spans(count: int, error: BaseException | None = None) -> Iterator[Span]:
    for index in range(count):
        yield Span(index, index, 1, ())
    if error is not None:
        raise error


@pytest.mark.parametrize("count", [0, 1, 5])
def test_every_span_comes_once_in_order_the_first_included(count: int) -> None:
    coming = SpanFeed(spans(count))
    assert (coming.first is None) == (count == 0)
    assert [span.index for span in coming] == list(range(count))
    coming.check()


def test_first_span_is_known_before_the_others_are_made() -> None:
    made: list[int] = []

    def making() -> Iterator[Span]:
        for span in spans(3):
            made.append(span.index)
            yield span

    coming = SpanFeed(making())
    assert coming.first == Span(0, 0, 1, ())
    assert made == [0]
    assert next(iter(coming)).index == 0
    assert made == [0]


def test_list_of_spans_will_do() -> None:
    assert len(list(SpanFeed([Span(0, 0, 1, ()), Span(1, 1, 1, ())]))) == 2


@pytest.mark.parametrize("error", [InputError("the stream is broken"), RuntimeError("a bug"), ValueError()], ids=repr)
@pytest.mark.parametrize("count", [0, 1, 4])
def test_error_ends_the_spans_and_is_raised_when_everything_before_it_is_done(count: int, error: Exception) -> None:
    coming = SpanFeed(spans(count, error))
    assert [span.index for span in coming] == list(range(count))
    for _ in range(2):
        with pytest.raises(type(error)) as caught:
            coming.check()
        assert caught.value is error


def test_error_that_has_not_come_yet_is_not_raised() -> None:
    coming = SpanFeed(spans(2, InputError("later")))
    coming.check()
    assert coming.first is not None


def test_interrupt_does_not_wait() -> None:
    coming = SpanFeed(spans(1, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        list(coming)
