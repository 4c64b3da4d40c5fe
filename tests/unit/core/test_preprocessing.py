"""The user's own function between the source and the model: what it is given, and what its answers may be."""

from __future__ import annotations

import datetime
import functools
import pickle
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest

from penstock.core.columns import describe, to_arrow
from penstock.core.deferred import Deferred
from penstock.core.preprocessing import ONLY, Preprocess, rows_of
from penstock.core.records import STRING, UNWATCHED, Block, RowFailure, SourceColumn, TensorSpec
from penstock.errors import UsageError
from penstock.options.records import Nulls

from .encoded import Diary, Letters

HERE = "tests.unit.core.preprocessing_functions"


def block_of(start: int = 0, failures: tuple[RowFailure, ...] = (), **columns: SourceColumn) -> Block:
    return Block(start, len(next(iter(columns.values()))), columns, failures)


def preprocess(function: Callable[..., Any], block: Block, *, is_by_row: bool = False) -> Preprocess:
    """A function that knows what it takes, and nothing else yet."""
    takes = {name: _spec(name, column) for name, column in block.columns.items()}
    return replace(Preprocess.of(function, is_by_row=is_by_row), takes=takes)


def itself(ready: Preprocess, function: Callable[..., Any]) -> Preprocess:
    """With the function itself in place of the copy that travels: it can be asked afterwards what it saw."""
    vars(ready)["function"] = function
    return ready


def _spec(name: str, column: SourceColumn) -> TensorSpec:
    if isinstance(column, Deferred):
        return TensorSpec(name, "uint8", (None,), encoding="letters")
    return describe(name, column)


def learnt(function: Callable[..., Any], block: Block, *, is_by_row: bool = False) -> dict[str, TensorSpec]:
    return dict(preprocess(function, block, is_by_row=is_by_row).learn([block], UNWATCHED).gives)


def made(function: Callable[..., Any], block: Block, *, is_by_row: bool = False) -> dict[str, list[Any]]:
    """What a function makes of a block, all of it as lists, after it was learnt from the same block."""
    ready = preprocess(function, block, is_by_row=is_by_row).learn([block], UNWATCHED)
    found: dict[str, list[Any]] = {}
    for piece in ready.apply(block, UNWATCHED):
        assert not piece.failures, piece.failures
        for name, column in piece.columns.items():
            assert not isinstance(column, Deferred)
            found.setdefault(name, []).extend(to_arrow(column).to_pylist())
    return found


X = np.arange(6, dtype=np.float32).reshape(3, 2)


