"""Results on their way into parts: what they were read from is digested beside, and each is written in its turn."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock.core.records import Result, Span
from penstock.errors import InputError
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
