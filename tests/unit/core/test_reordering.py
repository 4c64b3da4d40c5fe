"""The batches of a span put together again."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.batching import Batch
from penstock.core.columns import to_arrow
from penstock.core.records import KEPT, Array, Column, RowFailure, Span
from penstock.core.reordering import AS_LISTS, Answered, answers, to_result


def failure(row: int) -> RowFailure:
    return RowFailure(row, "a.csv", "load", "E", f"why {row}")


def answered(positions: range | Array) -> Answered:
    """Answers that say where their row lies in the span."""
    places = np.asarray(positions)
    outputs: dict[str, Column] = {"y": places * 10, "deep": np.stack([places, -places], axis=1)}
    return positions, outputs, {"name": pa.array([f"r{place}" for place in places])}


def cut(order: list[int], sizes: list[int]) -> list[Array]:
    stops = np.cumsum([0, *sizes])
    pieces = [np.array(order[start:stop], np.int64) for start, stop in zip(stops, [*stops[1:], None], strict=True)]
    return [piece for piece in pieces if len(piece)]


@given(order=st.permutations(range(24)), sizes=st.lists(st.integers(1, 7), max_size=6), data=st.data())
def test_rows_in_any_order_come_out_in_theirs_without_those_that_failed(
    order: list[int], sizes: list[int], data: st.DataObject
) -> None:
    failed = data.draw(st.sets(st.integers(0, 23)))
    span = Span(0, 100, 24, ())
    result = to_result(
        span, [answered(piece) for piece in cut(order, sizes)], [failure(100 + place) for place in sorted(failed)]
    )
    alive = [place for place in range(24) if place not in failed]
    assert np.asarray(result.columns["y"]).tolist() == [place * 10 for place in alive]
    assert np.asarray(result.columns["deep"]).tolist() == [[place, -place] for place in alive]
    assert to_arrow(result.columns[KEPT + "name"]).to_pylist() == [f"r{place}" for place in alive]
    assert result.rows == len(alive)
    assert result.row_numbers().tolist() == [100 + place for place in alive]


def test_rows_in_order_are_only_joined() -> None:
    result = to_result(Span(0, 0, 5, ()), [answered(range(3)), answered(range(3, 5))], [])
    assert result.columns["y"].tolist() == [0, 10, 20, 30, 40]
    assert to_arrow(result.columns[KEPT + "name"]).to_pylist() == ["r0", "r1", "r2", "r3", "r4"]
    assert list(result.columns) == ["y", "deep", "kept:name"]


def test_one_whole_batch_is_not_copied() -> None:
    batch = answered(range(4))
    assert to_result(Span(0, 0, 4, ()), [batch], []).columns["y"] is batch[1]["y"]


def test_failures_are_numbered_as_in_the_whole_input() -> None:
    span = Span(0, 10, 4, (), None, ((100, 2), (250, 2)))
    result = to_result(span, [answered(range(4))], [failure(11), failure(12)])
    assert [(found.row, found.reason, found.origin) for found in result.failures] == [
        (101, "why 11", "a.csv"),
        (250, "why 12", "a.csv"),
    ]
    assert result.row_numbers().tolist() == [100, 251]
    assert result.columns["y"].tolist() == [0, 30]


def test_span_of_which_no_batch_came_has_no_columns() -> None:
    assert dict(to_result(Span(0, 0, 2, ()), [], [failure(0), failure(1)]).columns) == {}


FOLLOWS = {"y": "x"}
LONGEST = 6


def padded(lengths: list[int], longest: int = LONGEST) -> Batch:
    arrays = {"x": np.zeros((len(lengths), longest))}
    return Batch(0, np.arange(len(lengths)), len(lengths), arrays, sizes={"x": np.array(lengths).reshape(-1, 1)})


@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=8), inner=st.sampled_from([(), (2,), (2, 3)]))
def test_output_that_follows_a_padded_input_is_cut_to_the_length_of_every_row(
    lengths: list[int], inner: tuple[int, ...]
) -> None:
    output = np.random.default_rng(1).normal(size=(len(lengths), 6, *inner)).astype(np.float32)
    given_back = answers(FOLLOWS, "y", output, padded(lengths))
    found = to_arrow(given_back)
    assert len(found) == len(lengths)
    assert found.value_lengths().to_pylist() == lengths
    flat = np.array([value for row in found.to_pylist() for value in row], np.float32)
    wanted = [output[row, :length].ravel() for row, length in enumerate(lengths)]
    np.testing.assert_array_equal(flat.ravel(), np.concatenate(wanted))


@pytest.mark.parametrize(("more", "expected"), [(1, [2, 7, 4]), (-2, [0, 4, 1])])
def test_output_that_is_longer_or_shorter_than_its_input_is_cut_to_what_every_row_gives(
    more: int, expected: list[int]
) -> None:
    output = np.zeros((3, LONGEST + more))
    assert to_arrow(answers(FOLLOWS, "y", output, padded([1, 6, 3]))).value_lengths().to_pylist() == expected


@pytest.mark.parametrize("follows", [{}, {"z": "x"}, {"y": "another"}], ids=str)
def test_output_that_does_not_follow_the_padded_input_stays_as_it_is(follows: dict[str, str]) -> None:
    output = np.zeros((2, 6))
    assert answers(follows, "y", output, padded([1, 2])) is output


def test_outputs_stay_as_they_are_where_nothing_is_padded() -> None:
    output = np.zeros((2, 6))
    assert answers(FOLLOWS, "y", output, Batch(0, range(2), 2, {})) is output


def test_output_of_open_length_is_a_list_of_one_type_in_every_batch() -> None:
    wide = answers({"y": AS_LISTS}, "y", np.ones((2, 5), bool), padded([1, 2]))
    narrow = answers({"y": AS_LISTS}, "y", np.zeros((1, 2), bool), Batch(0, range(1), 1, {}))
    batches: list[Answered] = [(range(2), {"y": wide}, {}), (range(2, 3), {"y": narrow}, {})]
    result = to_result(Span(0, 0, 3, ()), batches, [])
    assert to_arrow(result.columns["y"]).to_pylist() == [[True] * 5, [True] * 5, [False] * 2]


def test_lists_of_the_model_stay_as_they_are() -> None:
    lists = pa.array([[1], [2, 3]], pa.large_list(pa.int64()))
    assert answers({"y": "x"}, "y", lists, padded([1, 2])) is lists


def test_lists_of_different_batches_are_joined_in_order() -> None:
    first = answers(FOLLOWS, "y", np.array([[1.0, 2, 0], [3, 0, 0]]), padded([2, 1], 3))
    second = answers(FOLLOWS, "y", np.array([[4.0, 5, 6, 7, 0, 0]]), padded([4]))
    batches: list[Answered] = [(np.array([0, 2]), {"y": first}, {}), (np.array([1]), {"y": second}, {})]
    result = to_result(Span(0, 0, 3, ()), batches, [failure(2)])
    assert to_arrow(result.columns["y"]).to_pylist() == [[1, 2], [4, 5, 6, 7]]


def test_batch_of_which_every_row_is_empty_gives_empty_lists() -> None:
    found = answers(FOLLOWS, "y", np.zeros((2, 3), np.float32), padded([0, 0]))
    assert to_arrow(found).to_pylist() == [[], []]