class TestWhatItIsGiven:
    def seen(self, is_by_row: bool = False, **columns: SourceColumn) -> dict[str, Any]:
        """What the function sees in a block, or in its first row."""
        noted: list[dict[str, Any]] = []
        block = Block(0, len(next(iter(columns.values()))), columns)

        def note(given: dict[str, Any]) -> dict[str, Any]:
            noted.append(given)
            return {"y": np.zeros(block.rows) if not is_by_row else 0.0}

        list(itself(preprocess(note, block, is_by_row=is_by_row), note).apply(block, UNWATCHED))
        return noted[0]

    def test_numbers_are_arrays_with_rows_first(self) -> None:
        seen = self.seen(x=X, n=pa.array([1, 2, 3]), v=pa.array([[1, 2]] * 3, pa.list_(pa.int32(), 2)))
        assert np.shares_memory(seen["x"], X)
        assert (seen["n"].dtype, seen["n"].tolist()) == (np.int64, [1, 2, 3])
        assert (seen["v"].dtype, seen["v"].shape) == (np.int32, (3, 2))

    def test_text_is_text(self) -> None:
        seen = self.seen(t=pa.array(["a", "é", None]), b=pa.array([b"\xff", b"", b"x"]))
        assert seen["t"].tolist() == ["a", "é", None]
        assert seen["b"].tolist() == [b"\xff", b"", b"x"]

    def test_lists_of_different_lengths_are_lists(self) -> None:
        assert self.seen(v=pa.array([[1], [2, 3], []]))["v"].tolist() == [[1], [2, 3], []]

    def seen_after_learning(self, *pieces: list[Any]) -> list[Any]:
        """Every call's column, of a function that learnt on the first piece and is applied to all of them in one."""
        blocks = [block_of(v=pa.array(piece)) for piece in pieces]
        noted: list[Any] = []

        def note(given: dict[str, Any]) -> dict[str, Any]:
            noted.append(given["v"])
            return {"y": np.zeros(len(given["v"]))}

        ready = preprocess(note, blocks[0]).learn(blocks[:1], UNWATCHED)
        for piece in itself(ready, note).apply(
            block_of(v=pa.array([row for rows in pieces for row in rows])), UNWATCHED
        ):
            assert piece.failures == ()
        return noted

    def test_lists_of_one_length_are_an_array(self) -> None:
        (seen,) = self.seen_after_learning([[1.5, 2], [3, 4]])
        assert (seen.dtype, seen.tolist()) == (np.float64, [[1.5, 2.0], [3.0, 4.0]])
        (nested,) = self.seen_after_learning([[[1], [2]], [[3], [4]]])
        assert nested.tolist() == [[[1], [2]], [[3], [4]]]
        (texts,) = self.seen_after_learning([["a", "b"], ["é", ""]])
        assert (texts.shape, texts[1, 0]) == ((2, 2), "é")

    def test_row_of_another_length_than_the_first_rows_is_an_array_by_itself(self) -> None:
        seen = self.seen_after_learning([[1, 2], [3, 4]], [[5]])
        assert [column.tolist() for column in seen] == [[[1, 2]], [[3, 4]], [[5]]]

    def test_row_without_a_list_comes_as_none_by_itself(self) -> None:
        seen = self.seen_after_learning([[1, 2], None, [3, 4]])
        assert [column.tolist() for column in seen] == [[[1, 2]], [None], [[3, 4]]]

    def test_what_a_column_of_lists_is_does_not_depend_on_which_rows_come_together(self) -> None:
        (seen,) = self.seen_after_learning([[1], [2, 3]], [[4, 5], [6, 7]])
        assert seen.tolist() == [[1], [2, 3], [4, 5], [6, 7]]
        rows = [[1, 2], [3, 4, 5], [6, 7]]
        block = block_of(v=pa.array(rows))
        assert made(lambda c: {"y": c["v"]}, block) == {"y": rows}

    def test_numbers_with_gaps_and_dates_are_objects(self) -> None:
        day = datetime.date(2024, 2, 29)
        seen = self.seen(n=pa.array([1, None, 3]), d=pa.array([day, None, day]))
        assert seen["n"].tolist() == [1, None, 3]
        assert seen["d"].tolist() == [day, None, day]

    def test_missing_values_are_what_the_rule_says(self) -> None:
        block = block_of(n=pa.array([1, None, 3]), t=pa.array(["a", None, "c"]), v=pa.array([[1.5], [None], [2.5]]))
        noted: list[Any] = []

        def note(given: dict[str, Any]) -> dict[str, Any]:
            noted.append(given)
            return {"y": np.zeros(len(given["n"]))}

        for nulls in (Nulls("nan", "empty"), Nulls("7")):
            ready = replace(preprocess(note, block), nulls=nulls)
            list(itself(ready, note).apply(block, UNWATCHED))
        np.testing.assert_array_equal(noted[0]["n"], [1, np.nan, 3])
        assert noted[0]["t"].tolist() == ["a", "", "c"]
        assert np.isnan(noted[0]["v"][1][0])
        assert (noted[1]["n"].tolist(), noted[1]["v"].tolist()) == ([1, 7, 3], [[1.5], [7.0], [2.5]])
        (piece,) = replace(preprocess(note, block), nulls=Nulls("nan")).apply(rows_of(block, 0, 1), UNWATCHED)
        assert not piece.failures

    def test_whole_numbers_are_floats_in_every_block_where_missing_ones_are_nan(self) -> None:
        block = block_of(n=pa.array([1, 2]))
        ready = replace(
            preprocess(lambda c: {"y": np.array([str(c["n"].dtype)] * 2, object)}, block), nulls=Nulls("nan")
        )
        (piece,) = ready.apply(block, UNWATCHED)
        assert piece.columns["y"].tolist() == ["float64", "float64"]  # type: ignore[union-attr]

    def test_encoded_rows_are_decoded_each_in_its_own_size(self) -> None:
        seen = self.seen(x=Letters([b"ab", b"c"]))
        assert [row.tolist() for row in seen["x"]] == [[*b"ab"], [*b"c"]]
        assert self.seen(x=Letters([b"ab", b"cd"]))["x"].shape == (2, 2)

    def test_function_of_a_row_sees_single_values(self) -> None:
        seen = self.seen(is_by_row=True, x=X, t=pa.array(["a", "b", "c"]), n=pa.array([7, 8, 9]))
        assert seen["x"].tolist() == [0.0, 1.0]
        assert seen["t"] == "a"
        assert seen["n"] == 7


