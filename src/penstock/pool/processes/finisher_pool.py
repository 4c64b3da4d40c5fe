"""The finisher processes of a run, which apply the user's function to results; the run survives deaths and hangs.

A process that dies or hangs is replaced; a row that is to blame is a row failure (`row_trouble`), and the rest of its
result goes on.
"""

from __future__ import annotations

import multiprocessing.connection
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace

from penstock.core.messages import Applied, Failed, Finish
from penstock.core.postprocessing import Finished, Postprocess, finish
from penstock.core.queues import drained
from penstock.core.records import UNWATCHED, Block, Column, Result
from penstock.core.scheduler import NOT_YET, NotYet
from penstock.core.stillness import Stillness, Timeouts
from penstock.errors import WorkersDied
from penstock.pool.processes.row_trouble import DEATHS_IN_A_ROW, Blame, RowTrouble
from penstock.pool.processes.supervisor import Launch, WorkerProcess
from penstock.pool.transfer.parcels import Mailbox

_POLL_S = 0.05
_AHEAD = 2

Timed = Callable[[int], AbstractContextManager[None]]
"""Times a wait for the function, which ends when it is done with so many rows."""


class FinishedHere:
    """The function in this process, for a live model: there is no other process."""

    def __init__(self, function: Postprocess, kept: tuple[str, ...], timed: Timed) -> None:
        self.function = function
        self._kept = kept
        self._timed = timed

    def learn(self, columns: Mapping[str, Column]) -> None:
        rows = len(next(iter(columns.values())))
        self.function = self.function.on(columns).learn([Block(0, rows, columns)], UNWATCHED)

    def run(self, results: Iterable[Result | NotYet]) -> Generator[tuple[Result, Finished]]:
        """Every result with what the function made of it."""
        for result in results:
            if result is NOT_YET:
                continue
            with self._timed(result.span.rows):
                made = finish(self.function, result.columns, self._kept, UNWATCHED) if result.rows else _NOTHING
            yield result, made

    def close(self) -> None:
        pass


class Finishers:
    """Processes that run the user's function, each driven by a thread of its own.

    Args:
        function: The function. `learn` finds out what it gives.
        kept: The names under which kept columns are written.
        launch: What processes are started with.
        count: How many processes.
        timeouts: How long one call may take, and all before and after it.
        timed: Times every wait for the function.
    """

    def __init__(
        self, function: Postprocess, kept: tuple[str, ...], launch: Launch, count: int, timeouts: Timeouts, timed: Timed
    ) -> None:
        self.function = function
        self._kept = kept
        self._launch = launch
        self._count = count
        self._timeouts = timeouts
        self._timed = timed
        self._idle: queue.LifoQueue[_Finisher | None] = queue.LifoQueue()
        for _ in range(count):
            self._idle.put(None)  # started when there is work for it
        self._live: set[_Finisher] = set()
        self._is_closed = False
        self._closing = threading.Lock()  # guards `_live` and `_is_closed`
        self._is_always_careful = False

    def learn(self, columns: Mapping[str, Column]) -> None:
        """Find out what the function gives, from some of the first rows."""
        learnt, _ = self._ask(columns, is_learning=True)
        assert learnt.learnt is not None
        self.function = learnt.learnt

    def run(self, results: Iterable[Result | NotYet]) -> Generator[tuple[Result, Finished]]:
        """Every result with what the function made of it, in order. At `NOT_YET`, all before it are waited for."""
        waiting: deque[tuple[Result, Future[Finished]]] = deque()
        executor = ThreadPoolExecutor(self._count, "finisher")
        try:
            for result in results:
                if result is not NOT_YET:
                    waiting.append((result, executor.submit(self._finish, result)))
                most = 0 if result is NOT_YET else _AHEAD * self._count
                while waiting and (len(waiting) > most or waiting[0][1].done()):
                    yield self._wait_for(*waiting.popleft())
            for first, future in waiting:
                yield self._wait_for(first, future)
        except BaseException:
            self.close()  # otherwise the executor would wait for a call that hangs
            raise
        finally:
            executor.shutdown(cancel_futures=True)

    def _wait_for(self, result: Result, future: Future[Finished]) -> tuple[Result, Finished]:
        with self._timed(result.span.rows):
            return result, future.result()

    def close(self) -> None:
        """End the processes, whatever they are at. May be called twice."""
        with self._closing:
            self._is_closed = True
            live = list(self._live)
        for finisher in live:
            finisher.kill()
        for idle in drained(self._idle):
            if idle is not None:
                self._drop(idle)
            self._idle.put(None)  # a thread that comes late must not wait for one

    def _finish(self, result: Result) -> Finished:
        if not result.rows:
            return _NOTHING
        applied, columns = self._ask(result.columns)
        return Finished(columns, applied.failures)

    def _ask(self, columns: Mapping[str, Column], *, is_learning: bool = False) -> tuple[Applied, dict[str, Column]]:
        """Have a process apply the function, or learn what it gives; if the process dies, another one takes over."""
        trouble = RowTrouble({}, self._is_always_careful)
        blame = Blame(
            Postprocess.stage, "FinisherDied", "the process of the function {how} at this row", self._timeouts.row_s
        )
        finisher = self._idle.get()
        try:
            while True:
                if finisher is None:
                    finisher = self._started()
                parcel = finisher.inbox.put(columns)
                poisoned = tuple(trouble.poisoned.values())
                order = Finish(self.function, self._kept, parcel, is_learning, trouble.is_careful, poisoned)
                answer = finisher.ask(order, self._timeouts)
                if answer is not None:
                    self._is_always_careful |= trouble.is_slow
                    return answer, finisher.outbox.take(answer.columns) if answer.columns is not None else {}
                how = finisher.describe_end()
                self._launch.note(f"a finisher {how}; its rows are handed out again")
                trouble.add(finisher, blame)
                self._drop(finisher)
                finisher = None
                if trouble.deaths >= DEATHS_IN_A_ROW or self._is_closed:
                    raise self._died(how)
        finally:
            if finisher is not None and self._is_closed:
                self._drop(finisher)
                finisher = None
            self._idle.put(finisher)

    def _started(self) -> _Finisher:
        """A new process, which `close` will end; none is started after that."""
        finisher = _Finisher(self._launch)
        with self._closing:
            if not self._is_closed:
                self._live.add(finisher)
                return finisher
        finisher.close()
        raise self._died("was ended, as its work is no longer wanted")

    def _drop(self, finisher: _Finisher) -> None:
        self._live.discard(finisher)
        finisher.close()

    def _died(self, how: str) -> WorkersDied:
        return WorkersDied(
            "the process of the postprocessing function died again and again",
            received=f"{self.function.location}: it {how}; its last words: {self._launch.last_words() or 'none'}",
            hint="--verbose shows what it says",
        )


