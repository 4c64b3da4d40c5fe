"""What is read ahead of the replicas, and how it travels."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from penstock.estimator.elements import ElementSource, location_of, open_bundle, pack_to_row, unpack_row
from penstock.estimator.replicas import MOST_BYTES, ElementReader, num_bytes

STRING = b"x" * (1 << 20)


class Input:
    """An input that gives these elements, or raises."""

    def __init__(self, *elements: Any) -> None:
        self._elements = iter(elements)
        self.count = 0

    def read(self) -> list[Any] | None:
        element = next(self._elements, None)
        if isinstance(element, Exception):
            raise element
        self.count += element is not None
        return element


def element(number: int) -> list[Any]:
    return [np.array([number])]


def reader(read: Callable[[], list[Any] | None], most_elements: int = 4, most_ahead: int = 8) -> ElementReader:
    """One whose thread runs."""
    made = ElementReader(read, most_elements, most_ahead)
    made.start()
    return made


def numbers(taken: Any) -> list[int]:
    return [int(value[0][0]) for value in taken.elements]


def wait_until_ended(made: ElementReader) -> None:
    with made._changed:
        made._changed.wait_for(lambda: made._has_ended)


def test_strings_weigh_what_they_hold() -> None:
    assert num_bytes([np.array([STRING, STRING], object), np.zeros(3, np.float32)]) == 2 * (8 + len(STRING)) + 12


def test_a_bundle_is_full_when_its_strings_are() -> None:
    made = reader(Input(*([np.array([STRING], object)] for _ in range(20))).read, most_elements=64)
    wait_until_ended(made)
    bundle = made.take(replicas=1)
    assert bundle is not None
    assert bundle.weight - len(STRING) - 8 < MOST_BYTES <= bundle.weight
    assert len(bundle.elements) == 16


def test_small_elements_travel_together_and_large_ones_alone() -> None:
    large = [np.zeros(MOST_BYTES + 1, np.uint8)]
    made = reader(Input(*map(element, range(5)), large, large).read)
    wait_until_ended(made)
    counts = [len(bundle.elements) for bundle in iter(lambda: made.take(replicas=1), None)]
    assert counts == [4, 2, 1]


def test_replicas_share_what_is_there() -> None:
    made = reader(Input(*map(element, range(8))).read, most_elements=64)
    wait_until_ended(made)
    assert [numbers(bundle) for bundle in iter(lambda: made.take(replicas=3), None)] == [
        [0, 1, 2],
        [3, 4],
        [5],
        [6],
        [7],
    ]


def test_nothing_is_given_that_is_not_read_yet() -> None:
    gate = threading.Event()

    def read() -> list[Any] | None:
        gate.wait()
        return None

    made = reader(read)
    assert made.take(replicas=1) is None
    gate.set()
    assert not made.wait()


def test_no_more_is_read_than_may_be_ahead() -> None:
    given = Input(*map(element, range(20)))
    made = reader(given.read, most_elements=1, most_ahead=3)
    with closing(made):
        taken = []
        for number in range(20):
            assert made.wait()
            assert given.count <= number + 3
            bundle = made.take(replicas=1)
            assert bundle is not None
            taken += numbers(bundle)
            made.finish(bundle.weight)
    assert taken == list(range(20))


def test_what_came_before_an_error_of_the_input_is_given_first() -> None:
    made = reader(Input(element(0), ValueError("the disk")).read)
    assert made.wait()
    bundle = made.take(replicas=1)
    assert bundle is not None
    assert numbers(bundle) == [0]
    with pytest.raises(ValueError, match="the disk"):
        made.wait()


def test_a_reader_that_is_closed_reads_no_more() -> None:
    given = Input(*map(element, range(20)))
    made = reader(given.read, most_elements=1, most_ahead=2)
    assert made.wait()
    made.close()
    wait_until_ended(made)
    assert given.count <= 2


def test_a_bundle_is_read_from_where_its_source_put_it_until_it_is_released() -> None:
    source = ElementSource()
    span = source.add([element(3), [np.array([b"text", b""], object)]])
    (block,) = source.read(span, ["elements"])
    places: Any = block.columns["elements"]
    first, second = open_bundle(places[0])
    assert first[0].tolist() == [3]
    assert second[0].tolist() == [b"text", b""]
    source.release(span)
    with pytest.raises(FileNotFoundError):
        open_bundle(location_of(span))


def test_answers_of_any_structure_come_back_and_can_be_written_to() -> None:
    answers = [{"scores": np.arange(6.0).reshape(2, 3)}, {"scores": np.zeros((0, 3))}]
    back, problem = unpack_row(pack_to_row((answers, "why")))
    assert problem == "why"
    back[0]["scores"][0] = 7
    assert back[0]["scores"].tolist() == [[7, 7, 7], [3, 4, 5]]
    assert back[1]["scores"].shape == (0, 3)
