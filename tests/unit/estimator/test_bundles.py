"""The belt between reading, predicting and taking."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.estimator.bundles import MOST_BYTES, Bundles, num_bytes
from penstock.estimator.elements import ElementFiles

STRING = b"x" * (1 << 20)


def belt(most_elements: int = 4, most_ahead: int = 8) -> Bundles:
    return Bundles(most_elements, most_ahead, wake=lambda: None)


def element(number: int) -> list[np.ndarray]:
    return [np.array([number])]


def test_strings_weigh_what_they_hold() -> None:
    assert num_bytes([np.array([STRING, STRING], object), np.zeros(3, np.float32)]) == 2 * (8 + len(STRING)) + 12


def test_a_bundle_is_full_when_its_strings_are() -> None:
    bundles = belt(most_elements=64)
    for _ in range(20):
        bundles.add([np.array([STRING], object)])
    bundle = bundles.take(is_idle=False)
    assert bundle is not None
    assert bundle.num_bytes - len(STRING) < MOST_BYTES <= bundle.num_bytes


def test_a_bundle_that_is_not_full_goes_to_a_process_that_has_nothing_to_do() -> None:
    seconds = iter([0.0, 0.001, 0.1])
    bundles = Bundles(4, 8, wake=lambda: None, clock=lambda: next(seconds))
    bundles.add(element(0))
    assert bundles.take(is_idle=False) is None
    assert bundles.take(is_idle=True) is None
    bundle = bundles.take(is_idle=True)
    assert bundle is not None
    assert bundle.count == 1


def test_answers_leave_in_order_and_memory_with_them() -> None:
    bundles, files = belt(most_elements=1), ElementFiles()
    for number in range(2):
        bundles.add(element(number))
    first, second = bundles.take(is_idle=True), bundles.take(is_idle=True)
    assert first is not None
    assert second is not None
    for bundle in (second, first):
        bundle.load(files)
        bundles.answer(bundle, [f"answer {bundle.span and bundle.span.index}"])
    bundles.end()
    assert list(bundles.in_order()) == [first, second]
    files.close()


def test_no_more_is_read_than_may_be_ahead() -> None:
    bundles = belt(most_elements=1, most_ahead=8)
    for number in range(2):
        assert bundles._has_room()
        bundles.add(element(number))
    assert not bundles._has_room()


def test_what_came_before_an_error_of_the_input_is_answered_first() -> None:
    bundles = belt()
    bundles.add(element(0))
    bundles.end(ValueError("the disk"))
    bundle = bundles.take(is_idle=False)
    assert bundle is not None
    bundles.answer(bundle, ["answer"])
    taken = bundles.in_order()
    assert next(taken).answers == ["answer"]
    with pytest.raises(ValueError, match="the disk"):
        next(taken)


def test_what_has_no_answer_is_there_to_be_predicted_by_its_taker() -> None:
    bundles, files = belt(most_elements=2), ElementFiles()
    for number in range(3):
        bundles.add(element(number))
    bundle = bundles.take(is_idle=True)
    assert bundle is not None
    bundle.load(files)
    bundles.answer(bundle, ["answer"])
    bundles.leave()
    taken = bundles.in_order()
    assert [value[0].tolist() for value in next(taken).remaining()] == [[1]]
    assert [value[0].tolist() for value in next(taken).remaining()] == [[2]]
    files.close()
