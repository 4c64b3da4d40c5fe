"""Which replica predicts which span: an event goes in, assignments come out. Pure, so it is tested without a process.

Invariants:
- every span is pending, held by exactly one replica, or finished; the spans of a lost replica are pending again (a span
  that belonged to no replica would be a row that vanishes);
- no span is handed out that lies more than `window` spans beyond the oldest unfinished one (results wait for their turn
  in memory: without the bound a slow first span would collect the whole output there);
- spans of one group go to the replica that is reading that group, in order, as long as there is other work for the
  rest (another replica has to decode everything before them again, which is still better than an idle device).

No event costs more than the number of replicas and the window, and the usual ones cost far less: a run with a thousand
replicas is scheduled by one process.
"""

import bisect
import enum
import heapq
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar


class Schedulable(Protocol):
    """A span of one machine's run, or a piece of a part in a cluster's."""

    @property
    def index(self) -> int: ...

    @property
    def group(self) -> str | None: ...


SpanT = TypeVar("SpanT", bound=Schedulable)


class NotYet(enum.Enum):
    """The value that an iterator of spans gives when it has none now but is not at its end."""

    NOT_YET = enum.auto()


NOT_YET: Final = NotYet.NOT_YET


@dataclass(frozen=True)
class Assignment(Generic[SpanT]):
    """Hand `span` to `replica`."""

    replica: int
    span: SpanT


@dataclass
class _Held:
    """The positions that a replica works on, and the last one that it was given."""

    positions: list[int] = field(default_factory=list)
    last: int | None = None