class TestWhatItGives:
    def test_dict_of_arrays(self) -> None:
        assert made(lambda c: {"y": c["x"] * 2, "z": c["x"].sum(axis=1)}, block_of(x=X)) == {
            "y": [[0, 2], [4, 6], [8, 10]],
            "z": [1, 5, 9],
        }

    def test_single_array_is_the_only_column(self) -> None:
        assert made(lambda c: c["x"][:, 0], block_of(x=X)) == {ONLY: [0, 2, 4]}

    def test_dict_of_single_values_for_every_row(self) -> None:
        found = made(lambda row: {"y": row["x"][0] + 1, "w": [1.0, 2.0]}, block_of(x=X), is_by_row=True)
        assert found == {"y": [1, 3, 5], "w": [[1, 2]] * 3}

    def test_single_value_for_every_row_is_the_only_column(self) -> None:
        assert made(lambda row: row["x"] * 2, block_of(x=X), is_by_row=True) == {ONLY: [[0, 2], [4, 6], [8, 10]]}

    def test_arrow_columns_stay_as_they_are(self) -> None:
        table = pa.chunked_array([pa.array(["a"]), pa.array(["b", "c"])])
        found = made(lambda c: {"y": table[: len(c["x"])], "z": pa.array(c["x"][:, 0])}, block_of(x=X))
        assert found == {"y": ["a", "b", "c"], "z": [0, 2, 4]}

    def test_tensor_of_any_framework(self) -> None:
        class Tensor:
            def __init__(self, array: Any) -> None:
                self._array = array

            def numpy(self) -> Any:
                return self._array

        assert made(lambda c: {"y": Tensor(c["x"][:, 1])}, block_of(x=X)) == {"y": [1, 3, 5]}

    @pytest.mark.parametrize("is_by_row", [False, True])
    def test_text(self, is_by_row: bool) -> None:
        names = pa.array(["a", "bé", ""])
        function = (lambda r: {"y": r["t"] + "!"}) if is_by_row else (lambda c: {"y": [t + "!" for t in c["t"]]})
        assert made(function, block_of(t=names), is_by_row=is_by_row) == {"y": ["a!", "bé!", "!"]}
        assert learnt(function, block_of(t=names), is_by_row=is_by_row)["y"].dtype == STRING

    @pytest.mark.parametrize("is_by_row", [False, True])
    def test_bytes_keep_every_byte_also_zeros_at_their_ends(self, is_by_row: bool) -> None:
        raw = [b"\x00\xff\x00", b"\x00\x00", b"long" * 50]
        block = block_of(b=pa.array(raw))
        function: Callable[..., Any] = (lambda r: {"y": r["b"]}) if is_by_row else (lambda c: {"y": list(c["b"])})
        (piece,) = preprocess(function, block, is_by_row=is_by_row).apply(block, UNWATCHED)
        column = piece.columns["y"]
        assert isinstance(column, np.ndarray)
        assert column.tolist() == raw

    @pytest.mark.parametrize("is_by_row", [False, True])
    def test_lists_may_have_another_length_in_every_row(self, is_by_row: bool) -> None:
        block = block_of(n=np.array([2, 3, 0, 1]))
        function: Callable[..., Any] = (
            (lambda r: {"y": [7] * int(r["n"])}) if is_by_row else (lambda c: {"y": [[7] * int(n) for n in c["n"]]})
        )
        spec = learnt(function, block, is_by_row=is_by_row)["y"]
        assert (spec.dtype, spec.varies) == ("int64", True)
        assert made(function, block, is_by_row=is_by_row) == {"y": [[7, 7], [7, 7, 7], [], [7]]}

    @pytest.mark.parametrize("rows", [[2, 2, 2], [0, 0, 0], [0, 5, 0], [1, 0, 0]], ids=str)
    @pytest.mark.parametrize("value", [7, "word"])
    def test_lists_agree_with_the_first_rows_whatever_their_lengths(self, rows: list[int], value: object) -> None:
        first, block = block_of(n=np.array([3])), block_of(n=np.array(rows))
        ready = preprocess(lambda r: {"y": [value] * int(r["n"])}, first, is_by_row=True).learn([first], UNWATCHED)
        (piece,) = ready.apply(block, UNWATCHED)
        assert piece.failures == ()
        assert piece.columns["y"].to_pylist() == [[value] * n for n in rows]  # type: ignore[union-attr]

    def test_empty_list_does_not_say_what_is_in_the_others(self) -> None:
        block = block_of(n=np.array([0, 0, 2]))
        spec = learnt(lambda r: {"y": ["w"] * int(r["n"])}, block, is_by_row=True)["y"]
        assert (spec.dtype, spec.varies) == (STRING, True)

    def test_arrays_of_objects_may_hold_rows_of_different_lengths(self) -> None:
        def function(columns: dict[str, Any]) -> dict[str, Any]:
            rows = np.empty(len(columns["n"]), object)
            for place, n in enumerate(columns["n"]):
                rows[place] = np.arange(n)
            return {"y": rows}

        block = block_of(n=np.array([2, 0, 3]))
        assert learnt(function, block)["y"].varies
        assert made(function, block) == {"y": [[0, 1], [], [0, 1, 2]]}

    def test_what_it_gives_is_described_with_dtype_and_shape(self) -> None:
        def function(columns: dict[str, Any]) -> dict[str, Any]:
            x = columns["x"]
            return {"image": np.zeros((len(x), 4, 5, 3), np.uint8), "n": x[:, 0], "t": ["w"] * len(x)}

        assert learnt(function, block_of(x=X)) == {
            "image": TensorSpec("image", "uint8", (4, 5, 3)),
            "n": TensorSpec("n", "float32", ()),
            "t": TensorSpec("t", STRING, ()),
        }

    def test_names_of_columns_are_text(self) -> None:
        assert list(learnt(lambda c: {7: c["x"]}, block_of(x=X))) == ["7"]


