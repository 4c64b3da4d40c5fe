"""The records that travel between the parts of penstock."""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict, fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.job import Job
from penstock.core.preprocessing import Preprocess
from penstock.core.records import (
    STRING,
    UNWATCHED,
    Binding,
    Device,
    Feature,
    OutputSchema,
    Placement,
    Recipe,
    Result,
    RowFailure,
    Signature,
    Span,
    TensorSpec,
    Timings,
    Watch,
)
from penstock.sources.python.memory import InMemory

from .encoded import Diary

SOURCE = InMemory({"a": np.zeros(1)})


def failure(row: int) -> RowFailure:
    return RowFailure(row, "rows.csv", "read", "ValueError", "broken")


@pytest.mark.parametrize(
    ("spec", "text", "row_bytes"),
    [
        (TensorSpec("x", "uint8", (28, 28)), "uint8[28, 28]", 784),
        (TensorSpec("x", "float32", ()), "float32[]", 4),
        (TensorSpec("x", "float64", (None, 3)), "float64[?, 3]", 24),
        (TensorSpec("x", "int64", None), "int64[?]", 8),
        (TensorSpec("x", STRING, (2,)), "string[2]", 32),
        (TensorSpec("x", "bool", (4,)), "bool[4]", 4),
    ],
)
def test_spec_knows_its_text_and_its_bytes(spec: TensorSpec, text: str, row_bytes: int) -> None:
    assert str(spec) == text
    assert spec.row_bytes == row_bytes


def test_opaque_columns_can_be_measured_because_they_can_be_kept() -> None:
    assert TensorSpec("day", "opaque", ()).row_bytes > 0


@given(start=st.integers(0, 1000), rows=st.integers(1, 40), data=st.data())
def test_row_numbers_leave_gaps_where_rows_failed(start: int, rows: int, data: st.DataObject) -> None:
    failed = data.draw(st.sets(st.integers(start, start + rows - 1)))
    result = Result(Span(0, start, rows, ()), {}, tuple(failure(row) for row in sorted(failed)))
    assert result.rows == rows - len(failed)
    assert result.row_numbers().tolist() == [row for row in range(start, start + rows) if row not in failed]
    assert result.row_numbers().dtype == np.int64


def test_job_reads_every_column_once() -> None:
    bindings = (Binding("a", ("x", "y"), "float32", (2,)), Binding("b", ("x",), "float32", ()))
    job = Job(SOURCE, bindings, ("id", "y"), 32)
    assert job.columns == ("x", "y", "id")


def test_timings_add_up() -> None:
    total = Timings(read=1.0, rows=5)
    total.add(Timings(read=0.5, compute=2.0, wait_for_data=0.25, wait_for_room=0.125, rows=3))
    total.add(Timings(values=100, padded=7))
    total.add(Timings(values=10, padded=1))
    assert total == Timings(1.5, 2.0, 0.25, 0.125, 8, values=110, padded=8)


def test_span_stop_is_past_its_last_row() -> None:
    assert Span(0, 10, 5, ()).stop == 15


SELECTED = Span(0, 5, 6, (), None, ((100, 2), (110, 1), (200, 3)))
"""Rows 5 to 10 of a job that takes only some rows of its input."""


def test_rows_of_a_job_that_takes_only_some_have_their_number_in_the_whole_input() -> None:
    assert [SELECTED.number(row) for row in range(5, 11)] == [100, 101, 110, 200, 201, 202]
    with pytest.raises(IndexError):
        SELECTED.number(11)


def test_rows_of_a_job_that_takes_all_are_numbered_as_they_are_counted() -> None:
    span = Span(3, 40, 2, ())
    assert [span.number(row) for row in (40, 41)] == [40, 41]
    with pytest.raises(IndexError):
        span.number(42)


def test_row_numbers_of_some_rows_leave_out_those_that_failed() -> None:
    assert Result(SELECTED, {}).row_numbers().tolist() == [100, 101, 110, 200, 201, 202]
    result = Result(SELECTED, {}, (failure(101), failure(200)))
    assert result.row_numbers().tolist() == [100, 110, 201, 202]
    assert result.row_numbers().dtype == np.int64
    assert result.rows == 4


