"""Who predicts which span: an event goes in, assignments come out. Pure, so it is tested without a process.

Invariants:
- every span is pending, held by exactly one replica, or finished; a lost replica's spans are pending again (a span
  that belonged to nobody would be a row that vanishes);
- no span is handed out that lies more than `window` spans beyond the oldest unfinished one (results wait for their turn
  in memory: without the bound a slow first span would collect the whole output there);
- spans of one group go to the replica that is reading that group, in order, as long as there is other work for the
  rest (another replica has to decode everything before them again, which is still better than an idle device).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from penstock.core.records import Span


@dataclass(frozen=True)
class Assignment:
    """Hand `span` to `replica`."""

    replica: int
    span: Span


@dataclass
class _Held:
    """What a replica has: the positions it works on, and the last one it was given."""

    positions: list[int] = field(default_factory=list)
    last: int | None = None


class Scheduler:
    """Pull scheduling: a replica with room gets the next span, so unequal devices balance themselves.

    Args:
        spans: The spans to be predicted, in order. They are pulled when there is room for them: a source that streams
            makes them as it goes.
        depth: How many spans a replica holds at once, so that it reads ahead of its model.
        window: How far beyond the oldest unfinished span work may be handed out.
        ahead: How many spans to have that nobody works on yet; None for the whole window, so that replicas find spans
            of other groups. One where every span costs.
    """

    def __init__(self, spans: Iterable[Span], depth: int, window: int, ahead: int | None = None) -> None:
        self._more: Iterator[Span] | None = iter(spans)
        self._spans: dict[int, Span] = {}
        self._pulled = 0
        self._position: dict[int, int] = {}
        self._depth = depth
        self._window = max(window, depth)
        self._ahead = self._window if ahead is None else ahead
        self._pending: set[int] = set()
        self._finished: set[int] = set()
        self._head = 0
        self._replicas: dict[int, _Held] = {}
        self._stopped = False

    @property
    def is_finished(self) -> bool:
        """Nothing is held, and nothing more will be handed out."""
        idle = all(not held.positions for held in self._replicas.values())
        return idle and (self._stopped or (self._more is None and not self._pending))

    def join(self, replica: int) -> list[Assignment]:
        """A replica is ready for work."""
        self._replicas[replica] = _Held()
        return self._assign()

    def finish(self, replica: int, span_index: int) -> list[Assignment]:
        """A replica has delivered a whole span."""
        position = self._position.pop(span_index)
        self._replicas[replica].positions.remove(position)
        self._finished.add(position)
        while self._head in self._finished:
            self._finished.discard(self._head)
            # The group of the span before is still asked for; nothing else of what is done is.
            self._spans.pop(self._head - 1, None)
            self._head += 1
        return self._assign()

    def lose(self, replica: int) -> list[Assignment]:
        """A replica is gone: what it held is pending again."""
        held = self._replicas.pop(replica, _Held())
        self._pending.update(held.positions)
        return self._assign()

    def give_back(self, replica: int, span_indices: Sequence[int]) -> None:
        """A replica returns spans it has not begun."""
        for index in span_indices:
            position = self._position[index]
            self._replicas[replica].positions.remove(position)
            self._pending.add(position)

    def held_by(self, replica: int) -> list[int]:
        """The indices of the spans that a replica works on."""
        return [self._spans[position].index for position in self._replicas.get(replica, _Held()).positions]

    def stop(self) -> None:
        """Hand nothing more out; what is held may finish."""
        self._stopped = True

    def _assign(self) -> list[Assignment]:
        assignments: list[Assignment] = []
        while not self._stopped:
            hungry = [name for name, held in self._replicas.items() if len(held.positions) < self._depth]
            if not hungry:
                break
            self._pull()
            replica = min(hungry, key=lambda name: len(self._replicas[name].positions))
            position = self._choose(replica)
            if position is None:
                break
            held = self._replicas[replica]
            held.positions.append(position)
            held.last = position
            self._pending.discard(position)
            assignments.append(Assignment(replica, self._spans[position]))
        return assignments

    def _pull(self) -> None:
        while self._more is not None and len(self._pending) < self._ahead and self._pulled < self._head + self._window:
            span = next(self._more, None)
            if span is None:
                self._more = None
                return
            self._spans[self._pulled] = span
            self._position[span.index] = self._pulled
            self._pending.add(self._pulled)
            self._pulled += 1

    def _choose(self, replica: int) -> int | None:
        window = range(self._head, min(self._head + self._window, self._pulled))
        last = self._replicas[replica].last
        if last is not None and self._group(last) is not None:
            follower = last + 1
            if follower in window and follower in self._pending and self._group(follower) == self._group(last):
                return follower
        taken = {
            self._group(held.last)
            for name, held in self._replicas.items()
            if name != replica and held.last is not None and self._is_open(held)
        } - {None}
        candidates = [position for position in window if position in self._pending]
        unclaimed = [position for position in candidates if self._group(position) not in taken]
        return next(iter(unclaimed or candidates), None)

    def _is_open(self, held: _Held) -> bool:
        """Whether the group that a replica reads goes on after the last span it was given."""
        assert held.last is not None
        follower = held.last + 1
        return follower in self._pending and self._group(follower) == self._group(held.last)

    def _group(self, position: int) -> str | None:
        span = self._spans.get(position)  # gone where it is long finished
        return None if span is None else span.group
