"""What every source promises, as checks over a case and the place where its files lie."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple
from typing import Any

import cloudpickle
import numpy as np
import pytest

from penstock.core.columns import describe
from penstock.core.deferred import Deferred
from penstock.core.protocols import Source
from penstock.core.records import SourceColumn, Span, TensorSpec
from penstock.errors import InputError

from .case import Case, Rows
from .reading import read_all, read_span

ROWS_PER_SPAN = (1, 7, 64, 10_000)

Paths = list[str]
Promise = Callable[[Case, Paths], None]


@contextmanager
def opened(case: Case, paths: Paths) -> Iterator[Source]:
    """A new source: a stream can be read only once."""
    source = case.open(paths)
    try:
        yield source
    finally:
        source.close()


def rows_of_span(rows: Rows, span: Span) -> Rows:
    return {name: values[span.start : span.stop] for name, values in rows.items()}


def every_row_comes_once_and_in_order(case: Case, paths: Paths) -> None:
    for rows_per_span in ROWS_PER_SPAN:
        with opened(case, paths) as source:
            assert read_all(source, source.divide(rows_per_span), case.columns) == case.rows_at(paths)


def division_is_whole(case: Case, paths: Paths) -> None:
    for rows_per_span in ROWS_PER_SPAN:
        with opened(case, paths) as source:
            spans = list(source.divide(rows_per_span))
            assert [span.index for span in spans] == list(range(len(spans)))
            assert [span.start for span in spans] == [0, *(span.stop for span in spans[:-1])]
            assert spans[-1].stop == case.num_rows
            assert all(0 < span.rows <= case.most_times * rows_per_span for span in spans)


def division_is_deterministic(case: Case, paths: Paths) -> None:
    for rows_per_span in ROWS_PER_SPAN:
        with opened(case, paths) as source, opened(case, paths) as again:
            spans, others = list(source.divide(rows_per_span)), list(again.divide(rows_per_span))
            if case.is_stream:
                # Where the rows of a span lie differs; which rows they are does not.
                assert [(span.start, span.rows) for span in spans] == [(span.start, span.rows) for span in others]
            else:
                assert list(source.divide(rows_per_span)) == spans == others


def what_is_divided_once_says_so(case: Case, paths: Paths) -> None:
    with opened(case, paths) as source:
        assert source.traits.is_resumable is not case.is_stream
        for _ in range(2):  # to look at the first rows is no division yet
            assert next(iter(source.divide(3))).start == 0
        assert sum(span.rows for span in source.divide(3)) == case.num_rows
        if case.is_stream:
            with pytest.raises(InputError, match="only once"):
                list(source.divide(3))
        else:
            assert sum(span.rows for span in source.divide(3)) == case.num_rows


def spans_can_be_kept_as_json(case: Case, paths: Paths) -> None:
    with opened(case, paths) as source:
        for span in source.divide(64):
            assert Span(*map(as_tuples, json.loads(json.dumps(astuple(span))))) == span


def as_tuples(value: Any) -> Any:
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


def spans_that_were_kept_are_read_as_before(case: Case, paths: Paths) -> None:
    with opened(case, paths) as source:
        kept = json.loads(json.dumps([astuple(span) for span in source.divide(64)]))
        spans = [Span(*map(as_tuples, fields)) for fields in kept]
        assert read_all(source, spans, case.columns) == case.rows_at(paths)


def rows_keep_their_numbers_in_the_whole_input(case: Case, paths: Paths) -> None:
    numbers = case.numbers or tuple(range(case.num_rows))
    with opened(case, paths) as source:
        found = [span.number(row) for span in source.divide(7) for row in range(span.start, span.stop)]
        assert found == list(numbers)


def spans_can_be_read_in_any_order(case: Case, paths: Paths) -> None:
    with opened(case, paths) as source:
        spans = list(source.divide(7))
        assert read_all(source, reversed(spans), case.columns) == case.rows_at(paths)
        random.Random(3).shuffle(spans)
        assert read_all(source, spans, case.columns) == case.rows_at(paths)


def spans_can_be_read_twice_and_by_several_threads(case: Case, paths: Paths) -> None:
    expected = case.rows_at(paths)
    with opened(case, paths) as source:
        spans = list(source.divide(7)) * 2
        random.Random(4).shuffle(spans)
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda span: read_span(source, span, case.columns), spans))
    assert found == [(rows_of_span(expected, span), []) for span in spans]


def reading_that_is_given_up_in_the_middle_harms_nobody(case: Case, paths: Paths) -> None:
    with opened(case, paths) as source:
        spans = list(source.divide(7))
        for span in spans[::3]:
            blocks = source.read(span, case.columns)
            next(blocks)
            del blocks
        assert read_all(source, spans, case.columns) == case.rows_at(paths)


def single_columns_can_be_read_in_any_order(case: Case, paths: Paths) -> None:
    expected = case.rows_at(paths)
    with opened(case, paths) as source:
        spans = list(source.divide(64))
        for name in reversed(case.columns):
            assert read_all(source, spans, [name]) == {name: expected[name]}
        assert read_all(source, spans, case.columns[::-1]) == expected


def spans_are_no_larger_than_a_part_where_that_is_asked_for(case: Case, paths: Paths) -> None:
    with opened(case, paths) as source:
        spans = list(source.divide(10, 30))
        assert all(span.rows <= 30 for span in spans)
        assert read_all(source, spans, case.columns) == case.rows_at(paths)


def schema_agrees_with_what_is_read(case: Case, paths: Paths) -> None:
    with opened(case, paths) as source:
        schema = source.schema()
        assert list(schema) == case.columns
        assert [spec.name for spec in schema.values()] == case.columns
        for span in source.divide(64):
            for block in source.read(span, case.columns):
                for name, spec in schema.items():
                    assert_is_of(spec, block.columns[name])
        assert source.schema() == schema
    for name, spec in schema.items():
        assert spec.shape is not None
        if spec.encoding is None:
            shape: tuple[int, ...] = np.shape(case.rows_at(paths)[name])[1:]
            assert spec.shape == ((None, *shape[1:]) if name in case.varying else shape)


def assert_is_of(spec: TensorSpec, column: SourceColumn) -> None:
    if isinstance(column, Deferred):
        assert spec.encoding is not None
        return
    found: TensorSpec = describe(spec.name, column)
    assert spec.shape is not None
    assert found.shape is not None
    assert (spec.encoding, found.dtype, len(found.shape)) == (None, spec.dtype, len(spec.shape))
    assert all(said in (None, got) for said, got in zip(spec.shape, found.shape, strict=True))


def origin_of_a_row_names_its_file_and_place(case: Case, paths: Paths) -> None:
    with opened(case, paths) as source:
        for span in source.divide(64):
            for row in {span.start, (span.start + span.stop) // 2, span.stop - 1}:
                said, wanted = source.origin(span, row), case.origin(paths, row)
                assert said == wanted or said.startswith(f"{wanted.removesuffix(',')},")


def pickled_source_reads_the_same(case: Case, paths: Paths) -> None:
    with opened(case, paths) as source:
        fresh = cloudpickle.dumps(source)
        schema = source.schema()
        spans = list(source.divide(7))
        under_way = source.read(spans[len(spans) // 2], case.columns)
        next(under_way)
        for pickled in (fresh, cloudpickle.dumps(source)):
            copied = cloudpickle.loads(pickled)
            assert read_all(copied, spans, case.columns) == case.rows_at(paths)
            if case.is_stream:
                with pytest.raises(InputError, match="only once"):
                    list(copied.divide(7))
            else:
                assert copied.schema() == schema
                assert list(copied.divide(7)) == spans
        under_way.close()  # type: ignore[attr-defined]


def pickled_source_reads_a_span_without_dividing_again(case: Case, paths: Paths) -> None:
    with opened(case, paths) as source:
        fresh = cloudpickle.dumps(source)
        spans = list(source.divide(7))
        span = spans[len(spans) // 2]
        assert read_span(cloudpickle.loads(fresh), span, case.columns) == (
            rows_of_span(case.rows_at(paths), span),
            [],
        )


def fingerprint_is_the_same_while_nothing_changes(case: Case, paths: Paths) -> None:
    with opened(case, paths) as source, opened(case, paths) as again:
        before = list(source.fragments())
        assert before
        read_all(source, source.divide(64), case.columns)
        assert list(source.fragments()) == before == list(cloudpickle.loads(cloudpickle.dumps(source)).fragments())
        if case.is_stream:
            assert list(again.fragments()) != before
        else:
            assert list(again.fragments()) == before
    if case.has_files and not case.is_row_a_file and case.unseen is None:
        assert [fragment.path for fragment in before] == paths


def fingerprint_changes_with_any_value(case: Case, paths: Paths) -> None:
    """Of what is held in memory; files have promises of their own."""
    assert case.has_files or case.is_stream or case.others()
    with opened(case, paths) as source:
        for other in case.others():
            assert list(other.fragments()) != list(source.fragments())
            other.close()


def fitting_makes_another_source_and_changes_nothing(case: Case, paths: Paths) -> None:
    with opened(case, paths) as source:
        schema, traits = dict(source.schema()), source.traits
        inputs = [TensorSpec(name, "float32", (None,)) for name in schema]
        numbers = [name for name, spec in schema.items() if spec.shape == () and "int" in spec.dtype]
        fitted = source.fitted_to(inputs).with_floats(numbers)
        assert list(fitted.schema()) == list(schema)
        assert fitted.traits == traits
        assert (source.schema(), source.traits) == (schema, traits)
        assert read_all(source, source.divide(7), case.columns) == case.rows_at(paths)
        if not case.is_stream:
            assert sum(span.rows for span in fitted.divide(7)) == case.num_rows


PROMISES: list[Promise] = [
    every_row_comes_once_and_in_order,
    division_is_whole,
    division_is_deterministic,
    what_is_divided_once_says_so,
    spans_can_be_kept_as_json,
    spans_that_were_kept_are_read_as_before,
    rows_keep_their_numbers_in_the_whole_input,
    spans_can_be_read_in_any_order,
    spans_can_be_read_twice_and_by_several_threads,
    reading_that_is_given_up_in_the_middle_harms_nobody,
    single_columns_can_be_read_in_any_order,
    spans_are_no_larger_than_a_part_where_that_is_asked_for,
    schema_agrees_with_what_is_read,
    origin_of_a_row_names_its_file_and_place,
    pickled_source_reads_the_same,
    pickled_source_reads_a_span_without_dividing_again,
    fingerprint_is_the_same_while_nothing_changes,
    fingerprint_changes_with_any_value,
    fitting_makes_another_source_and_changes_nothing,
]
