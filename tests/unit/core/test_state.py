"""What a call changes in a model: the seeds of its batches, and what it is called."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.state import SEEDS, STATELESS, VARIABLES, State, derived_seed

KINDS = st.sampled_from(["int32", "uint32", "int64"])


@given(st.integers(-(2**70), 2**70), st.integers(0, 40), st.integers(0, 2**40), KINDS)
def test_seed_depends_on_nothing_but_what_it_is_made_from(seed: int, position: int, row: int, dtype: str) -> None:
    first = derived_seed(seed, position, row, (2,), dtype)
    assert first.dtype == dtype
    assert first.shape == (2,)
    assert (first >= 0).all()
    np.testing.assert_array_equal(first, derived_seed(seed, position, row, (2,), np.dtype(dtype)))


@given(KINDS, st.integers(0, 2**30), st.integers(0, 2**30))
def test_batches_generators_and_jobs_have_seeds_of_their_own(dtype: str, row: int, other: int) -> None:
    mine = derived_seed(0, 0, row, (2,), dtype)
    assert row == other or not np.array_equal(mine, derived_seed(0, 0, other, (2,), dtype))
    assert not np.array_equal(mine, derived_seed(0, 1, row, (2,), dtype))
    assert not np.array_equal(mine, derived_seed(1, 0, row, (2,), dtype))


@pytest.mark.parametrize(
    ("names", "shown"),
    [((), ""), (("rnn", "rnn"), "rnn"), (("a", "b", "c"), "a, b, c"), (("a", "b", "c", "d"), "a, b, c, …")],
)
def test_few_names_tell_enough(names: tuple[str, ...], shown: str) -> None:
    assert str(State(VARIABLES, names)) == shown


def test_nothing_is_changed_unless_it_was_seen() -> None:
    assert State() == STATELESS
    assert State(SEEDS, ("a",)) != STATELESS
