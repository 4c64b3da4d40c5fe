"""Which node builds which piece of a cluster's run, and which pieces are built twice. Pure.

`core.scheduler` hands pieces to nodes as it hands spans to replicas. A piece that was built on a certain kind of node
before is built on that kind again: such pieces have a scheduler of their own, which only nodes of that kind join.

Invariants:
- a piece is pending, or has one or two living attempts on different nodes, or is finished; for the scheduler, one of
  these nodes is its holder;
- what an attempt delivers counts only while it lives: it lives until it is committed, fails, is given back or is
  withdrawn, or its node is lost.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.core.scheduler import Assignment, Scheduler
from penstock.engines.cluster_events import Build, Command, Withdraw
from penstock.storage.part_builder import PartPiece

ANY_KIND = ""
_DEPTH = 2
"""How many pieces a node holds at once: it begins the next one while it ends one."""
_AHEAD = 64
_NO_WINDOW = 1 << 62
"""Pieces are committed in any order, and none waits for another in memory."""


@dataclass
class WantedPiece:
    """A piece that is to be built, and all that is known of it."""

    index: int
    piece: PartPiece
    rows: int
    kind: str
    group: str | None = None
    holder: int = -1
    attempts: list["Attempt"] = field(default_factory=list)
    died_on: list[str] = field(default_factory=list)
    """The machines whose nodes died while they built it."""
    failures: int = 0


@dataclass(eq=False)
class Attempt:
    """One try to build a piece on one node."""

    name: str
    node: int
    wanted: WantedPiece
    rows_done: int = 0
    stop_span: int | None = None
    """Where what was staged ends; None while it is being built."""


@dataclass
class _Builder:
    """A node that takes pieces."""

    kind: str
    attempts: dict[str, Attempt] = field(default_factory=dict)
    """In the order in which they were handed out, and are built."""
    rows: int = 0
    busy_s: float = 0.0
    still_s: float = 0.0
    """How much of this time has passed since it last made progress."""


class PieceAttempts:
    """Hands pieces to nodes.

    Args:
        pieces: What any kind of node may build; pulled as there is room.
        pinned: What only nodes of a kind may build, by kind.
        rows_of: How many rows a piece has.
        run: A name of this run that no other has; attempts are named after it.
    """

    def __init__(
        self,
        pieces: Iterable[PartPiece],
        pinned: Mapping[str, Sequence[PartPiece]],
        rows_of: Callable[[PartPiece], int],
        run: str,
    ) -> None:
        self._run = run
        self._rows_of = rows_of
        self._num_pulled = 0
        self._num_attempts = 0
        self._is_stopped = False
        self._schedulers = {
            kind: Scheduler(self._wanted(some, kind), _DEPTH, _NO_WINDOW, _AHEAD)
            for kind, some in ((ANY_KIND, pieces), *pinned.items())
        }
        self._builders: dict[int, _Builder] = {}
        self._rows_of_lost = 0
        self._busy_s_of_lost = 0.0
        """What lost nodes did counts for the usual speed: perhaps no other node has finished anything yet."""
        self._alive: dict[str, Attempt] = {}

    @property
    def is_finished(self) -> bool:
        """Nothing is built, and nothing more will be handed out."""
        return not self._alive and all(scheduler.is_finished for scheduler in self._schedulers.values())

    @property
    def missing_kinds(self) -> list[str]:
        """The kinds that pieces wait for and that no node is of; `ANY_KIND` where there is no node at all."""
        there = {builder.kind for builder in self._builders.values()} | ({ANY_KIND} if self._builders else set())
        return [kind for kind, each in self._schedulers.items() if not each.is_finished and kind not in there]

    def check(self) -> None:
        """Raise the error that ended the pieces."""
        for scheduler in self._schedulers.values():
            scheduler.check()

    def alive(self, name: str) -> Attempt | None:
        return self._alive.get(name)

    def is_busy(self, node: int) -> bool:
        return node in self._builders and bool(self._builders[node].attempts)

    def of_node(self, node: int) -> list[Attempt]:
        return list(self._builders[node].attempts.values()) if node in self._builders else []

    def join(self, node: int, kind: str) -> list[Command]:
        """A node is ready for work."""
        self._builders[node] = _Builder(kind)
        return [build for scheduler in self._schedulers_for(kind) for build in self._build(scheduler.join(node))]

    def lose(self, node: int) -> list[Command]:
        """A node is gone: what it alone was building is built by others."""
        builder = self._builders.pop(node, None)
        if builder is None:
            return []
        self._rows_of_lost += builder.rows
        self._busy_s_of_lost += builder.busy_s
        for attempt in builder.attempts.values():
            del self._alive[attempt.name]
            wanted = attempt.wanted
            wanted.attempts.remove(attempt)
            if wanted.holder == node and wanted.attempts:
                self._hand_over(wanted, wanted.attempts[0].node)
        return [
            build for scheduler in self._schedulers_for(builder.kind) for build in self._build(scheduler.lose(node))
        ]

    def finish(self, attempt: Attempt) -> list[Command]:
        """An attempt was committed. If its node cut the piece short unasked, another attempt builds the rest."""
        wanted, stop_span = attempt.wanted, attempt.stop_span
        builder = self._builders[attempt.node]
        builder.rows += wanted.rows - attempt.rows_done
        builder.still_s = 0.0
        self._end(attempt)
        others: list[Command] = [Withdraw(other.node, other.name) for other in wanted.attempts]
        for other in list(wanted.attempts):
            self._end(other)
        scheduler = self._schedulers[wanted.kind]
        piece = wanted.piece
        if stop_span is not None and stop_span != piece.stop_span and not self._is_stopped:
            wanted.piece = replace(piece, cut=piece.cut + 1, first_span=stop_span)
            wanted.rows = self._rows_of(wanted.piece)
            scheduler.give_back(wanted.holder, [wanted.index])
            return [*others, *self._build(scheduler.more())]
        return [*others, *self._build(scheduler.finish(wanted.holder, wanted.index))]

    def give_back(self, attempt: Attempt) -> list[Command]:
        """A node returns a piece, and keeps nothing of it."""
        self._end(attempt)
        return self._go_on_without(attempt, None)

    def retry_elsewhere(self, attempt: Attempt) -> list[Command]:
        """An attempt failed: another node builds the piece, or the same one where there is no other."""
        self._end(attempt)
        return self._go_on_without(attempt, self._least_busy(attempt))

    def stop(self) -> list[Command]:
        """Hand out nothing more. Where a piece is built twice, the holder's attempt remains."""
        self._is_stopped = True
        for scheduler in self._schedulers.values():
            scheduler.stop()
        unstaged = [attempt for attempt in self._alive.values() if attempt.stop_span is None]
        second = [attempt for attempt in unstaged if attempt.node != attempt.wanted.holder]
        for attempt in second:
            self._end(attempt)
        return [Withdraw(attempt.node, attempt.name) for attempt in second]

    def note_progress(self, node: int, rows: Mapping[str, int]) -> bool:
        """Note how many rows of its attempts a node has predicted; returns whether there are more than before."""
        builder = self._builders.get(node)
        if builder is None:
            return False
        before = builder.rows
        for name, done in rows.items():
            attempt = builder.attempts.get(name)
            if attempt is not None and done > attempt.rows_done:
                builder.rows += done - attempt.rows_done
                attempt.rows_done = done
        if builder.rows == before:
            return False
        builder.still_s = 0.0
        return True

    def pass_time(self, seconds: float) -> None:
        """Count this time for the nodes that have work."""
        for builder in self._builders.values():
            if builder.attempts:
                builder.busy_s += seconds
                builder.still_s += seconds

    def second_attempts(self) -> list[Command]:
        """Have idle nodes build what they would finish before the nodes that are building it. The first commit wins.

        A node is idle only where nothing is pending that it may build.
        """
        if self._is_stopped:
            return []
        idle_nodes = [node for node, builder in self._builders.items() if not builder.attempts]
        usual = self._usual_speed() if idle_nodes else None
        if usual is None:
            return []
        idle = [(self._speed(self._builders[node], usual), node) for node in idle_nodes]
        running = sorted(self._running(usual), key=lambda each: -each[0])
        least_rows = min((attempt.wanted.rows for _, attempt in running), default=0)
        commands: list[Command] = []
        for speed, node in sorted(idle, key=lambda each: (-each[0], each[1])):
            kinds = (ANY_KIND, self._builders[node].kind)
            for place, (left_s, attempt) in enumerate(running):
                if left_s * speed <= least_rows:
                    break  # the others will be done even sooner
                if attempt.wanted.kind in kinds and attempt.wanted.rows < left_s * speed:
                    del running[place]
                    commands.append(self._begin(attempt.wanted, node))
                    break
        return commands

    def _wanted(self, pieces: Iterable[PartPiece], kind: str) -> Iterator[WantedPiece]:
        for piece in pieces:
            yield WantedPiece(self._num_pulled, piece, self._rows_of(piece), kind)
            self._num_pulled += 1

    def _schedulers_for(self, kind: str) -> list[Scheduler[WantedPiece]]:
        """The schedulers from which a node of a kind gets pieces: first the one that is for its kind only."""
        return [self._schedulers[name] for name in dict.fromkeys((kind, ANY_KIND)) if name in self._schedulers]

    def _build(self, assignments: list[Assignment[WantedPiece]]) -> list[Command]:
        for assignment in assignments:
            assignment.span.holder = assignment.replica
        return [self._begin(assignment.span, assignment.replica) for assignment in assignments]

    def _begin(self, wanted: WantedPiece, node: int) -> Build:
        attempt = Attempt(f"{self._run}-{node}-{self._num_attempts}", node, wanted)
        self._num_attempts += 1
        builder = self._builders[node]
        if not builder.attempts:
            builder.still_s = 0.0
        wanted.attempts.append(attempt)
        self._alive[attempt.name] = builder.attempts[attempt.name] = attempt
        return Build(node, attempt.name, wanted.piece)

    def _end(self, attempt: Attempt) -> None:
        del self._alive[attempt.name]
        del self._builders[attempt.node].attempts[attempt.name]
        attempt.wanted.attempts.remove(attempt)

    def _go_on_without(self, attempt: Attempt, other: int | None) -> list[Command]:
        """Have a piece built after one of its attempts ended: by its other attempt, by node `other`, or later."""
        wanted, scheduler = attempt.wanted, self._schedulers[attempt.wanted.kind]
        if wanted.attempts:
            if wanted.holder == attempt.node:
                self._hand_over(wanted, wanted.attempts[0].node)
            return self._build(scheduler.more())
        if other is None or self._is_stopped:
            scheduler.give_back(wanted.holder, [wanted.index])
            return self._build(scheduler.more())
        if other != wanted.holder:
            self._hand_over(wanted, other)
        return [self._begin(wanted, other), *self._build(scheduler.more())]

    def _hand_over(self, wanted: WantedPiece, node: int) -> None:
        self._schedulers[wanted.kind].hand_over(wanted.holder, wanted.index, node)
        wanted.holder = node

    def _least_busy(self, attempt: Attempt) -> int | None:
        """The least busy of the other nodes that may build the piece."""
        kind = attempt.wanted.kind
        fitting = ((len(each.attempts), node) for node, each in self._builders.items() if kind in (ANY_KIND, each.kind))
        return min((each for each in fitting if each[1] != attempt.node), default=(0, None))[1]

    # Speeds, in rows a second.
    def _usual_speed(self) -> float | None:
        rows = self._rows_of_lost + sum(builder.rows for builder in self._builders.values())
        busy_s = self._busy_s_of_lost + sum(builder.busy_s for builder in self._builders.values())
        return rows / busy_s if rows and busy_s else None

    def _speed(self, builder: _Builder, usual: float) -> float:
        """The speed of a node. If it has finished no row yet, it counts as if it had just finished one."""
        return max(builder.rows, 1) / builder.busy_s if builder.busy_s else usual

    def _running(self, usual: float) -> Iterator[tuple[float, Attempt]]:
        """The attempts of pieces that have no other, and in how many seconds each will be done.

        A node that makes no progress, because its rows are predicted but not written, say, is expected to stand
        still for at least half as long again.
        """
        for builder in self._builders.values():
            rows = 0
            speed = self._speed(builder, usual)
            for attempt in builder.attempts.values():
                rows += attempt.wanted.rows - attempt.rows_done
                if attempt.stop_span is None and len(attempt.wanted.attempts) == 1:
                    yield max(rows / speed, builder.still_s / 2), attempt
