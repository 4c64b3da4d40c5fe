"""The variables that a model changes when it is called: held, put back, and set for each batch."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from penstock.core.records import Array
from penstock.core.state import NONE, SEEDS, STATELESS, VARIABLES, State, derived_seed

SEED_NAME = "seed_generator_state"
"""Keras's name for the variable of every random number generator, also in exported models."""


class CallState:
    """The variables that the calls of one replica change.

    Calls of a model without state run at the same time. Calls of a model that only draws random numbers run one by one,
    each with the seeds of its own batch. All other calls must come one after the other, because each reads what the
    last one left.
    """

    def __init__(self) -> None:
        self.state = STATELESS
        self._variables: list[Any] = []
        self._is_seed: list[bool] = []
        self._held: list[Array] = []
        self._seed: int | None = None
        self._lock = threading.Lock()
        self._row = threading.local()

    def note(self, variables: Sequence[Any], is_seed: Sequence[bool], state: State) -> None:
        """Add what one traced step changes. Another step, for rows of another shape, may change more."""
        known = {id(each) for each in self._variables}
        for variable, is_a_seed in zip(variables, is_seed, strict=True):
            if id(variable) not in known:
                self._variables.append(variable)
                self._is_seed.append(is_a_seed)
        if self.state.kind == NONE or state.kind == VARIABLES:
            self.state = state

    def hold(self, seed: int | None) -> None:
        """Remember the values of the variables. Random numbers come from `seed`; without it, from the model's seeds."""
        self._seed = seed
        self._held = [np.array(each.numpy() if hasattr(each, "numpy") else each) for each in self._variables]
        if seed is not None and self.state.kind == VARIABLES:
            self._held = [
                self._drawn(position, 0) if self._is_seed[position] else value
                for position, value in enumerate(self._held)
            ]

    def restore(self) -> None:
        """Give the variables the values that `hold` remembered."""
        for variable, value in zip(self._variables, self._held, strict=False):
            variable.assign(value)

    def turn(self, row: int) -> None:
        """Note that the next call of this thread is for the batch that begins with `row`."""
        self._row.number = row

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        if self.state.kind != SEEDS or self._seed is None:
            yield
            return
        row = getattr(self._row, "number", 0)
        with self._lock:
            for position, variable in enumerate(self._variables):
                variable.assign(self._drawn(position, row))
            yield

    def _drawn(self, position: int, row: int) -> Array:
        assert self._seed is not None
        variable = self._variables[position]
        return derived_seed(self._seed, position, row, tuple(variable.shape), _numpy_dtype(variable))


def _numpy_dtype(variable: Any) -> Any:
    dtype = variable.dtype
    return getattr(dtype, "as_numpy_dtype", dtype)
