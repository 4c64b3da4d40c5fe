"""The embedded engine: a model that lives in this process already runs here, on all its devices, with threads.

Its framework may hold the GPU, and then no other process can use it. There is nothing to start, so a small array is
answered as fast as `model.predict` answers it.
"""

import itertools
import queue
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.core.job import Job
from penstock.core.messages import NOTHING_ASKED, Asked, Prepared, Work
from penstock.core.preprocessing import Preprocess
from penstock.core.protocols import Observe, Replica, ShowLine, TakesAnySize, show_nothing
from penstock.core.records import UNWATCHED, Placement, Result, Shortage, Signature, Span, TensorSpec, Timings
from penstock.core.state import NONE
from penstock.core.stopping import StopFlag
from penstock.engines import run_events
from penstock.engines.run_state import RunState
from penstock.pool.guard.guarded import GuardedReplica
from penstock.pool.guard.keeping import Keeper
from penstock.pool.guard.warmup import first_that_runs
from penstock.pool.loading import load_batches
from penstock.pool.pipeline import Pipeline

_Message = tuple[int, Result, Timings] | BaseException


class EmbeddedEngine:
    """Replicas as threads of this process, one set for each device.

    Args:
        replicas: The live model, once for each device.
        placement: The devices, and the threads for each.
        observe: Takes the replica's number, its device and its timings of every finished span.
        stop: Begin no more spans once it is raised.
        show: Shows a line to the user, when a device runs out of memory and the run goes on with less.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        placement: Placement,
        observe: Observe,
        stop: StopFlag,
        show: ShowLine = show_nothing,
    ) -> None:
        self._show = show
        self._shortages: Counter[Shortage] = Counter()
        self._replicas = [
            GuardedReplica(replica, str(device), self._run_short)
            for replica, device in zip(replicas, placement.devices, strict=True)
        ]
        self._keepers = [Keeper(replica) for replica in replicas]
        self._placement = placement
        self._observe = observe
        self._job: Job | None = None
        self._stop = stop
        self._pipelines: list[Pipeline] = []
        self._follows: Mapping[str, str] = {}
        self._outputs: tuple[TensorSpec, ...] = ()

    def load(self) -> Signature:
        return self._replicas[0].signature

    def learn(self, source: Any, preprocess: Preprocess, sample: Span) -> Preprocess:
        """What the user's function gives. It runs here, because there is no other process."""
        return preprocess.learn(list(source.read(sample, tuple(preprocess.takes))), UNWATCHED)

    def prepare(self, job: Job, placement: Placement, sample: Span, asked: Asked = NOTHING_ASKED) -> Prepared:
        """As in every engine. A live model runs in its own framework: there are no answers to compare."""
        self.take(job)
        self._placement = placement
        self._stop.check()
        if job.fewest_rows is not None:
            for guarded in self._replicas:
                if isinstance(guarded.replica, TakesAnySize):
                    guarded.replica.take_any_size()
        batches = load_batches(job, sample)
        batch = next(batches)
        state = self._keepers[0].look(batch)
        if state.kind != NONE and job.state == NONE:
            return Prepared((), 0.0, state=state)
        _, prepared = first_that_runs(self._replicas[0], itertools.chain([batch], batches), sample, job, asked)
        state = state if state.kind != NONE else prepared.state
        if state.kind != NONE and job.state == NONE:
            return Prepared((), 0.0, state=state)
        self._keepers[0].restore()
        self._follows, self._outputs = prepared.follows, prepared.outputs
        return replace(prepared, state=state)

    def take(self, job: Job) -> None:
        """Take the job without a warm-up: a call for arrays in memory needs no schema beforehand."""
        self._job = job
        for replica, keeper in zip(self._replicas, self._keepers, strict=True):
            replica.take(job)
            keeper.hold(job)

    def run(self, spans: Iterable[Span], *, is_ordered: bool = True) -> Iterator[Result]:
        assert self._job is not None
        source = self._job.source
        done: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        placement = self._placement
        state = RunState(placement)
        depth, ahead = placement.loaders + placement.lanes, None if source.traits.is_resumable else 1
        try:
            for number, replica in enumerate(self._replicas[: placement.replicas]):
                self._pipelines.append(self._pipeline(number, replica, done))
                state.handle(run_events.DeviceJoined(placement.devices[number]))
                state.handle(run_events.ReplicaSaid(number, Prepared((), 0.0)))
            self._carry_out(state.handle(run_events.RunBegan(spans, depth, placement.replicas, ahead, is_ordered)))
            while not state.is_finished:
                if self._stop.is_raised:
                    state.handle(run_events.StopRequested())  # what is held is finished; nothing is taken back
                message = done.get()
                if isinstance(message, BaseException):
                    raise message
                number, result, timings = message
                self._observe(number, placement.devices[number], timings)
                for leaving in self._carry_out(state.handle(run_events.SpanFinished(number, result, timings))):
                    yield leaving
                    source.release(leaving.span)
            state.check()
        finally:
            self._end_pipelines()

    def _carry_out(self, commands: list[run_events.Command]) -> list[Result]:
        """Hand spans to their pipelines; returns the results whose turn has come."""
        for command in commands:
            if isinstance(command, run_events.Send) and isinstance(command.message, Work):
                self._pipelines[command.replica].add(command.message.span)
        return [command.result for command in commands if isinstance(command, run_events.Yield)]

    def loaders(self) -> str | None:
        return None

    def shortages(self) -> Mapping[Shortage, int]:
        """How the devices ran out of memory and went on, and how often."""
        return self._shortages

    def _run_short(self, shortage: Shortage, ceilings: Mapping[int, int]) -> None:
        """Called by the lanes. The replica keeps its ceilings itself, because it does not die."""
        self._shortages[shortage] += 1
        if self._shortages[shortage] == 1:
            self._show(str(shortage))

    def close(self) -> None:
        self._end_pipelines()
        if self._job is not None:
            for keeper in self._keepers:
                keeper.let_go(self._job)

    def _pipeline(self, number: int, replica: GuardedReplica, done: queue.SimpleQueue[_Message]) -> Pipeline:
        assert self._job is not None
        return Pipeline(
            replica,
            self._job,
            lambda result, timings: done.put((number, result, timings)),
            done.put,
            loaders=self._placement.loaders,
            lanes=self._placement.lanes,
            follows=self._follows,
            outputs=self._outputs,
        )

    def _end_pipelines(self) -> None:
        while self._pipelines:
            self._pipelines.pop().close()
