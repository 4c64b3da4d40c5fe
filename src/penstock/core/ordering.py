"""Results come as they are ready and leave in order."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.records import Result


class InOrder:
    """Holds results until all before them have left. The scheduler's window bounds how many wait."""

    def __init__(self, first: int = 0) -> None:
        self._next = first
        self._waiting: dict[int, Result] = {}

    def add(self, result: Result) -> None:
        self._waiting[result.span.index] = result

    def ready(self) -> Iterator[Result]:
        """Every result whose turn has come."""
        while self._next in self._waiting:
            yield self._waiting.pop(self._next)
            self._next += 1
