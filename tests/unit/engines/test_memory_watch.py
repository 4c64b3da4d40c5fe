"""What the death of a replica means: too little memory, a row that is too large, or something else."""

from __future__ import annotations

import signal
from typing import Any

from penstock.core.records import Device, RowFailure, Shortage, Span
from penstock.engines.memory_watch import Death, MemoryWatch, ReplicaEnd, Verdict
from penstock.pool.processes.board import Notice

CPU, OTHER_CPU, GPU = Device("cpu", 0), Device("cpu", 1), Device("gpu", 0, uuid="GPU-1")
SPAN = Span(4, 400, 100, ())
BAD_ALLOC: dict[str, Any] = {"code": -signal.SIGABRT, "words": "std::bad_alloc"}
KILLED: dict[str, Any] = {"code": -signal.SIGKILL, "words": ""}


def death(rows: int, first_row: int = 430, device: Device = CPU, **more: Any) -> Death:
    notice = Notice(0.0, first_row, rows, 16) if rows else None
    told: dict[str, Any] = {"spans": [SPAN], "is_prepared": True, "oom_kills": 0, **BAD_ALLOC, **more}
    end = ReplicaEnd(1, "was killed", told["code"], told["words"], notice, told["oom_kills"])
    return Death(device, end, told["spans"], 64, told["is_prepared"])


def watch() -> tuple[MemoryWatch, list[str]]:
    said: list[str] = []
    return MemoryWatch(said.append), said


def test_who_died_of_memory_is_followed_by_one_with_half_and_alone() -> None:
    memory, said = watch()
    assert memory.judge(death(64)) is Verdict.LESS_WAS_TRIED
    assert memory.ceilings(CPU) == {16: 32}
    assert memory.is_alone(CPU)
    assert memory.ceilings(OTHER_CPU) == {16: 32}, "they have one memory"
    assert memory.ceilings(GPU) == {}
    assert said == ["cpu:0 ran out of memory at a batch of 64 rows: going on with 32"]
    assert memory.judge(death(64, device=OTHER_CPU)) is Verdict.LESS_WAS_TRIED
    assert memory.ceilings(CPU) == {16: 32}, "it died with what it had before"


def test_one_kill_changes_nothing_and_a_second_at_the_same_span_does() -> None:
    memory, said = watch()
    assert memory.judge(death(64, **KILLED)) is Verdict.SUSPICIOUS
    assert (memory.ceilings(CPU), memory.is_alone(CPU), said) == ({}, False, [])
    elsewhere = Span(9, 900, 100, ())
    assert memory.judge(death(64, 950, spans=[elsewhere], **KILLED)) is Verdict.SUSPICIOUS
    assert memory.judge(death(64, **KILLED)) is Verdict.LESS_WAS_TRIED
    assert memory.ceilings(CPU) == {16: 32}


def test_kill_that_the_kernel_counts_is_believed_at_once() -> None:
    memory, _ = watch()
    assert memory.judge(death(64, **KILLED, oom_kills=1)) is Verdict.LESS_WAS_TRIED
    assert memory.judge(death(32, **KILLED, oom_kills=1)) is Verdict.SUSPICIOUS, "the count did not move"


def test_crash_under_an_address_limit_is_suspected() -> None:
    memory = MemoryWatch(lambda line: None, has_address_limit=True)
    crash: dict[str, Any] = {"code": -signal.SIGSEGV, "words": ""}
    assert memory.judge(death(64, **crash)) is Verdict.SUSPICIOUS
    assert memory.judge(death(64, **crash)) is Verdict.LESS_WAS_TRIED


def test_kill_at_a_span_that_was_finished_since_is_a_first_one_again() -> None:
    memory, _ = watch()
    memory.judge(death(64, **KILLED))
    memory.finished(SPAN.index)
    assert memory.judge(death(64, **KILLED)) is Verdict.SUSPICIOUS


def test_row_at_which_two_die_alone_is_left_out_and_the_others_get_their_batches_back() -> None:
    memory, said = watch()
    for rows in (64, 32, 16, 8, 4, 2):
        assert memory.judge(death(rows)) is Verdict.LESS_WAS_TRIED
    assert memory.ceilings(CPU) == {16: 1}
    assert memory.judge(death(1)) is Verdict.SUSPICIOUS
    assert memory.poisoned(SPAN) == ()
    assert memory.judge(death(1)) is Verdict.LESS_WAS_TRIED
    reason = "does not fit into the memory by itself: the process that predicted it was killed"
    assert memory.poisoned(SPAN) == (RowFailure(430, "", "predict", "OutOfMemory", reason),)
    assert (memory.ceilings(CPU), memory.is_alone(CPU)) == ({}, False)
    assert said[-1] == "cpu:0 ran out of memory at a single row: the row has failed"

    for rows in (64, 32, 16, 8, 4, 2, 1, 1):
        memory.judge(death(rows, 431))
    assert len(memory.poisoned(SPAN)) == 2
    assert memory.ceilings(CPU) == {16: 1}, "one row after another: they will not be the last"


def test_death_at_one_row_beside_others_names_none() -> None:
    memory, said = watch()
    assert memory.judge(death(1)) is Verdict.LESS_WAS_TRIED
    assert memory.is_alone(CPU)
    assert said == ["cpu:0 ran out of memory at 2 batches of 1 rows at once: going on with 1"]


def test_row_that_is_left_out_already_is_not_blamed_again() -> None:
    memory, _ = watch()
    for rows in (2, 1, 1):
        memory.judge(death(rows))
    memory.judge(death(2))
    assert memory.judge(death(1)) is Verdict.ORDINARY


def test_first_rows_of_which_none_fits_are_given_up() -> None:
    memory, _ = watch()
    notices = [(2, 0), (1, 0), (1, 0), (2, 0), (1, 1), (1, 1), (1, 2)]
    verdicts = [memory.judge(death(*notice, spans=[], is_prepared=False)) for notice in notices]
    assert verdicts[-1] is Verdict.ORDINARY
    assert Verdict.ORDINARY not in verdicts[:-1]


def test_what_is_not_about_memory_is_ordinary() -> None:
    memory, said = watch()
    assert memory.judge(death(64, code=-signal.SIGSEGV, words="")) is Verdict.ORDINARY
    assert memory.judge(death(64, code=3, words="ImportError: no module")) is Verdict.ORDINARY
    assert memory.judge(death(0, **KILLED)) is Verdict.ORDINARY, "no batch was under way"
    assert said == []


def test_memory_that_ran_out_between_batches_makes_all_of_them_smaller() -> None:
    memory, _ = watch()
    assert memory.judge(death(0, words="RuntimeError: can't start new thread", code=None)) is Verdict.LESS_WAS_TRIED
    assert memory.ceilings(CPU) == {0: 32}
    for _ in range(5):
        assert memory.judge(death(0)) is Verdict.LESS_WAS_TRIED
    assert memory.ceilings(CPU) == {0: 1}
    assert memory.judge(death(0)) is Verdict.ORDINARY


def test_what_replicas_tell_is_counted_and_said_once_for_each_ceiling() -> None:
    memory, said = watch()
    shortage = Shortage("gpu:0", 4096, 2048)
    memory.note_shortage(GPU, shortage, {16: 2048})
    memory.note_shortage(GPU, shortage, {16: 2048})
    assert said == ["gpu:0 ran out of memory at a batch of 4,096 rows: going on with 2,048"]
    assert memory.shortages == {shortage: 2}
    assert memory.ceilings(GPU) == {16: 2048}