class TestLearning:
    def test_first_row_that_works_is_enough(self) -> None:
        def function(columns: dict[str, Any]) -> dict[str, Any]:
            if columns["x"][0, 0] < 2:
                raise ValueError("not this one")
            return {"y": columns["x"]}

        assert learnt(function, block_of(x=X)) == {"y": TensorSpec("y", "float32", (2,))}

    def test_rows_that_could_not_be_read_are_not_asked(self) -> None:
        asked: list[float] = []

        def function(row: dict[str, Any]) -> dict[str, Any]:
            asked.append(float(row["x"][0]))
            return {"y": row["x"]}

        unread = RowFailure(10, "a.csv", "read", "E", "broken")
        block = block_of(10, (unread,), x=X)
        itself(preprocess(function, block, is_by_row=True), function).learn([block], UNWATCHED)
        assert asked == [2.0]

    @pytest.mark.parametrize("is_by_row", [False, True])
    def test_function_that_fails_on_every_row_is_told_with_the_first_reason(self, is_by_row: bool) -> None:
        def function(given: dict[str, Any]) -> dict[str, Any]:
            raise KeyError("colour")

        with pytest.raises(UsageError) as caught:
            learnt(function, block_of(x=X), is_by_row=is_by_row)
        assert "fails on every one of the first rows" in caught.value.problem
        assert "colour" in (caught.value.received or "")
        assert "function" in (caught.value.received or "")

    def test_every_block_of_the_first_rows_is_asked(self) -> None:
        def function(columns: dict[str, Any]) -> dict[str, Any]:
            if columns["x"][0, 0] < 2:
                raise ValueError("not this one")
            return {"y": columns["x"]}

        blocks = [block_of(row, x=X[row : row + 1]) for row in range(3)]
        assert preprocess(function, blocks[0]).learn(blocks, UNWATCHED).gives == {"y": TensorSpec("y", "float32", (2,))}

    def test_every_call_is_announced(self) -> None:
        diary = Diary()
        block = block_of(5, x=X)
        preprocess(lambda c: c, block).learn([block], diary)
        assert diary.begun == [(5, 1)]
        assert diary.ends == 1