@given(gaps=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5)), min_size=1, max_size=8), data=st.data())
def test_numbers_agree_row_by_row_and_all_together(gaps: list[tuple[int, int]], data: st.DataObject) -> None:
    runs: list[tuple[int, int]] = []
    end = 0
    for gap, rows in gaps:
        runs.append((end + gap, rows))
        end += gap + rows
    total = sum(rows for _, rows in runs)
    span = Span(0, 7, total, (), None, tuple(runs))
    numbers = [span.number(row) for row in range(7, 7 + total)]
    assert numbers == [row for first, rows in runs for row in range(first, first + rows)]
    failed = data.draw(st.sets(st.sampled_from(numbers)))
    result = Result(span, {}, tuple(failure(row) for row in sorted(failed)))
    assert result.row_numbers().tolist() == [row for row in numbers if row not in failed]


def test_job_with_a_function_reads_what_the_function_takes() -> None:
    takes = {"a": TensorSpec("a", "float32", ()), "b": TensorSpec("b", STRING, ())}
    job = Job(
        SOURCE,
        (Binding("x", ("made",), "float32", ()),),
        ("a",),
        32,
        Preprocess("m:f", takes=takes),
    )
    assert job.columns == ("a", "b")


def test_recipe_says_which_sizes_rows_are_padded_to() -> None:
    recipe = Recipe("jax", "cpu", 32, 1, buckets={"x": [[8, 16]]})
    assert json.loads(json.dumps(recipe.as_json()))["buckets"] == {"x": [[8, 16]]}


def test_binding_knows_what_crosses_to_the_device() -> None:
    assert Binding("x", ("pixels",), "uint8", (28, 28)).row_bytes == 784


def test_output_schema_counts_the_row_number() -> None:
    schema = OutputSchema((TensorSpec("y", "float32", (10,)), TensorSpec("id", "int64", ())), 1)
    assert schema.row_bytes == 8 + 40 + 8
    assert list(schema.names) == ["y", "id"]


@pytest.mark.parametrize(
    "record",
    [
        Span(1, 2, 3, ((0, 1, 2),), "0:1"),
        failure(3),
        Recipe("jax", "cpu", 32, 1),
        Device("gpu", 1, "H200", "GPU-1", 5, 4),
        Placement((Device("cpu", 0),), 1, 2),
        Binding("x", ("a",), "uint8", (None, 3)),
        Binding("mask", ("a",), "bool", (None,), mask_of="x"),
        TensorSpec("photo", "uint8", (224, 224, 3), encoding="image"),
        TensorSpec("words", "int64", (5,), varies=True),
        SELECTED,
        Timings(1.0),
    ],
)
def test_records_survive_pickling(record: object) -> None:
    assert pickle.loads(pickle.dumps(record)) == record


def test_devices_are_named_as_on_the_command_line() -> None:
    assert str(Device("gpu", 2)) == "gpu:2"
    assert Placement((Device("cpu", 0), Device("cpu", 1)), 1, 1).replicas == 2


def test_nothing_is_poisoned_and_no_care_is_asked_for() -> None:
    assert isinstance(UNWATCHED, Watch)
    assert not UNWATCHED.is_careful
    assert dict(UNWATCHED.poisoned) == {}


def test_it_may_be_told_anything() -> None:
    UNWATCHED.begin(0, 1)
    UNWATCHED.begin(1 << 62, 0)
    UNWATCHED.end()
    UNWATCHED.end()


def test_what_one_watch_knows_others_do_not() -> None:
    diary = Diary(is_careful=True, poisoned={})
    diary.begin(1, 2)
    assert not Watch().is_careful
    assert Diary().begun == []


SIGNATURE = Signature(
    inputs=(TensorSpec("x", "uint8", (None, 3)), TensorSpec("records", "string", (), varies=True)),
    outputs=(TensorSpec("p/q:0", "float32", None), TensorSpec("Köln", "string", (2,), encoding="image")),
    structure="dict",
    fixed_batch=8,
    name="serving_default",
    others=(Signature((TensorSpec("y", "int64", (1,)),), (), name="other", notes=("shown only",)),),
    parameters=12,
    writer="TensorFlow 2.21",
    weights="abc",
    examples={"records": (Feature("age", "int64", (1,)), Feature("tags", "string", None, False, num_columns=3))},
    notes=("first", "second"),
)


def test_a_full_signature_comes_back_as_it_was() -> None:
    assert Signature.from_json(json.loads(json.dumps(asdict(SIGNATURE)))) == SIGNATURE


def test_every_field_was_tried() -> None:
    bare = Signature((), ())
    assert [each.name for each in fields(Signature) if getattr(SIGNATURE, each.name) == getattr(bare, each.name)] == []


def test_a_bare_signature_comes_back_as_it_was() -> None:
    assert Signature.from_json(json.loads(json.dumps(asdict(Signature((), ()))))) == Signature((), ())
