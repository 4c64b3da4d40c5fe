"""What a loader does with a span: read, preprocess, cut into batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.columns import to_arrow
from penstock.core.feeds import Dense, Encoded, Mask, Ragged
from penstock.core.job import Job
from penstock.core.preprocessing import Preprocess
from penstock.core.records import STRING, UNWATCHED, Binding, Block, SourceColumn, Span, TensorSpec
from penstock.errors import InputError
from penstock.pool.loading import load_batches, read_pieces
from penstock.sources.python.memory import InMemory
from tests.unit.core.encoded import Diary, Letters, poisoned

from .piping import Blocks, X, inputs_of


class Fixture(Blocks):
    """A source of one block, whatever its columns are."""

    def __init__(self, columns: Mapping[str, SourceColumn]) -> None:
        super().__init__([len(next(iter(columns.values())))])
        self._columns = columns

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        yield Block(span.start, span.rows, {name: self._columns[name][: span.rows] for name in columns})


def test_inputs_take_the_dtype_and_shape_of_their_binding() -> None:
    source = InMemory({"pixels": np.arange(24, dtype=np.uint8).reshape(2, 12)})
    job = Job(source, (Binding("image", ("pixels",), "uint8", (2, 2, 3)),), (), 2)
    (piece,) = read_pieces(job, Span(0, 0, 2, ()))
    feed = piece.feeds["image"]
    assert isinstance(feed, Dense)
    assert feed.array.shape == (2, 2, 2, 3)
    assert feed.array.dtype == np.uint8
    assert dict(piece.kept) == {}


def test_rows_of_every_block_are_read_in_order_with_what_is_kept_of_them() -> None:
    job = Job(Blocks([3, 1, 4], failures=[5]), (X,), ("id", "name"), 4)
    pieces = list(read_pieces(job, Span(0, 4, 8, ())))
    assert [(piece.start, piece.rows) for piece in pieces] == [(4, 3), (7, 1), (8, 4)]
    assert [row for piece in pieces for row in np.asarray(piece.kept["id"]).tolist()] == list(range(4, 12))
    assert [to_arrow(piece.kept["name"]).to_pylist() for piece in pieces][1] == ["r7"]
    assert [row for piece in pieces for row in piece.failures] == [5]


def test_batches_of_a_span_are_full_and_cover_it() -> None:
    batches = list(load_batches(Job(Blocks([3, 1, 4]), (X,), ("id",), 3), Span(0, 4, 8, ())))
    assert [list(batch.positions) for batch in batches] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert [batch.arrays["x"].shape for batch in batches] == [(3, 3)] * 3
    np.testing.assert_array_equal(batches[1].arrays["x"], inputs_of(np.arange(7, 10)))


@pytest.mark.parametrize("sizes", [[3], [5], [2, 2, 2], []], ids=str)
def test_source_that_gives_another_number_of_rows_is_an_input_error(sizes: list[int]) -> None:
    with pytest.raises(InputError) as caught:
        list(load_batches(Job(Blocks(sizes), (X,), (), 4), Span(0, 10, 4, ())))
    assert caught.value.problem == "the input changed while it was read"
    assert caught.value.received == f"{sum(sizes)} rows"
    assert caught.value.allowed == "4 rows from row 10"


def test_reading_is_announced_and_ended() -> None:
    diary = Diary()
    batches = load_batches(Job(Blocks([2, 2]), (X,), (), 4), Span(0, 10, 4, ()), watch=diary)
    assert len(list(batches)) == 1
    assert diary.begun == [(10, 4), (12, 2), (14, 0)]
    assert diary.ends == 1


class TestRowsOfDifferentLengths:
    WORDS = pa.array([[1], [2, 3, 4], None, [5, 6]], pa.list_(pa.int32()))
    TOKENS = Binding("tokens", ("words",), "int32", (None,))
    MASK = Binding("mask", ("words",), "float32", (None,), mask_of="tokens")

    def job(self, *bindings: Binding) -> Job:
        buckets = {binding.input: [[2, 4]] for binding in bindings if None in binding.shape}
        return Job(Fixture({"words": self.WORDS, "id": np.arange(4)}), bindings, ("id",), 2, buckets=buckets)

    def test_lists_are_fed_as_they_are_with_a_mask_of_their_lengths(self) -> None:
        (piece,) = read_pieces(self.job(self.TOKENS, self.MASK), Span(0, 0, 4, ()))
        assert isinstance(piece.feeds["tokens"], Ragged)
        assert isinstance(piece.feeds["mask"], Mask)
        assert piece.feeds["mask"].dtype == np.float32
        assert piece.feeds["tokens"].sizes().tolist() == piece.feeds["mask"].sizes().tolist() == [[1], [3], [0], [2]]
        assert [(row, failure.reason) for row, failure in piece.failures.items()] == [(2, "column 'words' is null")]

    def test_mask_may_come_before_what_it_masks(self) -> None:
        (piece,) = read_pieces(self.job(self.MASK, self.TOKENS), Span(0, 0, 4, ()))
        assert set(piece.feeds) == {"tokens", "mask"}

    def test_batches_are_padded_to_boundaries_with_their_kept_columns_and_failures(self) -> None:
        batches = list(load_batches(self.job(self.TOKENS, self.MASK), Span(0, 0, 4, ())))
        assert [batch.arrays["tokens"].shape for batch in batches] == [(2, 4), (2, 2)]
        long, short = batches
        assert long.arrays["tokens"].tolist() == [[2, 3, 4, 0], [5, 6, 0, 0]]
        assert long.arrays["mask"].tolist() == [[1, 1, 1, 0], [1, 1, 0, 0]]
        assert long.kept["id"].tolist() == [1, 3]
        assert short.kept["id"].tolist() == [0, 2]
        assert [failure.row for failure in short.failures] == [2]
        assert long.failures == ()


class TestEncodedColumns:
    LETTERS = (b"ab", b"!c", b"de")

    def test_they_wait_until_it_is_known_where_they_belong(self) -> None:
        column = Letters(self.LETTERS)
        job = Job(Fixture({"x": column}), (Binding("x", ("x",), "uint8", (2,)),), (), 4)
        (piece,) = read_pieces(job, Span(0, 0, 3, ()))
        assert isinstance(piece.feeds["x"], Encoded)
        assert column.decoded == []

    def test_they_are_decoded_into_the_batch_and_broken_ones_named(self) -> None:
        job = Job(Fixture({"x": Letters(self.LETTERS)}), (Binding("x", ("x",), "uint8", (2,)),), (), 4)
        diary = Diary()
        (batch,) = load_batches(job, Span(0, 50, 3, ()), watch=diary)
        assert batch.arrays["x"].tolist() == [[*b"ab"], [0, 0], [*b"de"], [*b"de"]]
        (failure,) = batch.failures
        assert (failure.row, failure.stage, failure.error, failure.reason) == (
            51,
            "load",
            "OSError",
            "OSError: broken: !c",
        )
        assert [begun for begun in diary.begun if begun[1] == 1] == [(50, 1), (51, 1), (52, 1)]

    def test_model_that_takes_strings_and_kept_columns_get_them_as_they_are(self) -> None:
        column = Letters(self.LETTERS)
        job = Job(Fixture({"x": column}), (Binding("x", ("x",), STRING, ()),), ("x",), 3)
        (batch,) = load_batches(job, Span(0, 0, 3, ()))
        assert batch.arrays["x"].tolist() == list(self.LETTERS)
        assert to_arrow(batch.kept["x"]).to_pylist() == list(self.LETTERS)
        assert column.decoded == []

    def test_poisoned_rows_are_failures_and_never_decoded(self) -> None:
        column = Letters([b"ab", b"kill", b"de"])
        job = Job(Fixture({"x": column}), (Binding("x", ("x",), "uint8", (2,)),), (), 4)
        watch = Diary(poisoned=poisoned(51))
        (batch,) = load_batches(job, Span(0, 50, 3, ()), watch=watch)
        assert column.decoded == [b"ab", b"de"]
        assert batch.failures == (watch.poisoned[51],)


class TestWithAFunction:
    TAKES: Mapping[str, TensorSpec]

    def job(self, function: Any, *, keep: tuple[str, ...] = ()) -> Job:
        source = Blocks([3, 5], failures=[1])
        takes = {"x": TensorSpec("x", "float32", (3,)), "name": TensorSpec("name", STRING, ())}
        gives = {"y": TensorSpec("y", "float32", (3,)), "long": TensorSpec("long", "int64", ())}
        preprocess = replace(Preprocess.of(function, is_by_row=False), takes=takes, gives=gives)
        return Job(source, (Binding("x", ("y",), "float32", (3,)),), keep, 4, preprocess)

    @staticmethod
    def shift(columns: dict[str, Any]) -> dict[str, Any]:
        if "r6" in columns["name"].tolist():
            raise ValueError("six")
        return {"y": columns["x"] + 1, "long": [len(name) for name in columns["name"]]}

    def test_batches_hold_what_it_made_and_failures_of_every_kind(self) -> None:
        batches = list(load_batches(self.job(self.shift), Span(0, 0, 8, ())))
        fed = np.concatenate([batch.arrays["x"][: batch.rows] for batch in batches])
        alive = [0, 2, 3, 4, 5, 7]
        np.testing.assert_array_equal(fed[alive], inputs_of(np.array(alive)) + 1)
        assert not fed[[1, 6]].any()
        found = {failure.row: failure.stage for batch in batches for failure in batch.failures}
        assert found == {1: "read", 6: "preprocess"}

    def test_kept_columns_come_from_the_source_or_else_from_the_function(self) -> None:
        batches = list(load_batches(self.job(self.shift, keep=("name", "long")), Span(0, 0, 8, ())))
        names = [name for batch in batches for name in to_arrow(batch.kept["name"]).to_pylist()]
        assert names == [f"r{row}" for row in range(8)]
        lengths = [length for batch in batches for length in np.asarray(batch.kept["long"]).tolist()]
        assert lengths == [2, 0, 2, 2, 2, 2, 0, 2]

    def test_lists_that_it_gives_are_bucketed(self) -> None:
        def tokens(columns: dict[str, Any]) -> dict[str, Any]:
            return {"y": [[1] * int(value) for value in columns["n"]]}

        source = Fixture({"n": np.array([1, 3, 0, 2])})
        first = next(source.read(Span(0, 0, 1, ()), ["n"]))
        ready = replace(Preprocess.of(tokens, is_by_row=False), takes={"n": TensorSpec("n", "int64", ())})
        ready = ready.learn([first], UNWATCHED)
        job = Job(source, (Binding("x", ("y",), "int64", (None,)),), (), 2, ready, {"x": [[2, 4]]})
        batches = list(load_batches(job, Span(0, 0, 4, ())))
        assert [batch.arrays["x"].tolist() for batch in batches] == [
            [[1, 1, 1, 0], [1, 1, 0, 0]],
            [[1, 0], [0, 0]],
        ]
        assert all(batch.failures == () for batch in batches)

    def test_number_of_another_kind_than_in_the_first_rows_is_not_cut_off(self) -> None:
        def halves(columns: dict[str, Any]) -> dict[str, Any]:
            n = columns["n"]
            return {"y": n.astype(np.uint8) if (n < 5).all() else n / 2}

        source = Fixture({"n": np.array([1, 2, 8, 7])})
        ready = replace(Preprocess.of(halves, is_by_row=False), takes={"n": TensorSpec("n", "int64", ())})
        ready = ready.learn(list(source.read(Span(0, 0, 2, ()), ["n"])), UNWATCHED)
        job = Job(source, (Binding("x", ("y",), "uint8", ()),), (), 4, ready)
        (batch,) = load_batches(job, Span(0, 0, 4, ()))
        assert [(failure.row, failure.reason) for failure in batch.failures] == [
            (0, "column 'y' is not a whole number"),
            (3, "column 'y' is not a whole number"),
        ]