def test_function_is_found_by_its_name() -> None:
    block = block_of(x=X)
    ready = replace(Preprocess.of(f"{HERE}:double", is_by_row=False), takes={"x": describe("x", X)})
    (piece,) = ready.apply(block, UNWATCHED)
    np.testing.assert_array_equal(piece.columns["y"], X * 2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("location", "problem"),
    [
        (f"{HERE}:missing", "the preprocessing function cannot be imported"),
        ("no_such_module_at_all:f", "the preprocessing function cannot be imported"),
        (f"{HERE}:not_a_function", "this is not a function"),
    ],
)
def test_function_that_is_not_there_is_told(location: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        _ = Preprocess.of(location, is_by_row=False).function
    assert caught.value.problem == problem
    assert location in (caught.value.received or "")


def test_module_that_ends_the_process_when_it_is_imported_is_told(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ends_at_once.py").write_text("raise SystemExit('usage: …')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match="cannot be imported"):
        _ = Preprocess.of("ends_at_once:f", is_by_row=False).function


@pytest.mark.parametrize(
    ("handler", "raised"), [(signal.SIG_IGN, UsageError), (signal.default_int_handler, KeyboardInterrupt)]
)
def test_interrupt_that_a_module_raises_itself_is_told_and_one_by_the_user_is_not(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, handler: Any, raised: type[BaseException]
) -> None:
    (tmp_path / "interrupts.py").write_text("raise KeyboardInterrupt\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(raised):
            _ = Preprocess.of("interrupts:f", is_by_row=False).function
    finally:
        signal.signal(signal.SIGINT, before)


class Adding:
    """An object that can be called."""

    def __init__(self, amount: float) -> None:
        self._amount = amount

    def __call__(self, columns: dict[str, Any]) -> dict[str, Any]:
        return {"y": columns["x"] + self._amount}


@pytest.mark.parametrize(
    "function",
    [lambda c: {"y": c["x"] + 1}, functools.partial(lambda by, c: {"y": c["x"] + by}, 1), Adding(1)],
    ids=["closure", "partial", "object"],
)
def test_functions_by_value_survive_pickling_also_after_they_ran(function: Callable[..., Any]) -> None:
    block = block_of(x=X)
    ready = preprocess(function, block).learn([block], UNWATCHED)
    copied = pickle.loads(pickle.dumps(ready))
    assert copied == ready
    assert copied.location
    (piece,) = copied.apply(block, UNWATCHED)
    np.testing.assert_array_equal(piece.columns["y"], X + 1)


def test_function_by_name_is_pickled_as_its_name() -> None:
    ready = Preprocess.of(f"{HERE}:double", is_by_row=False)
    _ = ready.function
    assert ready.payload is None
    assert pickle.loads(pickle.dumps(ready)) == ready
    assert "function" not in ready.__getstate__()
    assert len(cloudpickle.dumps(ready)) < 1000


@pytest.mark.parametrize(
    ("kind", "rule", "dtype"),
    [
        (pa.int8(), "0", "int8"),
        (pa.int8(), "1000", "float64"),
        (pa.bool_(), "0", "bool"),
        (pa.float32(), "0.5", "float32"),
        (pa.int16(), "nan", "float64"),
        (pa.float32(), "nan", "float32"),
    ],
    ids=str,
)
def test_dtype_of_a_column_does_not_depend_on_whether_a_block_misses_values(
    kind: pa.DataType, rule: str, dtype: str
) -> None:
    seen: list[str] = []

    def note(columns: dict[str, Any]) -> dict[str, Any]:
        seen.append(str(columns["n"].dtype))
        return {"y": np.zeros(len(columns["n"]))}

    with_null, without = block_of(n=pa.array([1, None]).cast(kind)), block_of(n=pa.array([1, 1]).cast(kind))
    ready = itself(replace(preprocess(note, without), nulls=Nulls(rule)), note)
    for block in (with_null, without):
        assert not next(iter(ready.apply(block, UNWATCHED))).failures
    assert seen == [dtype, dtype]


def large_ones(columns: dict[str, Any]) -> dict[str, Any]:
    return {"name": ["large" if value > 1 else None for value in columns["n"]]}


@pytest.mark.parametrize("first", [[2, 0], [0, 2]], ids=str)
def test_text_that_is_none_in_a_whole_block_fails_no_row(first: list[int]) -> None:
    block = block_of(n=np.array(first))
    ready = preprocess(large_ones, block).learn([block], UNWATCHED)
    assert ready.gives["name"].dtype == STRING
    for values in ([0, 0, 2], [0, 0, 0]):
        (piece,) = ready.apply(block_of(n=np.array(values)), UNWATCHED)
        assert not piece.failures
        assert to_arrow(piece.columns["name"]).to_pylist() == ["large" if value > 1 else None for value in values]  # type: ignore[arg-type]
