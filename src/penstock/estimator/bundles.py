"""The belt between who reads elements, the processes that predict them, and who takes the predictions, in order.

Invariants:
- nothing waits for input that is not read yet: a bundle that is not full goes to a process that has nothing to do;
- no more is read than `most_ahead` bundles beyond the one whose predictions are being taken;
- every bundle is answered once, or left for its taker to predict, and its memory is kept until then.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.core.records import Span
from penstock.estimator.elements import ElementFiles, open_bundle, place_of

_LINGERS_S = 0.005
"""So long an element waits for others to travel with, while a process has nothing to do."""
_MOST_WAITING = 2
MOST_BYTES = 16 << 20


def num_bytes(element: list[Any]) -> int:
    """The memory of an element; of strings, what they hold, and not only the places of them."""
    return sum(_size(np.asarray(value)) for value in element)


def _size(array: Any) -> int:
    if array.dtype != object:
        return int(array.nbytes)
    return int(array.nbytes + sum(map(len, array.ravel().tolist())))


@dataclass(eq=False)
class Bundle:
    """Elements that travel together. Their memory is `span`'s, once they are on their way."""

    elements: list[Any] = field(default_factory=list)
    num_bytes: int = 0
    since: float = 0.0
    count: int = 0
    span: Span | None = None
    answers: list[Any] | None = None
    """Those of the first elements: fewer where the next one was rejected."""
    error: Exception | None = None
    deaths: int = 0

    @property
    def is_settled(self) -> bool:
        return self.answers is not None or self.error is not None

    def load(self, files: ElementFiles) -> Span:
        """Lay the elements into memory that other processes can map."""
        if self.span is None:
            self.span = files.add(self.elements)
            self.elements = []
        return self.span

    def remaining(self) -> list[Any]:
        """The elements that have no answers."""
        elements = open_bundle(place_of(self.span)) if self.span is not None else self.elements
        return elements[len(self.answers or []) :]


class Bundles:
    """The belt.

    Args:
        most_elements: How many elements travel together.
        most_ahead: How many bundles may be on the belt.
        wake: Called when there is something to take for a process that has nothing to do.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        most_elements: int,
        most_ahead: int,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most_elements = most_elements
        self._most_ahead = most_ahead
        self._wake = wake
        self._clock = clock
        self._changed = threading.Condition()
        self._on_belt: deque[Bundle] = deque()
        self._waiting: deque[Bundle] = deque()
        self._filling: Bundle | None = None
        self._has_ended = False
        self._error: BaseException | None = None
        self._is_closed = False
        self._is_left = False

    # Who reads.
    def wait_for_room(self) -> bool:
        """Wait until another element may be read; False when none is wanted any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._has_room())
            return not self._is_closed

    def add(self, element: list[Any]) -> None:
        with self._changed:
            bundle = self._filling
            if bundle is None:
                bundle = self._filling = Bundle(since=self._clock())
                self._on_belt.append(bundle)
            bundle.elements.append(element)
            bundle.count += 1
            bundle.num_bytes += num_bytes(element)
            is_full = bundle.count >= self._most_elements or bundle.num_bytes >= MOST_BYTES
            if is_full:
                self._waiting.append(bundle)
                self._filling = None
            if self._is_left:
                self._changed.notify_all()
        if is_full or bundle.count == 1:
            self._wake()

    def end(self, error: BaseException | None = None) -> None:
        """There are no more elements, or the next one cannot be read: what came before it is still predicted."""
        with self._changed:
            self._has_ended, self._error = True, error
            if self._filling is not None:
                self._waiting.append(self._filling)
                self._filling = None
            self._changed.notify_all()
        self._wake()

    # The processes.
    def take(self, is_idle: bool) -> Bundle | None:
        """The next bundle, if it is full; where a process `is_idle`, also one that has waited long enough."""
        with self._changed:
            if not self._waiting and is_idle and self._filling is not None and self.lingers_s() == 0.0:
                self._waiting.append(self._filling)
                self._filling = None
            if not self._waiting:
                return None
            self._changed.notify_all()
            return self._waiting.popleft()

    def lingers_s(self) -> float | None:
        """How long the bundle that is being filled may still wait; None where there is none."""
        filling = self._filling
        return None if filling is None else max(0.0, filling.since + _LINGERS_S - self._clock())

    def give_back(self, bundle: Bundle) -> None:
        with self._changed:
            self._waiting.appendleft(bundle)

    def answer(self, bundle: Bundle, answers: list[Any]) -> None:
        with self._changed:
            bundle.answers = answers
            self._changed.notify_all()

    def refuse(self, bundle: Bundle, error: Exception) -> None:
        """It will have no answers; the error is raised when all before it is taken."""
        with self._changed:
            bundle.error = error
            self._changed.notify_all()

    def leave(self) -> None:
        """No process is left: who takes the predictions makes them."""
        with self._changed:
            self._is_left = True
            self._changed.notify_all()

    # Who takes the predictions.
    def in_order(self) -> Iterator[Bundle]:
        """Every bundle in its turn: with answers, or, where no process is left, without."""
        while True:
            with self._changed:
                self._changed.wait_for(self._has_turn)
                if not self._on_belt:
                    break
                bundle = self._on_belt[0]
                if bundle.error is not None:
                    raise bundle.error
                if bundle is self._filling:
                    self._filling = None
                elif bundle in self._waiting:
                    self._waiting.remove(bundle)
            yield bundle
            with self._changed:
                self._on_belt.popleft()
                self._changed.notify_all()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _has_room(self) -> bool:
        if self._filling is not None:
            return True
        return len(self._waiting) < _MOST_WAITING and len(self._on_belt) < self._most_ahead

    def _has_turn(self) -> bool:
        if not self._on_belt:
            return self._has_ended
        return self._on_belt[0].is_settled or self._is_left