class Scheduler(Generic[SpanT]):
    """Pull scheduling: a replica with room gets the next span, so unequal devices balance themselves.

    Args:
        spans: The spans to be predicted, in order. They are pulled when there is room for them: a source that streams
            makes them as it goes. An error of the iterator ends them; `check` raises it. After `NOT_YET`, the iterator
            is asked again at the next event; call `more` when it has spans again.
        depth: How many spans a replica holds at once, so that it reads ahead of its model.
        window: How far beyond the oldest unfinished span work may be handed out.
        ahead: How many pulled spans may wait to be handed out; None for the whole window, so that replicas find spans
            of other groups. Give 1 where every pulled span costs.
    """

    def __init__(self, spans: Iterable[SpanT | NotYet], depth: int, window: int, ahead: int | None = None) -> None:
        self._more: Iterator[SpanT | NotYet] | None = iter(spans)
        self._error: Exception | None = None
        self.order: deque[int] = deque()
        """The indices of the spans that were pulled, in their order. The run removes them as results leave."""
        self._spans: dict[int, SpanT] = {}
        self._pulled = 0
        self._position: dict[int, int] = {}
        self._depth = depth
        self._window = max(window, depth)
        self._ahead = self._window if ahead is None else ahead
        self._pending: list[int] = []
        """Positions, sorted. All of them lie in the window: nothing is pulled beyond it."""
        self._finished: set[int] = set()
        self._head = 0
        self._replicas: dict[int, _Held] = {}
        self._hungry: list[tuple[int, int]] = []
        """A heap of the number of spans that a replica holds, with the replica's number. Outdated entries stay until
        they reach the top (`_hungriest`)."""
        self._num_held = 0
        self._readers: Counter[int] = Counter()
        """For how many replicas this position is the last one that they were given."""
        self._claims: Counter[str] = Counter()
        """How many replicas are in the middle of this group: it goes on at the pending position after their last."""
        self._stopped = False

    @property
    def is_finished(self) -> bool:
        """Nothing is held, and nothing more will be handed out."""
        return not self._num_held and (self._stopped or (self._more is None and not self._pending))

    @property
    def is_holding(self) -> bool:
        """Whether a replica holds a span."""
        return self._num_held > 0

    def check(self) -> None:
        """Raise the error that ended the spans. Call it when everything before the error is done."""
        if self._error is not None:
            raise self._error

    def join(self, replica: int) -> list[Assignment[SpanT]]:
        """A replica is ready for work. Call it once for each replica."""
        self._replicas[replica] = _Held()
        self._note_room(replica)
        return self._assign()

    def more(self) -> list[Assignment[SpanT]]:
        """After `NOT_YET`, the iterator has spans again, or its end is known."""
        return self._assign()

    def finish(self, replica: int, span_index: int) -> list[Assignment[SpanT]]:
        """A replica has delivered a whole span."""
        position = self._position.pop(span_index)
        self._let_go(replica, position)
        self._settle(position)
        return self._assign()

    def drop(self, span_indices: Iterable[int]) -> list[int]:
        """Forget spans that are no longer needed; returns those that replicas hold, which still have to be finished."""
        held = []
        for index in span_indices:
            position = self._position.get(index)
            if position is None:
                continue
            if self._is_pending(position):
                self._claim(position, -self._readers[position - 1])
                del self._pending[bisect.bisect_left(self._pending, position)]
                del self._position[index]
                if index in self.order:  # results that leave in any order empty it
                    self.order.remove(index)
                self._settle(position)
            else:
                held.append(index)
        return held

    def hand_over(self, holder: int, span_index: int, replica: int) -> None:
        """Count a span of one replica for another: both work on it, and the first is about to be lost.

        The other replica may then hold more than its depth.
        """
        position = self._position[span_index]
        self._let_go(holder, position)
        self._replicas[replica].positions.append(position)
        self._num_held += 1
        self._note_room(replica)

    def lose(self, replica: int) -> list[Assignment[SpanT]]:
        """A replica is gone: what it held is pending again."""
        held = self._replicas.pop(replica, _Held())
        self._num_held -= len(held.positions)
        self._move_reader(held.last, None)
        for position in held.positions:
            self._put_back(position)
        return self._assign()

    def give_back(self, replica: int, span_indices: Sequence[int]) -> None:
        """A replica returns spans it has not begun."""
        for index in span_indices:
            position = self._position[index]
            self._let_go(replica, position)
            self._put_back(position)

    def held_by(self, replica: int) -> list[int]:
        """The indices of the spans that a replica works on."""
        return [span.index for span in self.spans_of(replica)]

    def spans_of(self, replica: int) -> list[SpanT]:
        """The spans that a replica works on."""
        return [self._spans[position] for position in self._replicas.get(replica, _Held()).positions]

    def stop(self) -> None:
        """Hand nothing more out; what is held may finish."""
        self._stopped = True

    def _let_go(self, replica: int, position: int) -> None:
        self._replicas[replica].positions.remove(position)
        self._note_room(replica)
        self._num_held -= 1

    def _settle(self, position: int) -> None:
        self._finished.add(position)
        while self._head in self._finished:
            self._finished.discard(self._head)
            # The span before the head is kept for its group; finished spans before that are not needed.
            self._spans.pop(self._head - 1, None)
            self._head += 1

    def _note_room(self, replica: int) -> None:
        held = len(self._replicas[replica].positions)
        if held < self._depth:
            heapq.heappush(self._hungry, (held, replica))

    def _hungriest(self) -> int | None:
        """The replica with room that holds least."""
        while self._hungry:
            held, replica = self._hungry[0]
            if replica in self._replicas and len(self._replicas[replica].positions) == held:
                return replica
            heapq.heappop(self._hungry)
        return None

    def _assign(self) -> list[Assignment[SpanT]]:
        assignments: list[Assignment[SpanT]] = []
        while not self._stopped and (replica := self._hungriest()) is not None:
            self._pull()
            if not self._pending:
                break
            assignments.append(Assignment(replica, self._spans[self._take(replica, self._choose(replica))]))
        return assignments

    def _take(self, replica: int, position: int) -> int:
        held = self._replicas[replica]
        del self._pending[bisect.bisect_left(self._pending, position)]
        self._claim(position, -self._readers[position - 1])
        self._move_reader(held.last, position)
        held.last = position
        held.positions.append(position)
        self._num_held += 1
        self._note_room(replica)
        return position

    def _put_back(self, position: int) -> None:
        bisect.insort(self._pending, position)
        self._claim(position, self._readers[position - 1])

    def _pull(self) -> None:
        while self._more is not None and len(self._pending) < self._ahead and self._pulled < self._head + self._window:
            try:
                span = next(self._more, None)
            except Exception as error:
                span, self._error = None, error
            if span is None:
                self._more = None
            if span is None or span is NOT_YET:
                return
            self.order.append(span.index)
            self._spans[self._pulled] = span
            self._position[span.index] = self._pulled
            self._put_back(self._pulled)
            self._pulled += 1

    def _choose(self, replica: int) -> int:
        last = self._replicas[replica].last
        if last is not None and self._is_pending(last + 1) and self._follows(last + 1):
            return last + 1
        unclaimed = (position for position in self._pending if not self._claims[self._spans[position].group or ""])
        return next(unclaimed, self._pending[0])

    def _move_reader(self, before: int | None, after: int | None) -> None:
        for position, change in ((before, -1), (after, 1)):
            if position is not None:
                self._readers[position] += change
                if not self._readers[position]:
                    del self._readers[position]
                if self._is_pending(position + 1):
                    self._claim(position + 1, change)

    def _claim(self, position: int, change: int) -> None:
        """Add `change` to the number of replicas that are in the middle of the group at a pending position."""
        group = self._spans[position].group
        if change and group is not None and self._follows(position):
            self._claims[group] += change
            if not self._claims[group]:
                del self._claims[group]

    def _is_pending(self, position: int) -> bool:
        place = bisect.bisect_left(self._pending, position)
        return place < len(self._pending) and self._pending[place] == position

    def _follows(self, position: int) -> bool:
        """Whether a span goes on with the group of the one before."""
        before = self._spans.get(position - 1)  # None where it was finished long ago
        group = self._spans[position].group
        return before is not None and group is not None and before.group == group
