"""Results come as they are ready and leave in order."""

from __future__ import annotations

from collections import deque

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ordering import AsFinished, InOrder
from penstock.core.records import Result, Span


def result(index: int) -> Result:
    span = Span(index, index * 2, 2, ())
    return Result(span, {"y": np.arange(span.start, span.stop)})


@given(st.permutations(range(3, 11)))
def test_results_leave_in_order_however_they_come(arrival: list[int]) -> None:
    order = InOrder(deque(range(3, 11)))
    left: list[int] = []
    arrived: set[int] = set()
    for index in arrival:
        order.add(result(index))
        arrived.add(index)
        left += [ready.span.index for ready in order.ready()]
        held_back = [index for index in range(3, 11) if index not in arrived]
        assert left == list(range(3, min(held_back, default=11)))


def test_each_result_leaves_once() -> None:
    order = InOrder(deque(range(2)))
    order.add(result(0))
    assert len(list(order.ready())) == 1
    assert list(order.ready()) == []


def test_result_waits_for_the_one_before_it() -> None:
    order = InOrder(deque([2, 3]))
    order.add(result(3))
    assert list(order.ready()) == []
    order.add(result(2))
    assert [ready.span.index for ready in order.ready()] == [2, 3]


def test_results_that_arrive_while_others_leave_are_not_forgotten() -> None:
    order = InOrder(deque(range(2)))
    order.add(result(0))
    leaving = order.ready()
    assert next(leaving).span.index == 0
    order.add(result(1))
    assert [ready.span.index for ready in leaving] == [1]


def test_nothing_leaves_before_anything_came() -> None:
    assert list(InOrder(deque([0])).ready()) == []
    assert list(AsFinished(deque([0])).ready()) == []


def test_spans_whose_numbers_have_gaps_keep_their_order() -> None:
    order = InOrder(deque([1, 5, 9]))
    for index in (9, 5, 1):
        order.add(result(index))
    assert [ready.span.index for ready in order.ready()] == [1, 5, 9]


def test_results_leave_as_they_are_finished_where_nobody_needs_their_order() -> None:
    order = AsFinished(deque(range(3)))
    order.add(result(2))
    order.add(result(0))
    assert [ready.span.index for ready in order.ready()] == [2, 0]
    order.add(result(1))
    assert [ready.span.index for ready in order.ready()] == [1]
