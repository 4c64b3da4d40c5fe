"""A trace of a run in the Chrome trace event format, which Perfetto opens: https://ui.perfetto.dev.

The file is a JSON array that grows event by event. Its closing bracket is optional by the format, so a run that is
killed leaves a trace that opens; a run that ends closes it, and it is plain JSON.
"""

import contextlib
import functools
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.core.records import Device
from penstock.core.tracing import (
    COORDINATOR,
    NONE,
    ORDERING,
    PREDICT,
    ROWS_DONE,
    SPAN,
    Level,
    Mark,
)
from penstock.errors import OutputError

_BUFFERED_BYTES = 1 << 16
_FLUSH_EVERY_S = 1.0
_FIRST_OF = {"trainer": 50, "replica": 100, "loader": 10_000}
_COORDINATOR_ID = 1


class TraceWriter:
    """Writes events as they become known. Any thread may call it; an error of the disk never stops the run.

    Args:
        path: The file; one that is there is replaced.
        began: When the run began, by `clock`: the zero of all times.
        clock: The clock of all processes of the run; tests bring their own.

    Raises:
        OutputError: The file cannot be written.
    """

    def __init__(self, path: str, began: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.path = path
        self._clock = clock
        self.problem: str | None = None
        """Why the trace ends before the run did, where it does."""
        try:
            self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise OutputError(
                "the trace cannot be written",
                received=f"{path}: {error.strerror or error}",
                hint="--trace takes the path of a file, in a folder that is there and may be written to",
            ) from None
        self.began = began
        self._lock = threading.Lock()
        self._buffer: list[str] = []
        self._buffered = 0
        self._flushed_at = began
        self._is_first = True
        self._named: dict[tuple[str, str | None], tuple[int, int]] = {}
        self._arrived: dict[int, float] = {}
        self._rows = 0
        self._track(COORDINATOR, "MainThread")
        self._write()

    def observe(self, number: int, device: Device, rows: int, marks: Iterable[Mark | Level]) -> None:
        """Write the marks of a replica and its loaders for a delivered span of `rows` rows."""
        now = self._clock()
        replica = f"replica {number} on {device}"
        with self._lock:
            for mark in marks:
                if isinstance(mark, Level):
                    self._count(mark, mark.process or replica)
                    continue
                if mark.what == PREDICT and not mark.process:
                    self._arrived[mark.span] = now
                self._slice(mark, mark.process or replica, str(device) if mark.what == PREDICT else None)
            self._rows += rows
            self._count(Level(ROWS_DONE, now, self._rows), COORDINATOR)
            self._flush_now_and_then(now)

    def take(self, process: str, marks: Iterable[Mark]) -> None:
        """Write the marks of another process, such as `trainer 0 on cpu:0`."""
        with self._lock:
            for mark in marks:
                self._slice(mark, process)
            self._flush_now_and_then(self._clock())

    def leaves(self, span: int) -> None:
        """Note that a span leaves the engine."""
        now = self._clock()
        with self._lock:
            arrived = self._arrived.pop(span, None)
            if arrived is None:
                return
            # Many results wait at the same time, so a wait is an async event and no slice of a thread.
            track, thread = self._track(COORDINATOR, "MainThread")
            same = f'"cat":"{ORDERING}","name":"{ORDERING}","id":{span},"pid":{track},"tid":{thread}'
            self._add(f'{{"ph":"b",{same},"ts":{self._time(arrived)},"args":{{"span":{span}}}}}')
            self._add(f'{{"ph":"e",{same},"ts":{self._time(now)}}}')

    @contextlib.contextmanager
    def doing(self, what: str, span: int = NONE, rows: int = NONE) -> Iterator[None]:
        """Note what this thread of the coordinator does inside the block."""
        started = self._clock()
        try:
            yield
        finally:
            self.note(what, started, span, rows)

    def note(self, what: str, started: float, span: int = NONE, rows: int = NONE) -> None:
        """Note what this thread of the coordinator has done since `started`."""
        now = self._clock()
        mark = Mark(what, threading.current_thread().name, started, now, span, rows=rows)
        with self._lock:
            self._slice(mark, COORDINATOR)
            self._flush_now_and_then(now)

    def close(self) -> None:
        """Complete the file."""
        with self._lock:
            self._buffer.append("\n]\n")
            self._write()
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _slice(self, mark: Mark, process: str, device: str | None = None) -> None:
        what, thread_name, started, ended, span, batch, rows, slot, _ = mark
        track, thread = self._track(process, thread_name)
        name = _quoted(what) if what != SPAN else '"sample"' if span == NONE else f'"span {span}"'
        args = f',"span":{span}' if span != NONE else ""
        args += f',"batch":{batch}' if batch != NONE else ""
        args += f',"rows":{rows}' if rows != NONE else ""
        args += f',"slot":{slot}' if slot != NONE else ""
        args += f',"device":"{device}"' if device is not None else ""
        # Both ends are rounded, not the duration: a slice still ends where the next one begins.
        start = round((started - self.began) * 1e9)
        duration = round((ended - self.began) * 1e9) - start
        self._add(
            f'{{"ph":"X","name":{name},"cat":{_quoted(what)},"pid":{track},"tid":{thread},'
            f'"ts":{start / 1000:.3f},"dur":{duration / 1000:.3f},"args":{{{args[1:]}}}}}'
        )

    def _count(self, level: Level, process: str) -> None:
        track, _ = self._track(process, None)
        name, _, series = level.what.partition(" ")  # "slots in use": viewers join the two parts again
        self._add(
            f'{{"ph":"C","name":"{name}","pid":{track},"ts":{self._time(level.at)},"args":{{"{series}":{level.value}}}}}'
        )

    def _track(self, process: str, thread: str | None) -> tuple[int, int]:
        """The numbers of a process and one of its threads; they are named when they first appear."""
        ids = self._named.get((process, thread))
        if ids is not None:
            return ids
        if thread is None:
            kind, _, rest = process.partition(" ")
            number = _COORDINATOR_ID if process == COORDINATOR else _FIRST_OF[kind] + int(rest.split()[0])
            self._describe("process_name", number, 0, {"name": process})
            self._describe("process_sort_index", number, 0, {"sort_index": number})
            ids = (number, 0)
        else:
            number, _ = self._track(process, None)
            ids = (number, sum(other == process for other, _ in self._named))
            self._describe("thread_name", number, ids[1], {"name": _plain(thread)})
        self._named[process, thread] = ids
        return ids

    def _describe(self, what: str, process: int, thread: int, args: dict[str, Any]) -> None:
        self._add(json.dumps({"ph": "M", "name": what, "pid": process, "tid": thread, "args": args}))

    def _time(self, moment: float) -> str:
        """Microseconds since the run began."""
        return f"{(moment - self.began) * 1e6:.3f}"

    def _add(self, event: str) -> None:
        self._buffer.append(("[\n" if self._is_first else ",\n") + event)
        self._is_first = False
        self._buffered += len(event)

    def _flush_now_and_then(self, now: float) -> None:
        if self._buffered > _BUFFERED_BYTES or now - self._flushed_at > _FLUSH_EVERY_S:
            self._flushed_at = now
            self._write()

    def _write(self) -> None:
        """Write whole events at once, so that a run that is killed leaves no half of one."""
        raw = "".join(self._buffer).encode()
        self._buffer.clear()
        self._buffered = 0
        try:
            while raw and self._file is not None:
                raw = raw[os.write(self._file, raw) :]
        except OSError as error:  # a full disk must not take the run down with the trace
            self.problem = error.strerror or str(error)
            assert self._file is not None
            os.close(self._file)
            self._file = None


@contextlib.contextmanager
def trace_to(path: str | None, began: float) -> Iterator[TraceWriter | None]:
    """A trace for what happens inside the block; None where no path is given.

    Raises:
        OutputError: The file cannot be written.
    """
    if path is None:
        yield None
        return
    trace = TraceWriter(path, began)
    try:
        yield trace
    finally:
        trace.close()


@functools.lru_cache(maxsize=256)
def _quoted(text: str) -> str:
    return json.dumps(text)


def _plain(thread: str) -> str:
    return "main" if thread == "MainThread" else thread.replace("-", " ")
