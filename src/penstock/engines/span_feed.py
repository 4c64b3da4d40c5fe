"""Spans that are added while a run goes on: a source of work for an engine that is fed from outside."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from penstock.core.records import Span
from penstock.core.scheduler import NOT_YET, NotYet


class SpanFeed(Iterator[Span | NotYet]):
    """Spans in the order in which they were added. Any thread may add; one engine takes.

    `next` gives a span, or `NOT_YET` where there is none now, and ends when the feed was ended and is empty.
    """

    def __init__(self) -> None:
        self._spans: deque[Span] = deque()
        self._is_ended = False
        self._lock = threading.Lock()
        self.on_change: Callable[[], None] = lambda: None
        """Called from any thread after spans were added, or the feed was ended; the engine sets it."""

    def __next__(self) -> Span | NotYet:
        with self._lock:
            if self._spans:
                return self._spans.popleft()
            if self._is_ended:
                raise StopIteration
            return NOT_YET

    def add(self, spans: Iterable[Span]) -> None:
        """Add spans behind those that are there.

        Raises:
            ValueError: The feed was ended.
        """
        with self._lock:
            if self._is_ended:
                raise ValueError("the feed was ended")
            self._spans.extend(spans)
        self.on_change()

    def withdraw(self, first: int, stop: int) -> list[int]:
        """Take back the spans from `first` up to `stop` that no engine has taken; returns their indices."""
        with self._lock:
            taken_back = [span.index for span in self._spans if first <= span.index < stop]
            self._spans = deque(span for span in self._spans if not first <= span.index < stop)
        return taken_back

    def end(self) -> None:
        """No more spans will be added. May be called twice."""
        with self._lock:
            self._is_ended = True
        self.on_change()
