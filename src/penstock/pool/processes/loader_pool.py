"""The loader processes of a run: their pool owns all slots, hands out spans by pull, and survives deaths and hangs.

Only the pool records where a slot is: free, granted to a loader, or on its way to a replica. When a process is gone,
its slots are free again. The memory has no name, so nothing is left behind when this process is killed itself.

A loader that dies or hangs is replaced, and its span is loaded again, row by row. A row that is to blame is a row
failure (`row_trouble`), and the rest of its span goes on.
"""

import itertools
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from penstock.core.job import Job
from penstock.core.messages import Begin, Chunk, Failed, Filled, Grant, Learn, Learnt, LoadedData, LoadSpan, SpanLoaded
from penstock.core.preprocessing import Preprocess
from penstock.core.records import RowFailure, Span
from penstock.core.stillness import Stillness, Timeouts
from penstock.core.tracing import COORDINATOR, SLOTS_IN_USE, Level, Mark
from penstock.errors import WorkersDied
from penstock.pool.devices.near import ANY, Cores
from penstock.pool.processes.row_trouble import DEATHS_IN_A_ROW, Blame, RowTrouble
from penstock.pool.processes.supervisor import LoaderLaunch, WorkerProcess

_SPANS_AHEAD = 2
_SLOTS_AHEAD = 2

Deliver = Callable[[LoadedData], None]
"""Takes every message of a loader that is for a replica."""


class _Loader(WorkerProcess):
    """The coordinator's hold on one loader process."""

    def __init__(self, number: int, launch: LoaderLaunch, cores: Cores) -> None:
        self.number = number
        self.is_bound = bool(cores)
        self.spans: dict[int, Span] = {}
        """The spans that it has to load, by attempt. One may be there twice, for a replica that died and the next."""
        self.slots: set[int] = set()
        self.has_loaded = False
        self.is_retiring = False
        super().__init__(
            "penstock.pool.processes.loader",
            (launch.batch_slots, *sys.path),
            (launch.batch_slots, *launch.descriptors),
            launch.loader_environment(),
            launch.log,
            cores,
        )

    @property
    def has_room(self) -> bool:
        """Whether it has something to load, and a slot to load it into."""
        return bool(self.spans and self.slots)

    @property
    def first_span(self) -> int:
        """The span that it works on, or begins with."""
        return next(iter(self.spans.values())).index


