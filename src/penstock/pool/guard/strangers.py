"""Rows that no sample has: a runtime's answers to them show whether it computes the same model everywhere."""

from collections.abc import Iterator, Sequence

import numpy as np

from penstock.core.agreement import NANS, Strangers
from penstock.core.protocols import Looping, Replica
from penstock.core.records import Array, Column, Columns
from penstock.errors import PenstockError

_STRANGER = 1 << 24
"""An id that hardly any table has, and a length that memory still holds. A narrower type gets its largest number."""
_OUT_OF_RANGE, _NEGATIVE = "numbers that are out of range", "numbers below zero"
_ROWS = 8
"""How many answers of each kind are kept."""
_MOST_AXES = 3
"""The most axes of a batch of features or sequences, in which NaN means a missing value and a number may be an id.

In an image NaN is damage, and a number a colour.
"""


def answer_strangers(replica: Replica, first_rows: Columns, kinds: Sequence[str] | None = None) -> dict[str, Strangers]:
    """Answers to copies of the first rows with other values in them, by kind: for `kinds`, or for all that are safe.

    On a CPU, TensorFlow rejects an id beyond a table, and other runtimes answer something; some layers let a NaN
    through where others make a zero of it. A loop that counts down, or ends when numbers are small enough, never ends
    with numbers below zero or NaN: these are safe only where the model has no loop.
    """
    found: dict[str, Strangers] = {}
    for kind, batch in _strange(first_rows):
        is_safe = kind == _OUT_OF_RANGE or (isinstance(replica, Looping) and not replica.has_loops(batch))
        if not is_safe if kinds is None else kind not in kinds:
            continue
        try:
            answers = replica.predict(batch)
        except PenstockError:  # out of memory, which shows nothing
            continue
        except Exception:
            found[kind] = None
        else:
            found[kind] = {name: _first(output) for name, output in answers.items()}
    return found


def _first(output: Column) -> Column:
    """Some answers, copied so that the next batch does not change them."""
    return output[:_ROWS].copy() if isinstance(output, np.ndarray) else output[:_ROWS]


def _strange(first_rows: Columns) -> Iterator[tuple[str, Columns]]:
    """A batch for each kind; inputs that have no such values stay as they are."""

    def of(kinds: str) -> list[str]:
        return [name for name, array in first_rows.items() if array.dtype.kind in kinds and array.ndim <= _MOST_AXES]

    if of("iu"):
        yield _OUT_OF_RANGE, first_rows | {name: _with_number(first_rows[name], _STRANGER) for name in of("iu")}
    if of("i"):
        yield _NEGATIVE, first_rows | {name: _with_number(first_rows[name], -1) for name in of("i")}
    if of("f"):
        yield NANS, first_rows | {name: _with_nan(first_rows[name]) for name in of("f")}


def _with_number(array: Array, number: int) -> Array:
    """A copy whose first row is only `number`, or the largest number of its type where that is smaller."""
    copy = array.copy()
    copy[:1] = min(number, np.iinfo(array.dtype).max)
    return copy


def _with_nan(array: Array) -> Array:
    """A copy with a first row of only NaN, and a second row with a single one."""
    copy = array.copy()
    copy[:1] = np.nan
    copy[1:2].reshape(-1)[:1] = np.nan
    return copy
