"""The driver of a run on a cluster: one loop that turns answers of nodes into events, and commands into calls.

`ClusterState` decides. The driver owns the output: it alone commits parts, and only what a living attempt delivered.
"""

import functools
import queue
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import IO, Any, Protocol

from penstock.cluster.node import Beat
from penstock.cluster.node_job import NodeJob
from penstock.cluster.preflight import Comparison, Findings
from penstock.cluster.shipping import Shipping
from penstock.cluster.transport import NodeGone, Transport
from penstock.core.figures import counted
from penstock.core.protocols import ShowLine
from penstock.core.stopping import StopFlag
from penstock.core.tracing import moved
from penstock.engines import cluster_events
from penstock.engines.cluster_state import ClusterState
from penstock.errors import PenstockError, one_line
from penstock.jobs.decide import Resumed
from penstock.jobs.settled import Settled
from penstock.storage.ledger import NotAsWritten
from penstock.storage.part_builder import StagedPart
from penstock.telemetry.meter import Meter

_TICK_S = 1.0
_BEATS_PER_S = 200
_POLL_S = 0.2
_LAST_BEATS_S = 2.0
_MOST_REPLICAS = 1 << 16
"""The most replicas of one node: one number identifies a replica among those of all nodes."""


class Desk(Protocol):
    """What the driver does at the output, in the order of the run."""

    def settle(self, kind: str, settled: Settled) -> None:
        """Put the recipe of a kind of node into the manifest, and make the manifest with the first.

        Raises:
            PenstockError: The kind does not fit the others.
        """
        ...

    def begin(self) -> None:
        """A node is ready: rows are predicted from now on. Called for every node."""
        ...

    def commit(self, parts: Sequence[StagedPart]) -> Sequence[bool | NotAsWritten]:
        """Commit parts by one append to the journal; returns what became of each, as `Ledger.commit_delivered`."""
        ...

    def discard(self, attempt: str) -> None:
        """Remove what an attempt wrote."""
        ...


@dataclass(frozen=True)
class Surroundings:
    """What a driver runs with: the log, the stop flag, where lines are shown, and the meter."""

    log: IO[Any]
    stop: StopFlag
    show: ShowLine
    meter: Meter


