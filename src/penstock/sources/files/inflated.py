"""Compressed bytes, readable at any offset: reads that are nearly in order inflate nothing twice.

Several loaders read spans of one file, in an order that differs every time. A reader that can only go forward would
begin again at the front whenever a span comes late; its time would grow with the square of the file's size.
"""

import threading
from collections.abc import Callable
from typing import Protocol, Self

PIECE_BYTES = 1 << 18
MOST_MARKS = 128
"""A mark holds about 100 KB: what an inflater needs to go on from its place."""


class Rewindable(Protocol):
    """Bytes that are read from front to back. A copy has the same offset."""

    def read(self, nbytes: int) -> bytes: ...

    def copy(self) -> Self | None:
        """A copy at the same offset; None where no copy can be made."""
        ...


class InflatedPieces:
    """Inflated bytes in pieces. The last few pieces are kept, and marks from which inflating can continue.

    Marks lie one piece apart at first, and twice as far each time that there are too many: going back costs at most
    1/64 of the content, in memory that does not depend on its length.

    Args:
        open_tape: Opens the bytes at their beginning.
        kept_bytes: How much inflated content is kept.
    """

    def __init__(self, open_tape: Callable[[], Rewindable], kept_bytes: int) -> None:
        self._open_tape = open_tape
        self._most_pieces = max(2, kept_bytes // PIECE_BYTES)
        self._lock = threading.Lock()
        self._pieces: dict[int, bytes] = {}
        self._marks: dict[int, Rewindable] = {}
        self._step = 1
        self._tape: Rewindable | None = None
        self._next = 0
        self._front: tuple[int, Rewindable] | None = None

    def read(self, start: int, nbytes: int) -> bytes:
        """The bytes at an offset; fewer at the end of the content."""
        if nbytes <= 0:
            return b""
        first, last = start // PIECE_BYTES, (start + nbytes - 1) // PIECE_BYTES
        with self._lock:
            pieces = [self._piece(number) for number in range(first, last + 1)]
        skipped = start - first * PIECE_BYTES
        if len(pieces) == 1:
            return pieces[0][skipped : skipped + nbytes]
        pieces[0], pieces[-1] = pieces[0][skipped:], pieces[-1][: start + nbytes - last * PIECE_BYTES]
        return b"".join(pieces)

    def _piece(self, number: int) -> bytes:
        if (known := self._pieces.pop(number, None)) is not None:
            self._pieces[number] = known
            return known
        self._go_near(number)
        assert self._tape is not None
        while True:
            self._mark()
            raw = self._tape.read(PIECE_BYTES)
            self._pieces[self._next] = raw
            while len(self._pieces) > self._most_pieces:
                self._pieces.pop(next(iter(self._pieces)))
            self._next += 1
            if self._next > number:
                return raw

    def _go_near(self, number: int) -> None:
        """Move to the nearest known point before a piece: the end of the last one, or a mark."""
        nearest = max((mark for mark in self._marks if mark <= number), default=-1)
        if self._tape is not None and nearest <= self._next <= number:
            return
        if self._tape is not None and (self._front is None or self._front[0] < self._next):
            self._front = self._next, self._tape
        if self._front is not None and nearest <= self._front[0] <= number:
            (self._next, self._tape), self._front = self._front, None
            return
        copied = self._marks[nearest].copy() if nearest >= 0 else None
        self._tape, self._next = (self._open_tape(), 0) if copied is None else (copied, nearest)

    def _mark(self) -> None:
        assert self._tape is not None
        if self._next % self._step or self._next in self._marks:
            return
        if (copied := self._tape.copy()) is not None:
            self._marks[self._next] = copied
        if len(self._marks) > MOST_MARKS:
            self._step *= 2
            self._marks = {number: mark for number, mark in self._marks.items() if number % self._step == 0}
