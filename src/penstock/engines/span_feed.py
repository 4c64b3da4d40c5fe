"""Spans that are added while a run goes on: work for an engine that is fed from outside."""

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator

from penstock.core.records import Span
from penstock.core.scheduler import NOT_YET, NotYet


class SpanFeed(Iterator[Span | NotYet]):
    """Spans in the order in which they were added. Any thread adds and withdraws; one engine takes.

    `next` gives a span, or `NOT_YET` where there is none now, and ends when the feed was ended and is empty. A span is
    in the feed at most once until its result is there: one that is withdrawn and added again while it is predicted is
    not predicted twice.
    """

    def __init__(self) -> None:
        self._spans: deque[Span] = deque()
        self._taken: set[int] = set()
        self._withdrawn: set[int] = set()
        """Spans that were taken, and then withdrawn."""
        self._is_ended = False
        self._has_news = False
        self._wake: Callable[[], None] | None = None
        self._lock = threading.Lock()

    def wake_with(self, wake: Callable[[], None] | None) -> None:
        """Set what is called, on any thread, when there is news after `take_news`. For the engine."""
        with self._lock:
            self._wake = wake

    def __next__(self) -> Span | NotYet:
        with self._lock:
            if self._spans:
                span = self._spans.popleft()
                self._taken.add(span.index)
                return span
            if self._is_ended:
                raise StopIteration
            return NOT_YET

    def add(self, spans: Iterable[Span]) -> None:
        """Add spans after those that are in the feed.

        Raises:
            ValueError: The feed was ended.
        """
        with self._lock:
            if self._is_ended:
                raise ValueError("the feed was ended")
            for span in spans:
                self._withdrawn.discard(span.index)
                if span.index not in self._taken:
                    self._spans.append(span)
            self._tell()

    def withdraw(self, first: int, stop: int) -> None:
        """Take back the spans from `first` up to `stop`: their results are no longer needed."""
        with self._lock:
            self._spans = deque(span for span in self._spans if not first <= span.index < stop)
            self._withdrawn |= {index for index in self._taken if first <= index < stop}
            self._tell()

    def end(self) -> None:
        """No more spans will be added. May be called twice."""
        with self._lock:
            self._is_ended = True
            self._tell()

    def take_news(self, drop: Callable[[Collection[int]], Iterable[int]]) -> bool:
        """Whether anything changed since this was called last. For the engine.

        `drop` gets the withdrawn spans that the engine has taken, and returns those that are predicted nevertheless.
        """
        with self._lock:
            if self._withdrawn:
                self._taken -= self._withdrawn - set(drop(self._withdrawn))
                self._withdrawn.clear()
            has_news, self._has_news = self._has_news, False
            return has_news

    def _tell(self) -> None:
        """Wake the engine. The caller holds the lock."""
        if not self._has_news and self._wake is not None:
            self._wake()
        self._has_news = True

    def finish(self, span: Span) -> None:
        """The result of a span has left. For the engine."""
        with self._lock:
            self._taken.discard(span.index)