class Driver:
    """One run on a cluster.

    Args:
        transport: The cluster.
        state: Decides.
        job: What nodes are started with.
        desk: The output.
        around: Log, stop flag, display and meter.
        run: The name of this run.
        parcels: What is sent to nodes that do not have it: files and folders by digest.
        resumed: Where files are appended, what the manifest fixes for nodes that settle, by kind; "" is for other
            kinds.
    """

    def __init__(
        self,
        transport: Transport,
        state: ClusterState,
        job: NodeJob,
        desk: Desk,
        around: Surroundings,
        *,
        run: str,
        resumed: Mapping[str, Resumed] | None = None,
        parcels: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self._transport = transport
        self._state = state
        self._job = transport.share(job)
        self._desk = desk
        self._around = around
        self._run = run
        self._resumed = resumed or {}
        self._comparison = Comparison()
        self._shipping = Shipping(self._call, transport.share, parcels or {})
        self._asked: dict[int, str] = {}
        """The nodes that settle their kinds."""
        self._settled: dict[int, tuple[str, Settled]] = {}
        """The answers of those that have settled."""
        self._answers: queue.SimpleQueue[tuple[int, Future[Any], Callable[[Any], None]]] = queue.SimpleQueue()
        self._events: deque[cluster_events.Event] = deque()
        self._staged: list[cluster_events.Commit] = []
        self._names: dict[int, str] = {}
        self._kinds: dict[int, str] = {}
        self._beating: set[int] = set()
        """The nodes that have not answered their last beat."""
        self.beats: dict[str, Beat] = {}
        """The last report of each machine on its plan, its loaders and its memory."""
        self._late_s: dict[int, float] = {}
        """By node, how far this machine's clock is ahead of the node's clock, at most."""
        self._ticked_at = float("-inf")
        self._beat_at = float("-inf")

    def run(self) -> None:
        """Build every piece, or what a stop allows.

        Raises:
            PenstockError: The error that the job ends with. What is committed stays.
        """
        is_told = False
        try:
            while not self._state.is_finished:
                if self._around.stop.is_raised and not is_told:
                    is_told = True  # only once: while there are events, `_hear` takes no answer
                    self._events.append(cluster_events.StopRequested())
                self._look()
                self._hear()
                self._handle_all()
            self._state.check()
            self._hear_the_last()
        finally:
            self._transport.close()

    def _look(self) -> None:
        """See which machines there are, and whether their nodes live."""
        now = time.monotonic()
        if now - self._ticked_at < _TICK_S:
            return
        self._ticked_at = now
        there = self._transport.names()
        self._events.extend(map(cluster_events.NodeJoined, there))
        for node in self._names:
            if not self._transport.is_there(node):
                self._events.append(cluster_events.NodeLost(node, "left the cluster", is_gone=True))
        if now - self._beat_at >= max(_TICK_S, len(self._names) / _BEATS_PER_S):
            self._beat_at = now
            for node in self._names.keys() - self._beating:
                self._beating.add(node)
                self._call(node, "beat", then=functools.partial(self._note_beat, node))
        self._events.append(cluster_events.Tick(now))

    def _hear(self) -> None:
        """Wait for an answer, and take all that are there."""
        if self._events:
            return
        try:
            node, future, then = self._answers.get(timeout=_POLL_S)
            while True:
                self._take(node, future, then)
                node, future, then = self._answers.get_nowait()
        except queue.Empty:
            return

    def _take(self, node: int, future: Future[Any], then: Callable[[Any], None]) -> None:
        if node not in self._names:
            # The node was given up. A part that it staged is gone: its folder was removed with the attempt.
            return
        try:
            answer = future.result()
        except PenstockError as error:
            self._events.append(cluster_events.NodeFailed(node, error))
        except NodeGone as error:
            has_left = error.has_left or not self._transport.is_there(node)
            self._events.append(cluster_events.NodeLost(node, str(error), has_left))
        except Exception as error:
            self._events.append(cluster_events.NodeLost(node, f"failed: {one_line(error)}"))
        else:
            then(answer)

    def _call(self, node: int, method: str, *arguments: Any, then: Callable[[Any], None] = lambda answer: None) -> None:
        future = self._transport.call(node, method, *arguments)
        future.add_done_callback(lambda done: self._answers.put((node, done, then)))

    def _handle_all(self) -> None:
        """Handle what is there, and what follows from it. Parts that were staged meanwhile are committed together."""
        while self._events or self._staged:
            while self._events:
                for command in self._state.handle(self._events.popleft()):
                    self._carry_out(command)
            self._commit_staged()

    def _carry_out(self, command: cluster_events.Command) -> None:
        match command:
            case cluster_events.Build(node=node, attempt=attempt, piece=piece):
                self._call(node, "build", attempt, piece, then=lambda staged: self._note_built(node, attempt, staged))
            case cluster_events.Commit(node=node, staged=staged):
                record = replace(staged.record, kind=self._kinds[node], node=self._names[node])
                self._staged.append(replace(command, staged=replace(staged, record=record)))
            case cluster_events.Discard(attempt=attempt):
                self._desk.discard(attempt)
            case cluster_events.Withdraw(node=node, attempt=attempt):
                self._call(node, "withdraw", attempt)
            case cluster_events.StopNode(node=node):
                self._call(node, "stop", self._around.stop.signal_number)
            case cluster_events.EndNode(node=node):
                self._names.pop(node, None)
                self._beating.discard(node)
                self._settled.pop(node, None)
                if self._asked.pop(node, None) is not None:
                    self._settle_all()
                self._shipping.lose(node)
                self._around.meter.lose(range(node * _MOST_REPLICAS, (node + 1) * _MOST_REPLICAS))
                self._transport.kill(node)
            case cluster_events.Report(line=line, is_shown=is_shown):
                self._note(line, is_shown=is_shown)
            case cluster_events.Raise(error=error):
                self._commit_staged()
                raise error
            case _:
                self._carry_out_start(command)

    def _carry_out_start(self, command: cluster_events.Command) -> None:
        match command:
            case cluster_events.StartNode(node=node, name=name):
                self._names[node] = name
                self._transport.start(node, name)
                self._call(node, "look", then=lambda versions: self._check(node, versions))
            case cluster_events.Settle(node=node, kind=kind):
                resumed = self._resumed.get(kind) or self._resumed.get("")
                self._asked[node] = kind
                self._call(node, "settle", self._job, resumed, then=lambda it: self._note_settled(node, kind, it))
            case cluster_events.Open(node=node, kind=kind):
                self._shipping.send_step(node, kind, lambda: self._open(node, kind))

    def _check(self, node: int, versions: dict[str, str]) -> None:
        misfits = self._comparison.misfits(versions)
        if misfits:
            self._events.append(cluster_events.NodeUnfit(node, misfits))
        else:
            self._ask(node)

    def _ask(self, node: int) -> None:
        self._call(node, "check", self._job, then=lambda findings: self._note_findings(node, findings))

    def _note_findings(self, node: int, findings: Findings) -> None:
        misfits = (*findings.misfits, *self._comparison.misfits(findings.versions))
        lacking = [misfit.parcel for misfit in misfits]
        if misfits and self._shipping.send(node, lacking, lambda: self._ask(node)):
            self._note(f"node {self._names[node]} gets {counted(len(lacking), 'parcel')}: what it does not have")
            return
        if not findings.kind or misfits:
            self._events.append(cluster_events.NodeUnfit(node, misfits))
            return
        self._kinds[node] = findings.kind
        self._note(f"node {self._names[node]} is up: {findings.kind}")
        self._events.append(cluster_events.NodeUp(node, findings.kind))

    def _settle_all(self) -> None:
        """Settle the kinds once all nodes that were asked have answered: the largest spans come first, and are for all.

        A device that takes large batches would be idle with the spans of a kind that takes small ones.
        """
        if self._asked.keys() - self._settled.keys():
            return
        answers, self._settled = self._settled, {}
        self._asked.clear()
        for node, (kind, settled) in sorted(answers.items(), key=lambda each: -each[1][1].division[0]):
            self._settle(node, kind, settled)

    def _note_settled(self, node: int, kind: str, settled: Settled) -> None:
        self._settled[node] = (kind, settled)
        self._settle_all()

    def _settle(self, node: int, kind: str, settled: Settled) -> None:
        try:
            self._desk.settle(kind, settled)
        except PenstockError as error:
            self._events.append(cluster_events.NodeFailed(node, error))
        else:
            self._shipping.note_settled(kind, node)
            self._events.append(cluster_events.KindSettled(node, kind))

    def _open(self, node: int, kind: str) -> None:
        self._call(node, "open", self._job, self._run, kind, then=lambda _: self._note_ready(node))

    def _note_ready(self, node: int) -> None:
        self._desk.begin()
        self._events.append(cluster_events.NodeReady(node))

    def _note_built(self, node: int, attempt: str, staged: StagedPart | None) -> None:
        if staged is None:
            self._events.append(cluster_events.PieceGivenBack(node, attempt))
        else:
            self._events.append(cluster_events.PieceStaged(node, attempt, staged))

    def _commit_staged(self) -> None:
        staged, self._staged = self._staged, []
        if not staged:
            return
        for command, outcome in zip(staged, self._desk.commit([each.staged for each in staged]), strict=True):
            if isinstance(outcome, NotAsWritten):
                self._events.append(cluster_events.PieceFailed(command.node, command.attempt, outcome))
            else:
                self._events.append(cluster_events.PieceCommitted(command.attempt, outcome))

    def _hear_the_last(self) -> None:
        """Ask the nodes what happened since their last beat, and wait a moment for that."""
        for node in self._names.keys() - self._beating:
            self._beating.add(node)
            self._call(node, "beat", then=functools.partial(self._note_beat, node))
        until = time.monotonic() + _LAST_BEATS_S
        while self._beating & self._names.keys() and time.monotonic() < until:
            self._events.clear()
            self._hear()

    def _note_beat(self, node: int, beat: Beat) -> None:
        self._beating.discard(node)
        self._events.append(cluster_events.NodeBeat(node, beat.rows))
        self.beats[self._names[node]] = replace(beat, rows={}, timings=(), lines=(), log=b"")
        # The beat that took the shortest time gives the best estimate of the difference between the clocks.
        late_s = self._late_s[node] = min(self._late_s.get(node, float("inf")), time.perf_counter() - beat.clock)
        for replica, device, timings in beat.timings:
            if timings.marks:
                marks = moved(timings.marks, late_s, node * _MOST_REPLICAS, self._names[node])
                timings = replace(timings, marks=marks)
            self._around.meter.observe(node * _MOST_REPLICAS + replica, device, timings)
        for line in beat.lines:
            self._around.show(f"{self._names[node]}: {line}")
        if beat.log:
            self._around.log.write(beat.log)

    def _note(self, line: str, *, is_shown: bool = False) -> None:
        self._around.log.write(f"penstock: {line}\n".encode())
        if is_shown:
            self._around.show(line)