_NOTHING = Finished({}, ())


class _Finisher(WorkerProcess):
    """The coordinator's hold on one finisher process."""

    def __init__(self, launch: Launch) -> None:
        self.inbox, self.outbox = Mailbox.create(), Mailbox.create()
        self._function: Postprocess | None = None
        descriptors = (self.inbox.descriptor, self.outbox.descriptor)
        super().__init__(
            "penstock.pool.processes.finisher",
            (*descriptors, *sys.path),
            descriptors,
            launch.loader_environment(),
            launch.log,
        )

    def ask(self, order: Finish, timeouts: Timeouts) -> Applied | None:
        """The answer; None where the process died over it, or was killed because it hung.

        Raises:
            PenstockError: The function cannot be imported, or we have a bug.
        """
        is_first = self._function is None
        is_known, self._function = order.function is self._function, order.function
        still = Stillness(timeouts.start_s, times=0) if is_first else Stillness(timeouts.hang_s)
        try:
            self.send(replace(order, function=None) if is_known else order)
            while not multiprocessing.connection.wait(self.signs, _POLL_S):
                now = time.monotonic()
                self.kill_if_hung(timeouts.row_s, now)
                for seconds in still.look(now, {0: self.progress} if self.is_between_rows else {}).values():
                    self.end_hung(seconds)
            answer = self.receive()
        except (EOFError, OSError):
            return None
        if isinstance(answer, Failed):
            raise answer.as_error("a finisher")
        assert isinstance(answer, Applied)
        return answer

    def close(self) -> None:
        super().close()
        self.inbox.close()
        self.outbox.close()


def with_failures(result: Result, finished: Finished, origin: Mapping[int, str]) -> Result:
    """The result as it is written: the columns that the function gave, and the rows at which it failed.

    Args:
        result: What the model gave.
        finished: What became of its rows.
        origin: Place in the result to where that row comes from.
    """
    numbers = result.row_numbers()
    new = [replace(failure, row=int(numbers[failure.row]), origin=origin[failure.row]) for failure in finished.failures]
    failures = sorted((*result.failures, *new), key=lambda failure: failure.row)
    return replace(result, columns=finished.columns, failures=tuple(failures))
