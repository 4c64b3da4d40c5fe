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
    assert feed.withdraw(0, 3) == [1, 2]
    feed.end()
    assert list(feed) == SPANS[3:]


def test_engine_is_woken_by_what_changes() -> None:
    feed, woken = SpanFeed(), []
    feed.on_change = lambda: woken.append(1)
    feed.add(SPANS)
    feed.end()
    assert len(woken) == 2