class LoaderPool:
    """Loader processes, and the slots through which they hand batches to replicas.

    Args:
        launch: What processes are started with.
        deliver: Takes every message that is for the replica of a span.
        timeouts: How long one row, or one call of the user's function, may take, and the time between them.
        is_in_order: Whether the receiver takes spans one after the other. A slot goes to the loader with the earliest
            span then: if all slots were full of later ones, that loader would wait for ever.
    """

    def __init__(
        self, launch: LoaderLaunch, deliver: Deliver, timeouts: Timeouts, *, is_in_order: bool = False
    ) -> None:
        self._launch = launch
        self._is_in_order = is_in_order
        self._deliver = deliver
        self._timeout_s = timeouts.row_s
        self._at_work = Stillness(timeouts.hang_s)
        self._at_start = Stillness(timeouts.start_s, times=0)
        self._job: Job | None = None
        self._slot_bytes = self._slot_count = 0
        self._free: list[int] = []
        self._loaders: dict[int, _Loader] = {}
        self._next_number = 0
        self._waiting: deque[Span] = deque()
        self._trouble: dict[int, RowTrouble] = {}
        self._poisoned: dict[int | None, dict[int, RowFailure]] = {}
        """Rows to leave out, by span where the same number means another row in another span; None is for all spans."""
        self._untried: list[RowFailure] = []
        """Rows that are not tried when the function's columns are learnt, because those before them ended processes."""
        self._deaths_in_a_row = 0
        self._attempts: dict[int, int] = {}
        self._numbers = itertools.count(1)
        self._is_always_careful = False
        self._learning: Learn | None = None
        self._learnt: Preprocess | None = None
        self.busy_s = 0.0
        self.wait_s = 0.0
        self._marks: list[Mark | Level] = []

    @property
    def signs(self) -> dict[Any, int]:
        """What to wait on, and the number of its loader."""
        return {sign: number for number, loader in self._loaders.items() for sign in loader.signs}

    @property
    def count(self) -> int:
        return sum(not loader.is_retiring for loader in self._loaders.values())

    @property
    def has_newcomers(self) -> bool:
        """Whether a loader is still starting, or at its first span: its effect cannot be seen yet."""
        return not all(loader.has_loaded for loader in self._loaders.values())

    def learn(self, source: Any, preprocess: Preprocess, sample: Span) -> None:
        """Ask the first loader what the user's function gives. `learnt` has the answer when it has come."""
        self._learning = Learn(source, preprocess, sample)
        self._tell(self._start())

    @property
    def learnt(self) -> Preprocess | None:
        return self._learnt

    def begin(self, job: Job, count: int, slot_bytes: int, slot_count: int) -> None:
        """Take the job, and start so many loaders. Loaders that were tried on a few rows before keep their slots."""
        self._job, self._slot_bytes, self._slot_count = job, slot_bytes, slot_count
        os.ftruncate(self._launch.batch_slots, slot_bytes * slot_count)
        granted = {slot for loader in self._loaders.values() for slot in loader.slots}
        # Slots with low numbers are used first: so no loader holds a slot that a smaller job does not have.
        assert max(granted, default=0) < slot_count
        self._free = [slot for slot in reversed(range(slot_count)) if slot not in granted]
        for loader in self._loaders.values():
            loader.send(Begin(job, slot_bytes, slot_count))
        self.resize(count)

    def resize(self, count: int) -> None:
        """Have so many loaders: start new ones, or let the last ones finish what they have and go."""
        # A large message waits until its process runs and reads it: so all processes start before the first message.
        for loader in [self._start() for _ in range(self.count, count)]:
            self._tell(loader)
        active = [loader for loader in self._loaders.values() if not loader.is_retiring]
        for loader in active[count:]:
            loader.is_retiring = True
            self._retire_if_idle(loader)
        self._dispatch()

    def submit(self, span: Span) -> None:
        """Load a span, in its turn. What a loader still sends of an earlier attempt is dropped."""
        self._attempts[span.index] = next(self._numbers)
        if span not in self._waiting:
            self._waiting.append(span)
        self._dispatch()

    def forget(self, span_index: int) -> None:
        """The result of a span has come: later messages about the span are dropped."""
        self._attempts.pop(span_index, None)
        self._waiting = deque(span for span in self._waiting if span.index != span_index)

    def withdraw(self) -> list[Span]:
        """Take back the spans that no loader has begun."""
        unbegun = list(self._waiting)
        self._waiting.clear()
        return unbegun

    def release(self, slot: int) -> None:
        """A replica no longer reads this slot, or is gone."""
        self._free.append(slot)
        self._dispatch()

    def handle(self, number: int) -> None:
        """Deal with the next message of a loader, or with its end."""
        loader = self._loaders.get(number)
        if loader is None:
            return  # let go a moment ago
        try:
            message = loader.receive()
        except (EOFError, OSError):
            self._lose(loader)
            return
        match message:
            case Chunk() | Filled():
                self._take(loader, message)
            case SpanLoaded():
                self._end_span(loader, message)
            case Learnt(preprocess=preprocess):
                self._learnt, self._learning = preprocess, None
                self._trouble.clear()
                self._untried.clear()
                self._deaths_in_a_row = 0
            case Failed():
                raise message.as_error("a loader")
        self._dispatch()

    def _take(self, loader: _Loader, message: Chunk | Filled) -> None:
        if message.slot is not None:
            loader.slots.discard(message.slot)
        span, attempt = message.key[::2] if isinstance(message, Chunk) else (message.span, message.attempt)
        if attempt == self._attempts.get(span):
            self._deliver(message)
        elif message.slot is not None:
            self._free.append(message.slot)

    def _end_span(self, loader: _Loader, message: SpanLoaded) -> None:
        loader.spans.pop(message.attempt, None)
        loader.has_loaded = True
        self._deaths_in_a_row = 0
        self.busy_s += message.read_s
        self.wait_s += message.waited_s
        if message.marks:
            process = f"loader {loader.number}"
            self._marks += [mark._replace(process=process) for mark in message.marks]
            self._marks.append(
                Level(SLOTS_IN_USE, time.perf_counter(), self._slot_count - len(self._free), COORDINATOR)
            )
            message = replace(message, marks=())  # the replica has no use for them
        if message.attempt == self._attempts.get(message.span):
            trouble = self._trouble.pop(message.span, None)
            self._is_always_careful |= trouble is not None and trouble.is_slow
            self._deliver(message)
        self._retire_if_idle(loader)

    def take_marks(self) -> list[Mark | Level]:
        """The marks of loaders since the last call, where the job is traced."""
        marks, self._marks = self._marks, []
        return marks

    def check_time(self, now: float) -> None:
        """Kill a loader that hangs; its end is dealt with like any other."""
        for loader in self._loaders.values():
            loader.kill_if_hung(self._timeout_s, now)
        working: dict[int, tuple[int, int]] = {}
        starting: dict[int, tuple[int, int]] = {}
        for number, loader in self._loaders.items():
            if loader.is_between_rows and (loader.has_room or self._learning is not None):
                is_at_work = loader.has_spoken or loader.is_stopped
                (working if is_at_work else starting)[number] = loader.progress
        for number, seconds in (self._at_work.look(now, working) | self._at_start.look(now, starting)).items():
            self._loaders[number].end_hung(seconds)

    def close(self) -> None:
        for loader in self._loaders.values():
            loader.close()
        self._loaders.clear()

    def _start(self) -> _Loader:
        number, self._next_number = self._next_number, self._next_number + 1
        near = self._launch.near
        num_bound = sum(loader.is_bound for loader in self._loaders.values())
        cores = near.of_loaders if num_bound < near.most_loaders else ANY
        loader = self._loaders[number] = _Loader(number, self._launch, cores)
        return loader

    def _tell(self, loader: _Loader) -> None:
        """Send a new loader what it works for."""
        if self._learning is not None:
            left_out = (*self._poisoned_of(self._learning.sample).values(), *self._untried)
            loader.send(replace(self._learning, poisoned=left_out))
        if self._job is not None:
            loader.send(Begin(self._job, self._slot_bytes, self._slot_count))

    def _dispatch(self) -> None:
        """Hand out spans to loaders that have room for one, and free slots to those with work and too few slots."""
        for loader in sorted(self._loaders.values(), key=lambda loader: len(loader.spans)):
            while self._waiting and not loader.is_retiring and len(loader.spans) < _SPANS_AHEAD:
                if loader.spans and self._has_idle_loader():
                    break
                span = self._waiting.popleft()
                rows = self._poisoned.get(self._place_of(span), {}).items()
                poisoned = tuple(failure for row, failure in rows if span.start <= row < span.stop)
                attempt = self._attempts[span.index]
                loader.spans[attempt] = span
                is_careful = self._is_always_careful or span.index in self._trouble
                loader.send(LoadSpan(span, attempt, is_careful, poisoned))
        hungry = [loader for loader in self._loaders.values() if loader.spans and len(loader.slots) < _SLOTS_AHEAD]
        while hungry and self._free:
            loader = min(hungry, key=lambda loader: loader.first_span if self._is_in_order else len(loader.slots))
            # The memory of the slot that was used last is in the caches, and its pages are allocated already.
            slot = self._free.pop()
            loader.slots.add(slot)
            loader.send(Grant(slot))
            hungry = [each for each in hungry if len(each.slots) < _SLOTS_AHEAD]

    def _has_idle_loader(self) -> bool:
        return any(not loader.spans and not loader.is_retiring for loader in self._loaders.values())

    def _retire_if_idle(self, loader: _Loader) -> None:
        if loader.is_retiring and not loader.spans:
            del self._loaders[loader.number]
            self._free += loader.slots
            loader.close()

    def _lose(self, loader: _Loader) -> None:
        """A loader is gone: its slots are free, its spans are loaded again, the one it was at with care."""
        how = loader.describe_end()
        del self._loaders[loader.number]
        self._free += loader.slots
        self._deaths_in_a_row += 1
        try:
            if loader.spans or self._learning is not None:
                self._suspect(loader, how)
            elif self._deaths_in_a_row >= DEATHS_IN_A_ROW:
                raise self._died(how, "starting")
        finally:
            loader.close()
        # If a span has a later attempt, it waits already, or another loader is at it.
        again = [span for attempt, span in loader.spans.items() if attempt == self._attempts.get(span.index)]
        for span in again:
            self._attempts[span.index] = next(self._numbers)
        self._waiting.extendleft(reversed(again))
        indices = [span.index for span in again]
        self._launch.note(f"loader {loader.number} {how}; spans {indices} are loaded again")
        if not loader.is_retiring:
            self._tell(self._start())
        self._dispatch()

    def _suspect(self, loader: _Loader, how: str) -> None:
        span = self._learning.sample if self._learning is not None else next(iter(loader.spans.values()))
        poisoned = self._poisoned_of(span)
        trouble = self._trouble.setdefault(span.index, RowTrouble(poisoned, self._learning is not None))
        has_function = self._learning is not None or (self._job is not None and self._job.preprocess is not None)
        stage = "preprocess" if has_function else "load"
        if trouble.add(loader, Blame(stage, "LoaderDied", "the process that loaded this row {how}", self._timeout_s)):
            self._deaths_in_a_row = 0
            if self._learning is not None:
                self._leave_out(span, list(poisoned.values())[-1])
        if trouble.deaths >= DEATHS_IN_A_ROW:
            raise self._died(how, f"loading rows {span.start} to {span.stop - 1}")

    def _poisoned_of(self, span: Span) -> dict[int, RowFailure]:
        return self._poisoned.setdefault(self._place_of(span), {})

    def _place_of(self, span: Span) -> int | None:
        # Only the spans of epochs are in order, and in every epoch another row has the same number.
        return span.index if self._is_in_order else None

    def _leave_out(self, sample: Span, failure: RowFailure) -> None:
        """Leave out half of the remaining rows untried: it would take minutes if each of them ended a process."""
        first = failure.row + 1
        self._untried += [replace(failure, row=row) for row in range(first, first + (sample.stop - first) // 2)]

    def _died(self, how: str, when: str) -> WorkersDied:
        return WorkersDied(
            f"a loader died while {when}",
            received=f"it {how}; its last words: {self._launch.last_words() or 'none'}",
            hint="--verbose shows what it says; --loaders 1 needs less memory",
        )
