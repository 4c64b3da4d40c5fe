"""The user's own function over every source: every kind of function sees every row as it is, and loses none."""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.feeds import Dense, Feed, Ragged
from penstock.core.job import Job
from penstock.core.protocols import Source
from penstock.core.records import STRING, UNWATCHED, RowFailure, Signature, TensorSpec
from penstock.jobs import steps
from penstock.jobs.bind import bind, described_as_floats
from penstock.options.records import PredictOptions
from penstock.pool.loading import read_pieces

from .case import Case
from .promises import opened
from .test_every_source import CASES, FAMILIES, Written, written

__all__ = ["written"]
pytestmark = pytest.mark.timeout(60)

MODEL = Signature((TensorSpec("x", "float64", (2,)),), (TensorSpec("y", "float64", ()),))
TEXT_MODEL = Signature((TensorSpec("x", STRING, ()),), (TensorSpec("y", "float64", ()),))
LIST_MODEL = Signature((TensorSpec("x", "float64", (None,)),), (TensorSpec("y", "float64", ()),))
LEARN_ROWS = 16


ENCODED = ("image", "audio")


def mark(row: Mapping[str, Any]) -> float:
    """A number that is another one for another row, by all that is not decoded in it.

    Of a path it is the name alone: the folder is another one in each run of the tests.
    """
    plain = {name: plainly(value) for name, value in sorted(row.items()) if name not in ENCODED}
    if "path" in plain:
        plain["path"] = os.path.basename(plain["path"])
    return float(zlib.crc32(repr(plain).encode()) % 10_000)


def plainly(value: Any) -> Any:
    """A value whatever its dtype: 7.0 as 7."""
    array = np.asarray(value)
    is_whole = array.dtype.kind == "f" and (array == np.rint(array)).all()
    return (array.astype(np.int64) if is_whole else array).tolist()


def seen(row: Mapping[str, Any]) -> float:
    """The mark of a row as a function gets it: images and audio decoded."""
    assert all(np.asarray(row[name]).dtype in (np.uint8, np.float32) for name in ENCODED if name in row)
    return mark(row)


def rows_in(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for place in range(len(next(iter(block.values())))):
        yield {name: column[place] for name, column in block.items()}


def marks(block: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    return np.array([[seen(row), 1.0] for row in rows_in(block)])


class Called:
    """An object that can be called."""

    def __call__(self, block: dict[str, Any]) -> dict[str, Any]:
        return {"marks": marks(block)}


def fails_on_some(block: dict[str, Any]) -> dict[str, Any]:
    found = marks(block)
    if (found[:, 0] % 5 == 0).any():
        raise ValueError("a multiple of five")
    return {"marks": found}


@dataclass(frozen=True)
class Kind:
    """A kind of function: what the model gets of it is what `shown` makes of a row's mark."""

    function: Callable[..., Any]
    model: Signature = MODEL
    is_by_row: bool = False
    shown: Callable[[float], Any] = lambda value: [value, 1.0]


KINDS = {
    "a new column": Kind(lambda block: {"marks": marks(block)}),
    "an array alone": Kind(marks),
    "a column of the input's name": Kind(lambda block: {next(iter(block)): marks(block)}),
    "two columns": Kind(lambda block: {"x": marks(block), "seen": [seen(row) for row in rows_in(block)]}),
    "lists": Kind(
        lambda block: {"v": [[seen(row)] * (1 + int(seen(row)) % 3) for row in rows_in(block)]},
        LIST_MODEL,
        shown=lambda value: [value] * (1 + int(value) % 3),
    ),
    "text": Kind(
        lambda block: {"t": [f"é{seen(row)}" for row in rows_in(block)]},
        TEXT_MODEL,
        shown=lambda value: f"é{value}".encode(),
    ),
    "an Arrow array": Kind(lambda block: {"v": pa.array(marks(block).tolist(), pa.list_(pa.float64(), 2))}),
    "an object": Kind(Called()),
    "of a row, a dict": Kind(lambda row: {"marks": [seen(row), 1.0]}, is_by_row=True),
    "of a row, a value": Kind(lambda row: np.array([seen(row), 1.0]), is_by_row=True),
}


def fed(kind: Kind, source: Source) -> tuple[list[Any], list[RowFailure]]:
    """What the model would be fed with, as a job finds it out and loads it, and the rows that failed."""
    given: dict[str, Any] = {"preprocess_row" if kind.is_by_row else "preprocess": kind.function}
    preprocess = steps.make_preprocess(source, kind.model, PredictOptions(**given))
    assert preprocess is not None
    source = source.with_floats(sorted(described_as_floats(preprocess.takes)))
    first = next(iter(source.divide(LEARN_ROWS)))
    preprocess = preprocess.learn(list(source.read(first, tuple(preprocess.takes))), UNWATCHED)
    bindings = bind(kind.model, source, preprocess.gives, PredictOptions(**given))
    job = Job(source, bindings, (), batch_size=8, preprocess=preprocess)
    rows: list[Any] = []
    failures: list[RowFailure] = []
    for span in source.divide(64):
        for piece in read_pieces(job, span):
            rows += rows_of_feed(piece.feeds["x"])
            failures += piece.failures.values()
    return rows, failures


def rows_of_feed(feed: Feed) -> list[Any]:
    if isinstance(feed, Ragged):
        return [feed.values[start:stop].tolist() for start, stop in itertools.pairwise(feed.offsets)]
    assert isinstance(feed, Dense)
    return list(feed.array.tolist())


def expected_marks(case: Case, paths: list[str]) -> list[float]:
    return [mark(row) for row in rows_in(case.rows_at(paths))]


every_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


EVERYWHERE = {"a new column", "lists", "of a row, a dict"}
"""Kinds that every source is tried with; the others with one source of each family, and with all in `make test-all`."""
FIRST_OF_FAMILY = {cases[0].name for cases in FAMILIES}


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        pytest.param(
            KINDS[name], case, id=f"{name}-{case.name}",
            marks=() if name in EVERYWHERE or case.name in FIRST_OF_FAMILY else pytest.mark.slow,
        )
        for name in KINDS
        for case in CASES
    ],
)  # fmt: skip
def test_every_kind_of_function_sees_every_row_of_every_source(kind: Kind, case: Case, written: Written) -> None:
    _, paths = written(case)
    with opened(case, paths) as source:
        rows, failures = fed(kind, source)
    assert failures == []
    assert rows == [kind.shown(value) for value in expected_marks(case, paths)]


@every_case
def test_rows_on_which_a_function_raises_fail_alone_whatever_the_source(case: Case, written: Written) -> None:
    _, paths = written(case)
    with opened(case, paths) as source:
        rows, failures = fed(Kind(fails_on_some), source)
    values = expected_marks(case, paths)
    bad = [row for row, value in enumerate(values) if value % 5 == 0]
    assert [failure.row for failure in failures] == bad
    assert {failure.reason.partition(" (")[0] for failure in failures} <= {"ValueError: a multiple of five"}
    assert rows == [[value, 1.0] if row not in bad else [0.0, 0.0] for row, value in enumerate(values)]
