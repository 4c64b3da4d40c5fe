"""Results come as they are ready and leave in order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ordering import InOrder
from penstock.core.records import Result, Span


def result(index: int) -> Result:
    span = Span(index, index * 2, 2, ())
    return Result(span, {"y": np.arange(span.start, span.stop)})


@given(st.permutations(range(3, 11)))
def test_results_leave_in_order_however_they_come(arrival: list[int]) -> None:
    order = InOrder([Span(index, index * 2, 2, ()) for index in range(3, 11)])
    left: list[int] = []
    arrived: set[int] = set()
    for index in arrival:
        order.add(result(index))
        arrived.add(index)
        left += [ready.span.index for ready in order.ready()]
        held_back = [index for index in range(3, 11) if index not in arrived]
        assert left == list(range(3, min(held_back, default=11)))
        assert order.is_complete == (not held_back)


def test_each_result_leaves_once() -> None:
    order = InOrder([Span(0, 0, 2, ())])
    order.add(result(0))
    assert len(list(order.ready())) == 1
    assert list(order.ready()) == []


def test_spans_with_gaps_between_them_leave_in_the_order_given() -> None:
    order = InOrder([Span(index, index * 2, 2, ()) for index in (2, 5, 9)])
    for index in (9, 5, 2):
        order.add(result(index))
    assert [ready.span.index for ready in order.ready()] == [2, 5, 9]
    assert order.is_complete


def test_nothing_to_wait_for_is_complete() -> None:
    assert InOrder([]).is_complete
    assert not InOrder([Span(0, 0, 1, ())]).is_complete
