"""Spans that are added while a run goes on."""

import pytest

from penstock.core.records import Span
from penstock.core.scheduler import NOT_YET
from penstock.engines.span_feed import SpanFeed

SPANS = [Span(index, index, 1, ()) for index in range(6)]


def test_feed_gives_spans_in_the_order_of_adding_and_waits_for_more() -> None:
    feed = SpanFeed()
    assert next(feed) is NOT_YET
    feed.add(SPANS[3:5])
    feed.add(SPANS[:1])
    assert [next(feed) for _ in range(4)] == [SPANS[3], SPANS[4], SPANS[0], NOT_YET]


def test_feed_that_was_ended_gives_what_it_has_and_takes_no_more() -> None:
    feed = SpanFeed()
    feed.add(SPANS[:2])
    feed.end()
    assert list(feed) == SPANS[:2]
    with pytest.raises(ValueError, match="ended"):
        feed.add(SPANS[2:])


def test_spans_that_were_not_taken_are_withdrawn() -> None:
    feed = SpanFeed()
    feed.add(SPANS)
    next(feed)
    feed.withdraw(0, 3)
    feed.end()
    assert list(feed) == SPANS[3:]


def test_engine_drops_what_was_withdrawn_and_is_not_yet_predicted() -> None:
    feed = SpanFeed()
    feed.add(SPANS)
    assert feed.take_news(lambda indices: ())
    assert not feed.take_news(lambda indices: ())
    for _ in range(3):
        next(feed)
    feed.withdraw(1, 6)
    assert feed.take_news(lambda indices: [2] if set(indices) == {1, 2} else pytest.fail(str(indices)))
    feed.add(SPANS[1:4])  # the result of 2 is still to come
    feed.end()
    assert list(feed) == [SPANS[1], SPANS[3]]


def test_span_that_is_wanted_again_before_it_was_dropped_is_not_predicted_twice() -> None:
    feed = SpanFeed()
    feed.add(SPANS[:2])
    next(feed)
    feed.withdraw(0, 2)
    feed.add(SPANS[:2])
    assert feed.take_news(lambda indices: pytest.fail(str(indices)))
    assert next(feed) == SPANS[1]
    feed.finish(SPANS[0])
    feed.add(SPANS[:1])
    assert next(feed) == SPANS[0]
