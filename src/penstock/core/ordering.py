"""Results come as they are ready and leave in order, or at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from penstock.core.records import Result


class InOrder:
    """Holds results until all before them have left. The scheduler's window bounds how many wait.

    Args:
        order: The indices of the spans in their order. Appended to while the run goes on, emptied by `ready`.
    """

    def __init__(self, order: deque[int]) -> None:
        self._order = order
        self._waiting: dict[int, Result] = {}

    def add(self, result: Result) -> None:
        self._waiting[result.span.index] = result

    def ready(self) -> Iterator[Result]:
        """Every result whose turn has come."""
        while self._order and self._order[0] in self._waiting:
            yield self._waiting.pop(self._order.popleft())


class AsFinished(InOrder):
    """Lets every result leave at once, for callers that put them in order themselves."""

    def ready(self) -> Iterator[Result]:
        """Every result that has not left."""
        while self._waiting:
            yield self._waiting.pop(next(iter(self._waiting)))
