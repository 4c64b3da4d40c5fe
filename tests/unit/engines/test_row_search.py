"""Rows at which replicas crash or hang: found in a few deaths, from what stands on the boards of the dead."""

from __future__ import annotations

import math
import signal

import pytest

from penstock.core.records import Device, Span
from penstock.engines.memory_watch import WARM_UP, Death, ReplicaEnd, Verdict
from penstock.engines.row_search import RowSearch
from penstock.pool.processes.board import Notice

SPAN = Span(4, 4000, 1000, ())
BATCH = 4100


def death(
    start: int, stop: int, *, calls: int = 1, is_prepared: bool = True, hung_s: float | None = None, batch: int = BATCH
) -> Death:
    notice = Notice(0.0, batch + start, 512, 16, calls, batch, start, stop)
    how = "was killed by SIGSEGV" if hung_s is None else "hung for 61 s"
    end = ReplicaEnd(1, how, -signal.SIGSEGV, "", notice, 0, hung_s)
    return Death(Device("cpu", 0), end, [SPAN] if is_prepared else [], 512, is_prepared)


def dies_of(row: int, search: RowSearch) -> tuple[int, int]:
    """The places that a replica runs when it dies of a row, given what it is told to try."""
    care = search.care(SPAN.index)
    start, stop = care.suspects.get(BATCH, (0, 512)) if care is not None else (0, 512)
    if care is None or BATCH not in care.suspects:
        return 0, 512
    few = -(-(stop - start) // 8)
    return next((at, min(at + few, stop)) for at in range(start, stop, few) if at <= row < at + few)


@pytest.mark.parametrize("row", [0, 1, 255, 300, 511])
@pytest.mark.parametrize("hung_s", [None, 61.0])
def test_row_is_found_in_fewer_deaths_than_the_logarithm_of_the_batch(row: int, hung_s: float | None) -> None:
    search = RowSearch()
    deaths = [search.judge(death(0, 512, calls=2, hung_s=hung_s))]
    assert deaths == [Verdict.SUSPICIOUS], "another batch was under way, too"
    while not search.poisoned(SPAN):
        deaths.append(search.judge(death(*dies_of(row, search), hung_s=hung_s)))
        assert deaths[-1] is Verdict.FEWER_ARE_SUSPECTED
    assert len(deaths) <= math.log2(512)
    (failure,) = search.poisoned(SPAN)
    assert (failure.row, failure.stage) == (BATCH + row, "predict")
    assert failure.error == ("ReplicaDied" if hung_s is None else "TimeoutError")
    assert ("SIGSEGV" if hung_s is None else "hung for 61 s; --hang-timeout") in failure.reason


def test_spans_of_a_replica_that_crashed_are_run_with_care_until_they_are_finished() -> None:
    search = RowSearch()
    assert search.care(SPAN.index) is None
    search.judge(death(0, 512))
    care = search.care(SPAN.index)
    assert care is not None
    assert care.suspects == {BATCH: (0, 512)}
    search.finished(SPAN.index)
    assert search.care(SPAN.index) is None


def test_batch_whose_rows_all_run_in_parts_ends_the_search() -> None:
    search = RowSearch()
    search.judge(death(0, 512))
    assert search.judge(death(0, 64)) is Verdict.FEWER_ARE_SUSPECTED
    assert search.judge(death(0, 512)) is Verdict.ORDINARY


def test_model_that_dies_without_any_of_the_rows_is_not_tried_again() -> None:
    search = RowSearch()
    search.judge(death(0, 512))
    assert search.judge(death(0, 0)) is Verdict.HOPELESS


def test_batch_of_one_row_fails_it_at_the_second_death() -> None:
    search = RowSearch()
    assert search.judge(death(0, 1)) is Verdict.SUSPICIOUS
    assert search.poisoned(SPAN) == ()
    assert search.judge(death(0, 1)) is Verdict.FEWER_ARE_SUSPECTED
    assert [failure.row for failure in search.poisoned(SPAN)] == [BATCH]


def test_first_rows_are_searched_too_but_not_all_of_them() -> None:
    search = RowSearch()
    found = 0
    while search.judge(death(found, found + 1, is_prepared=False, batch=0)) is not Verdict.HOPELESS:
        assert search.care(WARM_UP) is not None
        found = len(search.poisoned(Span(0, 0, 512, ())))
        assert found < 512
    assert 8 < found < 64


def test_end_without_a_batch_of_the_job_says_nothing_about_rows() -> None:
    search = RowSearch()
    trial = Notice(0.0, 0, 8, 16, 1, -1)
    for notice in (None, trial):
        end = ReplicaEnd(1, "was killed by SIGSEGV", -signal.SIGSEGV, "", notice)
        assert search.judge(Death(Device("cpu", 0), end, [SPAN], 512, True)) is Verdict.ORDINARY
