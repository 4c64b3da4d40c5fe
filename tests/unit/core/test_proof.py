"""Another runtime is taken only where sample answers prove that it computes the same model."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.core.agreement import prove

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
