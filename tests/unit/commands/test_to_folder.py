"""Jobs with an output folder: when too many rows failed."""

from __future__ import annotations

from penstock.core.records import Result, RowFailure, Span
from penstock.jobs.writing import FailureLimit
from penstock.storage.journal import PartRecord

SPANS = [Span(index, 50 * index, 50, ()) for index in range(6)]


def result(index: int, failed: int = 0) -> Result:
    span = SPANS[index]
    failures = (RowFailure(span.start + row, "a.csv", "read", "ValueError", f"bad {row}") for row in range(failed))
    return Result(span, {}, tuple(failures))


def test_job_ends_at_the_same_row_in_whatever_order_its_spans_finish() -> None:
    failed = {1: 4, 3: 30, 4: 50}
    for order in ([0, 1, 2, 3, 4, 5], [4, 3, 5, 0, 2, 1], [5, 0, 4, 1, 2, 3]):
        limit = FailureLimit(0.1, [], range(6))
        answers = [limit.check(result(index, failed.get(index, 0))) for index in order]
        (error,) = [error for error in answers if error is not None][:1]
        assert error.received == "34 of the first 200 rows; the last: bad 29"
        assert error.allowed == "10%"


def test_what_was_committed_before_counts() -> None:
    record = PartRecord(0, 0, 0, 2, 80, 20, {}, 0)
    assert FailureLimit(0.2, [record], range(2, 6)).check(result(2)) is None
    error = FailureLimit(0.2, [record], range(2, 6)).check(result(2, 15))
    assert error is not None
    assert error.received == "35 of the first 150 rows; the last: bad 14"


def test_few_rows_are_not_judged_and_a_stream_is_judged_as_it_comes() -> None:
    limit = FailureLimit(0.0, [], None)
    assert limit.check(result(0, 50)) is None
    assert limit.check(result(1)) is not None
