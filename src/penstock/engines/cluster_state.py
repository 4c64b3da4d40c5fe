"""All decisions of a run on a cluster, without a cluster or a clock: `ClusterState.handle(event)` returns commands.

The driver turns what it hears into events and carries out the commands. `PieceAttempts` decides which node builds which
piece; this class decides which nodes there are, and what the end of a node means for its machine and its pieces.

Invariants:
- every piece is committed once, or the run raises, or it was stopped: what a node says of an attempt that does not live
  any more leads to `Discard` and nothing else;
- nothing is settled or opened before every node of the first look has answered (or `_PATIENCE_S` have passed); where
  one of them does not fit, the run raises: one table of all that does not fit, before any work;
- a kind is settled by one node at a time, and no node of it is opened before;
- after a stop nothing new is handed out, and nothing is started.
"""

import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.core.figures import counted
from penstock.core.node_kinds import Misfit, misfits_told
from penstock.core.stillness import DEFAULT_TIMEOUTS, Stillness, Timeouts
from penstock.engines import cluster_events
from penstock.engines.piece_attempts import ANY_KIND, Attempt, PieceAttempts, WantedPiece
from penstock.errors import DeviceError, InputError, OutputError, PenstockError, WorkersDied
from penstock.storage.part_builder import PartPiece

DEATHS_IN_A_ROW = 3
_MOST_FAILURES = 3
_MOST_INPUT_ERRORS = 2
"""One node may lack the disk with the input; if two cannot read it, the input itself is wrong."""
_PATIENCE_S = 60.0
"""How long the first nodes that are up wait for the others, whose machines another job may hold."""
_SILENT_S = 20.0
_OF_A_NODE = (OutputError, DeviceError, WorkersDied, InputError)
"""The errors that another node may not have."""


class _Phase(enum.Enum):
    STARTING = enum.auto()
    UP = enum.auto()
    """It fits; others of the first nodes have not answered yet."""
    WAITING = enum.auto()
    """For another node of its kind, which settles it."""
    SETTLING = enum.auto()
    OPENING = enum.auto()
    READY = enum.auto()


@dataclass
class _Node:
    """One life of a machine's process."""

    name: str
    phase: _Phase = _Phase.STARTING
    kind: str = ANY_KIND
    beats: int = 0
    moves: int = 0
    """How many beats showed progress."""
    is_quiet: bool = False
    """It has work, and has not answered for a while."""


