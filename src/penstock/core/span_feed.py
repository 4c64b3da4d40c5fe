"""Spans that come as they come, and an error among them that must wait: what came before it is still predicted."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator

from penstock.core.records import Span


class SpanFeed:
    """Iterates over spans. An error ends the iteration; `check` raises it when everything before it is done."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._spans = iter(spans)
        self._error: Exception | None = None
        self.order: deque[int] = deque()
        """The indices of the spans that were pulled, in their order."""
        self.first = next(self, None)

    def __iter__(self) -> Iterator[Span]:
        return itertools.chain([self.first] if self.first is not None else [], self._rest())

    def _rest(self) -> Iterator[Span]:
        while (span := next(self, None)) is not None:
            yield span

    def __next__(self) -> Span:
        try:
            span = next(self._spans)
        except StopIteration:
            raise
        except Exception as error:
            self._error = error
            raise StopIteration from None
        self.order.append(span.index)
        return span

    def check(self) -> None:
        if self._error is not None:
            raise self._error
