"""Results come as they are ready and leave in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.core.records import Result, Span


class InOrder:
    """Holds results until all before them have left. The scheduler's window bounds how many wait."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._order = [span.index for span in spans]
        self._next = 0
        self._waiting: dict[int, Result] = {}

    def add(self, result: Result) -> None:
        self._waiting[result.span.index] = result

    def ready(self) -> Iterator[Result]:
        """Every result whose turn has come."""
        while self._next < len(self._order) and self._order[self._next] in self._waiting:
            yield self._waiting.pop(self._order[self._next])
            self._next += 1

    @property
    def is_complete(self) -> bool:
        return self._next == len(self._order)
