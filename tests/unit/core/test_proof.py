"""Another runtime is taken only where sample answers prove that it computes the same model."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.agreement import FLOAT64, Noise, distances, prove

RNG = np.random.default_rng(3)
SCORES = RNG.normal(size=(64, 10))


def softmax(values: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), dtype=np.float32)


def test_noise_in_the_last_digits_is_the_same_model() -> None:
    theirs = SCORES.astype(np.float32)
    proof = prove({"y": theirs * np.float32(1 + 1e-6)}, {"y": theirs}, 1e-4)
    assert proof.problem is None
    assert 0 < proof.difference < 1e-5


@pytest.mark.parametrize("factor", [1.01, -1.0, 0.0])
def test_wrong_answers_are_found(factor: float) -> None:
    theirs = SCORES.astype(np.float32)
    proof = prove({"y": theirs * np.float32(factor)}, {"y": theirs}, 1e-4)
    assert proof.problem is not None
    assert "y, row" in proof.problem


def test_an_output_that_is_the_same_in_every_row_proves_nothing() -> None:
    constant = np.tile(SCORES[:1].astype(np.float32), (64, 1))
    for wobble in (0.0, 1e-9):
        answers = {"y": constant + np.float32(wobble) * SCORES.astype(np.float32)}
        assert "proves nothing" in (prove(answers, answers, 1e-4).problem or "")
        assert not prove(answers, answers, 1e-4).is_comparable


def test_one_constant_output_among_others_is_enough() -> None:
    answers = {"y": SCORES.astype(np.float32), "bias": np.ones((64, 1), np.float32)}
    assert "bias" in (prove(answers, answers, 1e-4).problem or "")


@pytest.mark.parametrize("theirs", [softmax(SCORES), SCORES.astype(np.float32)], ids=["probabilities", "logits"])
def test_another_class_is_found_even_within_the_tolerance(theirs: np.ndarray) -> None:  # type: ignore[type-arg]
    theirs, row = theirs.copy(), 5
    first, second = np.argsort(theirs[row])[::-1][:2]
    middle = (theirs[row, first] + theirs[row, second]) / 2
    theirs[row, first], theirs[row, second] = middle + 2e-5, middle - 2e-5
    ours = theirs.copy()
    ours[row, first], ours[row, second] = middle - 1e-5, middle + 1e-5
    problem = prove({"p": ours}, {"p": theirs}, 1e-3).problem
    assert problem is not None
    assert f"row {row}: class {second} here, class {first} there" in problem


def test_error_of_a_small_quantity_is_found_beside_a_large_one() -> None:
    prices, shares = RNG.uniform(1e5, 1e6, 64), RNG.uniform(0.2, 0.8, 64)
    theirs = np.stack([prices, shares], axis=1).astype(np.float32)
    ours = theirs.copy()
    ours[:, 0] *= 1 + 1e-6
    assert prove({"y": ours}, {"y": theirs}, 1e-4).problem is None
    ours[3, 1] += 0.01
    proof = prove({"y": ours}, {"y": theirs}, 1e-4)
    assert proof.problem is not None
    assert "y, row 3" in proof.problem
    assert "place 1 of a row" in proof.problem
    assert prove({"y": ours}, {"y": theirs}, 0.1).problem is None


def test_small_quantity_may_be_as_far_off_as_its_own_noise() -> None:
    theirs = np.stack([1e6 * SCORES[:, 0], SCORES[:, 1]], axis=1).astype(np.float32)
    ours = theirs + np.array([0, 0.005], np.float32) * SPREAD
    assert prove({"y": ours}, {"y": theirs}, 1e-4).problem is not None
    assert prove({"y": ours}, {"y": theirs}, 1e-4, Noise({"y": np.array([1.0, 1e-6])}, FLOAT64)).problem is not None
    assert prove({"y": ours}, {"y": theirs}, 1e-4, Noise({"y": np.array([0.0, 0.01])}, FLOAT64)).problem is None


def test_quantity_that_hardly_varies_has_the_noise_of_its_size() -> None:
    theirs = np.stack([SCORES[:, 0], 50 + 1e-4 * SCORES[:, 1], np.zeros(64)], axis=1).astype(np.float32)
    ours = (theirs * np.float32(1 + 3e-6)).astype(np.float32)
    ours[:, 2] = 1e-9
    assert prove({"y": ours}, {"y": theirs}, 1e-4).problem is None


def test_digits_of_small_probabilities_are_noise() -> None:
    theirs = softmax(20 * SCORES)
    ours = softmax(20 * SCORES + 2e-3 * RNG.normal(size=SCORES.shape))
    assert prove({"p": ours}, {"p": theirs}, 1e-3).problem is None


def test_lists_of_numbers_differ_by_what_they_differ() -> None:
    lists = [[1.0, 2.0], [3.0], [5.0, 0.0, 1.0]]
    theirs = pa.array(lists, pa.large_list(pa.float32()))
    ours = pa.array([[x + 5e-5 for x in each] for each in lists], pa.large_list(pa.float32()))
    proof = prove({"y": ours}, {"y": theirs}, 1e-4)
    assert proof.problem is None
    assert proof.difference == pytest.approx(1e-5, rel=0.01)
    assert prove({"y": ours[:2]}, {"y": theirs}, 1e-4).difference == float("inf")


def test_a_tie_may_fall_either_way() -> None:
    theirs = softmax(SCORES)
    row = 5
    first, second = np.argsort(theirs[row])[::-1][:2]
    theirs[row, second] = theirs[row, first]
    ours = theirs.copy()
    ours[row, second] += 1e-8
    ours[row, first] -= 1e-8
    assert prove({"p": ours}, {"p": theirs}, 1e-4).problem is None


def test_missing_numbers_are_equal_only_to_their_like() -> None:
    theirs = SCORES.astype(np.float32)
    ours = theirs.copy()
    ours[3, 3] = np.nan
    assert prove({"y": ours}, {"y": theirs}, 1e-4).problem is not None


def test_text_must_be_equal() -> None:
    theirs = np.array([b"a", b"b", b"c"], dtype=object)
    assert prove({"y": theirs.copy()}, {"y": theirs}, 1e-4).problem is None
    assert prove({"y": theirs[::-1].copy()}, {"y": theirs}, 1e-4).problem is not None


THEIRS = SCORES.astype(np.float32)
SPREAD = float(np.ptp(THEIRS))


def noisy(share: float) -> np.ndarray:  # type: ignore[type-arg]
    """The same answers, but one value is off by so much of the spread."""
    ours = THEIRS.copy()
    ours[7, np.argmin(ours[7])] -= np.float32(share * SPREAD)
    return ours


def measured(share: float) -> Noise:
    return Noise({"y": np.array([share * SPREAD])}, FLOAT64)


def test_what_is_as_near_to_the_truth_as_the_framework_is_taken() -> None:
    proof = prove({"y": noisy(1.8e-4)}, {"y": THEIRS}, 1e-4)
    assert proof.problem is not None
    assert proof.may_be_noise(1e-4)
    proof = prove({"y": noisy(1.8e-4)}, {"y": THEIRS}, 1e-4, measured(1e-4))
    assert proof.problem is None
    assert proof.difference == pytest.approx(1.8e-4, rel=0.02)
    assert proof.allowed == pytest.approx(2e-4)
    assert proof.needed == 0.0


def test_what_is_further_from_the_truth_than_the_framework_is_refused() -> None:
    proof = prove({"y": noisy(3e-4)}, {"y": THEIRS}, 1e-4, measured(1e-4))
    assert "allowed" in (proof.problem or "")
    assert proof.needed == pytest.approx(3e-4, rel=0.02)


def test_noise_never_allows_more_than_a_thousandth() -> None:
    assert prove({"y": noisy(1.5e-3)}, {"y": THEIRS}, 1e-4, measured(1e-2)).problem is not None
    assert prove({"y": noisy(0.9e-3)}, {"y": THEIRS}, 1e-4, measured(1e-2)).problem is None
    assert not prove({"y": noisy(1.5e-3)}, {"y": THEIRS}, 1e-4).may_be_noise(1e-4)


def test_noise_allows_nothing_to_who_asks_for_less_difference_than_the_default() -> None:
    proof = prove({"y": noisy(1.8e-4)}, {"y": THEIRS}, 1e-5, measured(1e-4))
    assert proof.problem is not None
    assert not proof.may_be_noise(1e-5)


def test_noise_of_one_output_allows_nothing_to_another() -> None:
    ours, theirs = {"y": THEIRS, "z": noisy(1.8e-4)}, {"y": THEIRS, "z": THEIRS}
    assert prove(ours, theirs, 1e-4, measured(1e-4)).problem is not None


def test_classes_closer_than_the_noise_may_change_places() -> None:
    theirs = THEIRS.copy()
    first, second = np.argsort(theirs[5])[::-1][:2]
    theirs[5, second] = theirs[5, first] - np.float32(1e-4 * SPREAD)
    ours = theirs.copy()
    ours[5, [first, second]] = theirs[5, [second, first]]
    assert "class" in (prove({"y": ours}, {"y": theirs}, 1e-3).problem or "")
    assert prove({"y": ours}, {"y": theirs}, 1e-3, measured(1e-4)).problem is None


def test_noise_that_was_measured_in_two_ways_is_the_larger_one() -> None:
    one, other = {"y": np.array([1.0, 4.0]), "z": np.array([2.0])}, {"y": np.array([3.0, 0.0])}
    joined = Noise(one, "one").joined(Noise(other, "another"))
    assert joined.how == "one and another"
    assert {name: each.tolist() for name, each in joined.distances.items()} == {"y": [3.0, 4.0], "z": [2.0]}


def test_distances_are_those_of_numbers_of_one_shape() -> None:
    ours = {"y": THEIRS, "text": np.array([b"a"], dtype=object), "gone": THEIRS, "long": THEIRS[:3]}
    theirs = {"y": THEIRS.astype(np.float64) + 0.5, "text": np.array([b"a"], dtype=object), "long": THEIRS}
    assert list(found := distances(ours, theirs)) == ["y"]
    assert found["y"] == pytest.approx(np.full(10, 0.5), rel=1e-6)
