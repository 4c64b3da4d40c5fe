"""The local engine: one process for each device, fed by pull, watched, and replaced when it dies.

It reads messages, turns them into events for `RunState`, and carries out the commands that come back.
"""

import contextlib
import multiprocessing.connection
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.core import messages
from penstock.core.agreement import Noise
from penstock.core.job import Job
from penstock.core.preprocessing import Preprocess
from penstock.core.protocols import Observe, ShowLine, show_nothing
from penstock.core.records import Placement, Result, Shortage, Signature, Span, Timings
from penstock.core.scheduler import NOT_YET, NotYet
from penstock.core.source import Source
from penstock.core.stillness import DEFAULT_TIMEOUTS, Timeouts
from penstock.core.stopping import StopFlag
from penstock.engines import run_events
from penstock.engines.loader_feed import LoaderFeed
from penstock.engines.memory_watch import ReplicaEnd
from penstock.engines.run_state import RunState
from penstock.engines.span_feed import SpanFeed
from penstock.pool.devices.memory import has_address_limit, oom_kills
from penstock.pool.processes.supervisor import Launch, ReplicaHandle

_POLL_S = 0.2
_TICK_S = 0.1


class LocalEngine:
    """Replicas as processes of this machine.

    Args:
        launch: What the processes are started with.
        placement: The devices, and the threads inside each replica.
        observe: Takes the replica's number, its device and its timings of every finished span.
        stop: Begin no more spans once it is raised.
        timeouts: How long processes may take.
        show: Shows a line to the user, when a device runs out of memory and the run goes on with less.
        is_trial: Whether the first death of a replica ends the run.
    """

    def __init__(
        self,
        launch: Launch,
        placement: Placement,
        observe: Observe,
        stop: StopFlag,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        show: ShowLine = show_nothing,
        *,
        is_trial: bool = False,
    ) -> None:
        self._launch = launch
        self._placement = placement
        self._observe = observe
        self._stop = stop
        self._timeouts = timeouts
        self._show = show
        self._feed: LoaderFeed | None = None
        self._job: Job | None = None
        self._replicas: dict[int, ReplicaHandle] = {}
        self._leaving: deque[Result] = deque()
        self._ticked_at = 0.0
        self._news: multiprocessing.connection.Connection | None = None
        self._state = RunState(
            placement, oom_kills(), has_address_limit=has_address_limit(), timeouts=timeouts, is_trial=is_trial
        )
        # One first: the others follow when it is known that there is work for them.
        self._handle(run_events.DeviceJoined(placement.devices[0]))

    def load(self) -> Signature:
        self._pump_until(lambda: self._state.signature is not None, self._stop)
        assert self._state.signature is not None
        return self._state.signature

    def learn(self, source: Source, preprocess: Preprocess, sample: Span) -> Preprocess:
        """What the user's function gives, found out in the first loader process."""
        pool = self._loader_feed().pool
        pool.learn(source, preprocess, sample)
        self._pump_until(lambda: pool.learnt is not None, self._stop)
        assert pool.learnt is not None
        return pool.learnt

    def prepare(
        self, job: Job, placement: Placement, sample: Span, asked: messages.Asked = messages.NOTHING_ASKED
    ) -> messages.Prepared:
        self._job, self._placement = job, placement
        if placement.has_loader_processes:
            feed = self._loader_feed()
            feed.begin(job, placement, sample, is_timed=asked.answers_rows > 0)
            self._pump_until(lambda: feed.rows_loaded_per_s is not None, self._stop)
        self._handle(run_events.JobTaken(job, placement, sample, asked))
        self._pump_until(lambda: self._state.prepared is not None, self._stop)
        assert self._state.prepared is not None
        return replace(self._state.prepared, rows_loaded_per_s=self._feed.rows_loaded_per_s if self._feed else None)

    def measure(self, order: messages.Measure, replicas: int, stop: StopFlag) -> list[messages.Measured]:
        """How fast the step is at one batch size, on so many replicas of the placement at once. After `prepare`."""
        answers = self._probe(run_events.ProbeAsked(order, replicas), stop)
        return [answer for answer in answers if isinstance(answer, messages.Measured)]

    def convert(self, folder: str, stop: StopFlag) -> str | None:
        """Have the first replica write its whole step to `folder`; returns why it cannot, in words."""
        (answer,) = self._probe(run_events.ProbeAsked(messages.Convert(folder)), stop)
        assert isinstance(answer, messages.Converted)
        return answer.problem

    def find_noise(self, rows: int, stop: StopFlag) -> Noise:
        """How far the first replica's answers to so many of the first rows are from the truth."""
        (answer,) = self._probe(run_events.ProbeAsked(messages.FindNoise(rows)), stop)
        assert isinstance(answer, Noise)
        return answer

    def _probe(self, asked: run_events.ProbeAsked, stop: StopFlag) -> list[messages.ProbeAnswer]:
        """Wait for the answers to a probe. If a replica dies, or the time is over, the engine is closed."""
        try:
            self._handle(asked)
            self._pump_until(lambda: self._state.answers is not None, stop)
        except BaseException:
            self.close()
            raise
        assert self._state.answers is not None
        return self._state.answers

    @property
    def is_up(self) -> bool:
        """Whether it has a replica that could run."""
        return bool(self._replicas)

    def run(self, spans: Iterable[Span], *, is_ordered: bool = True) -> Iterator[Result]:
        assert self._job is not None
        most = len(spans) if isinstance(spans, Sequence) else self._placement.replicas
        ahead = None if self._job.source.traits.is_resumable else 1
        self._leaving.clear()
        self._handle(run_events.RunBegan(spans, self._depth(), most, ahead, is_ordered))
        while not self._state.is_finished:
            yield from self._next_results()
        self._state.check()

    def run_fed(self, feed: SpanFeed) -> Generator[Result | NotYet]:
        """The results of spans that are added while it runs, as they are finished; ends when the feed does.

        The caller must close this generator: left to garbage collection, it would close its pipe twice, and the second
        time the descriptor may belong to another file. `NOT_YET` means that the results of all spans that were added
        have left.
        """
        self._leaving.clear()
        with self._woken_by(feed):
            self._handle(run_events.RunBegan(feed, self._depth(), self._placement.replicas, is_ordered=False))
            while not self._state.is_finished:
                for result in self._next_results():
                    feed.finish(result.span)
                    yield result
                if feed.take_news(self._state.drop):
                    self._handle(run_events.SpansArrived())
                if self._state.is_idle:
                    yield NOT_YET
        self._state.check()

    @contextlib.contextmanager
    def _woken_by(self, feed: SpanFeed) -> Iterator[None]:
        """Have `_pump` wait for news of a feed, too."""
        self._news, sender = multiprocessing.connection.Pipe(duplex=False)
        feed.wake_with(lambda: sender.send_bytes(b"news"))
        try:
            yield
        finally:
            feed.wake_with(None)
            self._news.close()
            sender.close()
            self._news = None

    def _next_results(self) -> Iterator[Result]:
        """Wait for something to happen, and give the results that there are then."""
        assert self._job is not None
        if self._stop.is_raised:
            self._handle(run_events.StopRequested())
        self._pump()
        while self._leaving:
            result = self._leaving.popleft()
            yield result
            self._job.source.release(result.span)

    def close(self) -> None:
        if self._feed is not None:
            self._feed.pool.close()
            self._feed = None
        for handle in self._replicas.values():
            handle.close()
        self._replicas.clear()
        self._launch.close()

    def loaders(self) -> str | None:
        """How many loader processes there were, in words; None where threads of the replicas read."""
        if self._feed is None or not self._placement.has_loader_processes:
            return None
        count, policy = self._feed.pool.count, self._state.loader_count
        return str(count) if policy is None else policy.describe(count)

    def shortages(self) -> Mapping[Shortage, int]:
        """How the devices ran out of memory and went on, and how often."""
        return self._state.shortages

    def _loader_feed(self) -> LoaderFeed:
        if self._feed is None:
            self._feed = LoaderFeed(
                self._launch, lambda message: self._handle(run_events.BatchLoaded(message)), self._timeouts
            )
        return self._feed

    def _depth(self) -> int:
        """How many spans a replica holds: enough for every loader that reads for it, and the batches in flight."""
        placement = self._placement
        if not placement.has_loader_processes:
            return placement.loaders + 1
        return -(-3 * placement.most_loaders // (2 * placement.replicas)) + placement.lanes + 1

    def _pump_until(self, is_there: Callable[[], bool], stop: StopFlag) -> None:
        while not is_there():
            stop.check()
            self._pump()

    def _pump(self) -> None:
        """Wait for something to happen, and deal with it."""
        replicas: dict[Any, ReplicaHandle] = {sign: each for each in self._replicas.values() for sign in each.signs}
        loaders = self._feed.pool.signs if self._feed is not None else {}
        news = [self._news] if self._news is not None else []
        ready = multiprocessing.connection.wait([*replicas, *loaders, *news], timeout=_POLL_S)
        if self._news is not None and self._news in ready:
            self._news.recv_bytes()
        for number in {loaders[sign] for sign in ready if sign in loaders}:
            assert self._feed is not None
            self._feed.pool.handle(number)
        for handle in {replicas[sign] for sign in ready if sign in replicas}:
            if handle.number in self._replicas:
                try:
                    message = handle.receive()
                except (EOFError, OSError):
                    self._handle(run_events.ReplicaDied(handle.number, self._end_of(handle)))
                else:
                    self._hear(handle, message)
        now = time.monotonic()
        if now - self._ticked_at >= _TICK_S:
            self._ticked_at = now
            self._handle(self._tick(now))

    def _tick(self, now: float) -> run_events.Tick:
        signs = {number: handle.progress for number, handle in self._replicas.items()}
        waiting = frozenset(number for number, handle in self._replicas.items() if handle.is_between_rows)
        stopped = frozenset(number for number, handle in self._replicas.items() if handle.is_stopped)
        if self._feed is None:
            return run_events.Tick(now, signs=signs, waiting=waiting, stopped=stopped)
        pool = self._feed.pool
        pool.check_time(now)
        return run_events.Tick(now, pool.busy_s, pool.wait_s, pool.has_newcomers, signs, waiting, stopped)

    def _hear(self, handle: ReplicaHandle, message: Any) -> None:
        match message:
            case messages.Chunk():
                handle.assembly.add(message)
                handle.send(messages.Release(message.slot))
            case messages.SpanDone(span=index, timings=timings):
                result = handle.assembly.finish(self._state.span_of(handle.number, index), message)
                if self._feed is not None:
                    self._feed.finish(index, timings)
                self._observe(handle.number, handle.device, timings)
                self._handle(run_events.SpanFinished(handle.number, result, timings))
            case messages.Failed():
                self._handle(run_events.ReplicaDied(handle.number, self._end_of(handle, message), message))
            case _:
                if isinstance(message, (messages.Loaded, messages.Prepared)):
                    self._observe(handle.number, handle.device, Timings(marks=[*message.marks]))
                self._handle(run_events.ReplicaSaid(handle.number, message))

    def _end_of(self, handle: ReplicaHandle, failed: messages.Failed | None = None) -> ReplicaEnd:
        """How and why a replica ended: its process is over, or it reported that it cannot go on."""
        notice = handle.board.read()
        if failed is not None:
            line = failed.last_line
            return ReplicaEnd(handle.pid, f"gave up with {line}", None, line, notice, oom_kills())
        how, words = handle.describe_end(), "\n".join(self._launch.last_lines())
        return ReplicaEnd(
            handle.pid, how, handle.exit_code, words, notice, oom_kills(), handle.hung_s, handle.was_stopped
        )

    def _handle(self, event: run_events.Event) -> None:
        for command in self._state.handle(event):
            self._carry_out(command)

    def _carry_out(self, command: run_events.Command) -> None:
        match command:
            case run_events.Send(replica=replica, message=message):
                if isinstance(message, messages.Prepare) and self._placement.has_loader_processes:
                    message = self._loader_feed().with_first_batch(message)
                self._replicas[replica].send(message)
            case run_events.Yield(result=result):
                self._leaving.append(result)
            case run_events.StartReplica(replica=replica, device=device):
                self._replicas[replica] = ReplicaHandle(replica, self._launch, device)
            case run_events.EndHung(replica=replica, seconds=seconds):
                self._replicas[replica].end_hung(seconds)
            case run_events.CloseReplica(replica=replica):
                self._replicas.pop(replica).close()
            case run_events.Report(line=line, is_shown=is_shown):
                self._launch.note(line)
                if is_shown:
                    self._show(line)
            case run_events.Raise(error=error):
                raise error
            case _:
                self._carry_out_loading(command)

    def _carry_out_loading(self, command: run_events.Command) -> None:
        pool = self._loader_feed().pool
        match command:
            case run_events.ReadSpan(span=span):
                pool.submit(span)
            case run_events.FreeSlot(slot=slot):
                pool.release(slot)
            case run_events.WithdrawSpans():
                self._handle(run_events.SpansWithdrawn(tuple(span.index for span in pool.withdraw())))
            case run_events.ResizeLoaders(count=count):
                pool.resize(count)