class ClusterState:
    """The state of a run on a cluster, and the next commands for the driver.

    Args:
        pieces: What is to be built by any kind of node; pulled when the first node is ready.
        pinned: What is to be built again by the kind of node that built it before.
        rows_of: How many rows a piece has.
        run: A name of this run that no other has.
        settled: The kinds that the manifest has a recipe for.
        most_nodes: How many nodes to use at once; None for all.
        timeouts: How long a node may be silent while it has work, and how long it may take to start. A run without a
            node waits for one as long as a node may take to start.
    """

    def __init__(
        self,
        pieces: Iterable[PartPiece],
        rows_of: Callable[[PartPiece], int],
        run: str,
        *,
        pinned: Mapping[str, Sequence[PartPiece]] | None = None,
        settled: Collection[str] = (),
        most_nodes: int | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self._pinned = pinned or {}
        self._attempts = PieceAttempts(pieces, self._pinned, rows_of, run)
        self._settled = set(settled)
        self._most_nodes = most_nodes
        self._nodes: dict[int, _Node] = {}
        self._names: set[str] = set()
        """The names of the machines that have a node."""
        self._settling: set[str] = set()
        self._next_number = 0
        self._spare: dict[str, None] = {}
        """The machines that are not used, as there are enough others, in the order in which they came."""
        self._left_out: set[str] = set()
        self._is_checking = True
        self._checking_s = self._silent_s = 0.0
        self._misfits: dict[str, tuple[Misfit, ...]] = {}
        """What does not fit, by machine, until work begins."""
        self._deaths: dict[str, int] = {}
        self._last_error: PenstockError | None = None
        """The error of the node that was left out last."""
        self._last_end = ""
        """How the node that was lost last ended, in words."""
        self._input_errors = 0
        self._is_stopping = False
        self._now: float | None = None
        self._stuck_s = 0.0
        self._start_s = timeouts.start_s
        self._hang_s = timeouts.hang_s
        self._in_contact = Stillness(timeouts.hang_s, times=0)
        self._answering = Stillness(_SILENT_S, times=0)
        self._at_work = Stillness(timeouts.start_s)
        self._at_start = Stillness(timeouts.start_s, times=0)
        self._in_contact_at_start = Stillness(max(timeouts.hang_s, _PATIENCE_S), times=0)
        self._commands: list[cluster_events.Command] = []

    @property
    def is_finished(self) -> bool:
        """Every piece was committed, or the run was stopped and nothing is built any more."""
        return self._attempts.is_finished

    def check(self) -> None:
        """Raise the error that ended the pieces. Call it when everything before the error is done."""
        self._attempts.check()

    def name_of(self, node: int) -> str:
        return self._nodes[node].name

    def handle(self, event: cluster_events.Event) -> list[cluster_events.Command]:
        """Take an event; returns what is to be done about it, in order."""
        commands: list[cluster_events.Command] = []
        self._commands = commands
        match event:
            case cluster_events.NodeJoined(name=name):
                self._join(name)
            case cluster_events.StopRequested():
                self._stop()
            case cluster_events.Tick(now=now):
                self._tick(now)
            case cluster_events.PieceStaged(attempt=name):
                self._commit(event)
            case cluster_events.PieceCommitted(attempt=name):
                self._committed(name)
            case cluster_events.PieceGivenBack(attempt=name):
                if (attempt := self._attempts.alive(name)) is not None:
                    self._do(*self._attempts.give_back(attempt))
            case cluster_events.PieceFailed(attempt=name, error=error):
                if (attempt := self._attempts.alive(name)) is not None:
                    self._fail_piece(attempt, error)
            case _:
                self._hear(event)
        self._begin_if_checked()
        return commands

    def _hear(self, event: cluster_events.Event) -> None:
        """Take an event of one life of a node. Events after its end are ignored."""
        match event:
            case cluster_events.NodeUp(node=number, kind=kind) if number in self._nodes:
                self._nodes[number].kind = kind
                self._nodes[number].phase = _Phase.UP
                if not self._is_checking:
                    self._go_on(number)
            case cluster_events.KindSettled(kind=kind):
                self._settled.add(kind)
                self._settling.discard(kind)
                for number, node in self._nodes.items():
                    if node.kind == kind and node.phase in (_Phase.SETTLING, _Phase.WAITING):
                        self._go_on(number)
            case cluster_events.NodeReady(node=number) if number in self._nodes:
                self._nodes[number].phase = _Phase.READY
                self._do(*self._attempts.join(number, self._nodes[number].kind))
            case cluster_events.NodeBeat(node=number, rows=rows) if number in self._nodes:
                self._nodes[number].beats += 1
                self._nodes[number].moves += self._attempts.note_progress(number, rows)
            case cluster_events.NodeUnfit(node=number, misfits=misfits) if number in self._nodes:
                why = "; ".join(map(str, misfits))
                self._leave_out(number, why, misfits_told({self.name_of(number): misfits}, 1), misfits)
            case cluster_events.NodeLost(node=number) if number in self._nodes:
                self._lose(event)
            case cluster_events.NodeFailed(node=number, error=error) if number in self._nodes:
                self._fail_node(number, error)

    def _do(self, *commands: cluster_events.Command) -> None:
        self._commands.extend(commands)

    def _report(self, line: str, *, is_shown: bool = False) -> None:
        self._do(cluster_events.Report(line, is_shown))

    # Nodes come.
    def _join(self, name: str) -> None:
        if name not in self._names and name not in self._left_out:
            self._spare[name] = None
            self._start_spare()

    def _start_spare(self) -> None:
        while self._spare and not self._is_stopping and len(self._nodes) < (self._most_nodes or len(self._nodes) + 1):
            name = next(iter(self._spare))
            del self._spare[name]
            self._nodes[self._next_number] = _Node(name)
            self._names.add(name)
            self._do(cluster_events.StartNode(self._next_number, name))
            self._next_number += 1

    def _go_on(self, number: int) -> None:
        """The next step of a node whose kind is known: settle the kind, wait until another has, or open."""
        node = self._nodes[number]
        if node.kind in self._settled:
            node.phase = _Phase.OPENING
            self._do(cluster_events.Open(number, node.kind))
        elif node.kind in self._settling:
            node.phase = _Phase.WAITING
        else:
            node.phase = _Phase.SETTLING
            self._settling.add(node.kind)
            self._do(cluster_events.Settle(number, node.kind))

    def _begin_if_checked(self) -> None:
        """Begin with the first nodes, once all have answered. Where one does not fit, nothing is begun."""
        waiting = [node for node in self._nodes.values() if node.phase is _Phase.STARTING]
        is_up = len(waiting) < len(self._nodes)
        if not self._is_checking or self._is_stopping or not (is_up or self._misfits):
            return
        if waiting and self._checking_s < _PATIENCE_S:
            return
        self._is_checking = False
        if self._misfits:
            self._do(cluster_events.Raise(misfits_told(self._misfits, len(self._misfits) + len(self._nodes))))
            return
        for number, node in self._nodes.items():
            if node.phase is _Phase.UP:
                self._go_on(number)

    # Nodes go.
    def _lose(self, lost: cluster_events.NodeLost) -> None:
        number, name = lost.node, self.name_of(lost.node)
        self._last_end = f"; the last one, {name}, {lost.how}"
        attempts = self._attempts.of_node(number)
        deaths = self._deaths[name] = self._deaths.get(name, 0) + 1
        if attempts and not lost.is_gone:
            # The piece that is being built; those after it have hardly begun.
            guilty = attempts[0].wanted
            guilty.died_on.append(name)
            # If all of them died on one machine, that machine may be the cause.
            if len(guilty.died_on) >= DEATHS_IN_A_ROW and len(set(guilty.died_on)) > 1:
                self._do(cluster_events.Raise(_deadly(guilty, lost.how)))
                return
        if deaths >= DEATHS_IN_A_ROW and not lost.is_gone:
            why = f"it died {deaths} times without finishing a piece; the last time it {lost.how}"
            error = WorkersDied("the nodes of the cluster kept dying", received=f"{name}: {why}")
            self._leave_out(number, why, error)
            return
        pieces = f"{counted(len(attempts), 'piece')} {'is' if len(attempts) == 1 else 'are'}"
        self._report(f"node {name} {lost.how}; {pieces} given out again", is_shown=True)
        self._drop(number)
        if not lost.is_gone:
            self._spare = {name: None, **self._spare}
        self._start_spare()

    def _fail_node(self, number: int, error: PenstockError) -> None:
        self._input_errors += isinstance(error, InputError)
        said = "; ".join(filter(None, (error.problem, error.received)))
        error = _on(self.name_of(number), error)
        if not isinstance(error, _OF_A_NODE) or self._input_errors >= _MOST_INPUT_ERRORS:
            self._do(cluster_events.Raise(error))
        else:
            self._leave_out(number, said, error)

    def _leave_out(self, number: int, why: str, error: PenstockError, misfits: tuple[Misfit, ...] = ()) -> None:
        """Go on without a machine, as long as there are others; before work begins, note why it does not fit."""
        name = self.name_of(number)
        self._left_out.add(name)
        if self._is_checking:
            self._misfits[name] = misfits or (Misfit("node", why, "one that starts", type(error)),)
            self._drop(number)
            return
        self._last_error = error
        self._drop(number)
        self._start_spare()
        is_last = not self._nodes and not self._is_stopping and not self.is_finished
        self._report(f"node {name} is left out: {why}", is_shown=not is_last)  # the error that is raised says it, too
        if is_last:
            self._do(cluster_events.Raise(error))

    def _drop(self, number: int) -> None:
        node = self._nodes.pop(number)
        self._names.discard(node.name)
        attempts = self._attempts.of_node(number)
        self._do(cluster_events.EndNode(number))
        self._do(*(cluster_events.Discard(number, attempt.name) for attempt in attempts))
        self._do(*self._attempts.lose(number))
        if node.phase is _Phase.SETTLING:
            self._settling.discard(node.kind)
            waiting = [n for n, each in self._nodes.items() if each.phase is _Phase.WAITING and each.kind == node.kind]
            for other in waiting[:1]:
                self._go_on(other)

    # Pieces.
    def _commit(self, event: cluster_events.PieceStaged) -> None:
        attempt = self._attempts.alive(event.attempt)
        if attempt is None:
            self._do(cluster_events.Discard(event.node, event.attempt, event.staged))
            return
        attempt.stop_span = event.staged.record.stop_span
        self._do(cluster_events.Commit(event.node, event.attempt, event.staged))

    def _committed(self, name: str) -> None:
        attempt = self._attempts.alive(name)
        if attempt is not None:
            self._deaths.pop(self.name_of(attempt.node), None)
            self._do(*self._attempts.finish(attempt))

    def _fail_piece(self, attempt: Attempt, error: PenstockError) -> None:
        wanted = attempt.wanted
        wanted.failures += 1
        most = _MOST_INPUT_ERRORS if isinstance(error, InputError) else _MOST_FAILURES
        if not isinstance(error, _OF_A_NODE) or wanted.failures >= most:
            self._do(cluster_events.Raise(_on(self.name_of(attempt.node), error)))
            return
        self._report(
            f"part {wanted.piece.part} on {self.name_of(attempt.node)}: {error.problem}; it is tried elsewhere"
        )
        self._do(cluster_events.Discard(attempt.node, attempt.name), *self._attempts.retry_elsewhere(attempt))

    def _stop(self) -> None:
        if self._is_stopping:
            return
        self._is_stopping = True
        self._do(*self._attempts.stop())
        self._do(*(cluster_events.StopNode(number) for number in self._nodes if self._attempts.is_busy(number)))

    # Time.
    def _tick(self, now: float) -> None:
        passed = 0.0 if self._now is None else now - self._now
        self._now = now
        if self._is_checking:
            self._watch_checks(passed)
        self._attempts.pass_time(passed)
        busy = {number: node for number, node in self._nodes.items() if self._attempts.is_busy(number)}
        started = (_Phase.READY, _Phase.WAITING, _Phase.UP)
        starting = {number: node.phase for number, node in self._nodes.items() if node.phase not in started}
        beats = {number: node.beats for number, node in busy.items()}
        self._say_quiet(self._answering.look(now, beats))
        silent = self._in_contact.look(now, beats)
        # A node whose process does not run yet may wait for its CPUs; one that runs answers while it starts its engine.
        begun = (number for number, phase in starting.items() if phase is not _Phase.STARTING)
        silent |= self._in_contact_at_start.look(now, {number: self._nodes[number].beats for number in begun})
        still = self._at_work.look(now, {number: node.moves for number, node in busy.items()})
        late = self._at_start.look(now, starting)
        for number, seconds in (silent | still | late).items():
            said = "gave no answer" if number in silent else "made no progress"
            self._lose(cluster_events.NodeLost(number, f"{said} for {seconds:.0f} s"))
        self._do(*self._attempts.second_attempts())
        self._wait(passed)

    def _say_quiet(self, quiet: Collection[int]) -> None:
        for number, node in self._nodes.items():
            if number in quiet and not node.is_quiet and self._hang_s > _SILENT_S:
                given_up = f"after {self._hang_s:.0f} s its pieces are given out again"
                self._report(f"node {node.name} has not answered for {_SILENT_S:.0f} s; {given_up}", is_shown=True)
            node.is_quiet = number in quiet

    def _watch_checks(self, passed: float) -> None:
        """Count how long the first nodes that have answered wait for others, and report it if none answers."""
        if self._misfits or any(node.phase is _Phase.UP for node in self._nodes.values()):
            self._checking_s += passed
            return
        is_new = self._silent_s <= _SILENT_S
        self._silent_s += passed
        if is_new and self._silent_s > _SILENT_S and self._nodes:
            names = ", ".join(sorted(self._names))
            line = f"no node has answered for {_SILENT_S:.0f} s: other jobs may have the CPUs or GPUs of {names}"
            self._report(line, is_shown=True)

    def _wait(self, passed: float) -> None:
        """Count how long pieces have waited for a node of a kind that is not there, while nothing else is done."""
        missing = self._attempts.missing_kinds if not self._is_stopping else []
        is_stuck = bool(missing) and all(node.phase is _Phase.READY for node in self._nodes.values())
        is_stuck = is_stuck and not any(map(self._attempts.is_busy, self._nodes))
        self._stuck_s = self._stuck_s + passed if is_stuck else 0.0
        kind = missing[0] if missing else ANY_KIND
        if self._stuck_s <= (self._start_s if kind == ANY_KIND else min(self._start_s, _PATIENCE_S)):
            return
        is_alone = kind == ANY_KIND
        received = "no node" if is_alone else f"no {kind}, which built part {self._pinned[kind][0].part} before"
        error = DeviceError(
            "the cluster has no node that can go on with the job",
            received=f"{received}, for {self._stuck_s:.0f} s{self._last_end if is_alone else ''}",
            hint="start nodes, or check --resources; what is committed stays",
        )
        # Without a node left, the last one was lost: had it been left out, its error would have been raised already.
        is_lost = is_alone and self._last_end
        self._do(cluster_events.Raise(error if is_lost else self._last_error or error))


def _on(name: str, error: PenstockError) -> PenstockError:
    """An error with the name of the node that it is from."""
    error.received = f"on node {name}" if error.received is None else f"on node {name}: {error.received}"
    return error


def _deadly(wanted: WantedPiece, how: str) -> WorkersDied:
    piece, names = wanted.piece, wanted.died_on
    return WorkersDied(
        f"{len(names)} nodes died while they built part {piece.part}",
        received=f"spans {piece.first_span} to {piece.stop_span} on {', '.join(names)}; the last one {how}",
        hint="see the log for what they said; what is committed stays",
    )
