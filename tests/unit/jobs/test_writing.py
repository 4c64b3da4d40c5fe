"""Results on their way into parts: what they were read from is digested beside, and each is written in its turn."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from typing import Any

import pytest

from penstock.core.records import Result, Span
from penstock.errors import InputError, Interrupted
from penstock.jobs.writing import Writer
from penstock.telemetry.meter import Meter

RESULTS = [Result(Span(number, number, 1, ()), {}) for number in range(6)]


class Digests:
    """Digests two spans at a time: each waits until another one is under way. One of them cannot be digested."""

    def __init__(self, changed: int | None = None) -> None:
        self._two = threading.Barrier(2, timeout=60)
        self._changed = changed

    def digest(self, span: Span) -> str:
        self._two.wait()
        if span.index == self._changed:
            raise InputError("the input changed since the job began")
        return f"digest {span.index}"


class Parts:
    def __init__(self) -> None:
        self.accepted: list[tuple[int, str]] = []

    def accept(self, result: Result) -> None:
        self.accepted.append((result.span.index, result.digest))

    def commit_all(self) -> None: ...
    def close(self) -> None: ...


class Slow(Parts):
    """Parts that are being written when a signal comes, and are written further for as long as that takes."""

    def __init__(self) -> None:
        super().__init__()
        self.is_finishing, self.is_closing, self.is_closed = (threading.Event() for _ in range(3))
        self.is_writing = False
        self.was_closed_while_writing: bool | None = None

    def accept(self, result: Result) -> None:
        super().accept(result)
        if result.span.index == RESULTS[-1].span.index:
            self.is_writing = True
            assert self.is_finishing.wait(60)
            main = threading.main_thread().ident or 0
            while sys._current_frames()[main].f_code.co_name not in ("wait", "_wait_for_tstate_lock"):
                pass
            signal.pthread_kill(main, signal.SIGUSR1)
            assert self.is_closing.wait(60)
            self.is_closed.wait(0.2)
            self.is_writing = False

    def close(self) -> None:
        self.was_closed_while_writing = self.is_writing
        self.is_closed.set()


class Announcing(Writer):
    """A writer whose parts know what it is asked for."""

    def finish(self) -> None:
        parts: Any = self._parts
        parts.is_finishing.set()
        super().finish()

    def close(self) -> None:
        parts: Any = self._parts
        parts.is_closing.set()
        super().close()


def test_signal_while_the_end_is_waited_for_closes_no_part_that_is_being_written() -> None:
    parts: Any = Slow()
    digests: Any = Digests()

    def stop(*_: object) -> None:
        raise Interrupted.by_signal(signal.SIGTERM, "stopped at once")

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        writer = Announcing(parts, Meter(), digests)
        with pytest.raises(Interrupted), contextlib.closing(writer):
            write_all(writer)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert parts.was_closed_while_writing is False


def write_all(writer: Writer) -> None:
    for result in RESULTS:
        writer.put(result)
    writer.finish()


def test_spans_are_digested_two_at_a_time_and_written_in_their_order() -> None:
    parts: Any = Parts()
    digests: Any = Digests()
    writer = Writer(parts, Meter(), digests)
    write_all(writer)
    writer.close()
    assert parts.accepted == [(number, f"digest {number}") for number in range(6)]


def test_input_that_changed_ends_the_writing_at_its_result() -> None:
    parts: Any = Parts()
    digests: Any = Digests(changed=3)
    ended = threading.Event()
    writer = Writer(parts, Meter(), digests, ended.set)
    with pytest.raises(InputError, match="the input changed"):
        write_all(writer)
    assert ended.is_set()
    digests._two.abort()
    writer.close()
    assert parts.accepted == [(number, f"digest {number}") for number in range(3)]
