"""Running out of memory: how it is recognised, and how many rows of a batch are known to fit."""

from collections.abc import Mapping

_WORDS = (
    "allocate memory",
    "bad_alloc",
    "can't start new thread",
    "failed to allocate",
    "memoryerror",
    "not enough memory",  # torch on a CPU
    "out of memory",
    "out_of_memory",
    "resource_exhausted",
    "ynnpack operation failed",  # XLA on a CPU, for any problem of that library; seen where memory was limited
)


def speaks_of_memory(words: str) -> bool:
    """Whether an error, or the last lines of a process, are about memory.

    >>> speaks_of_memory("terminate called after throwing an instance of 'std::bad_alloc'")
    True
    """
    return any(word in words.lower() for word in _WORDS)


class Ceilings:
    """The most rows of a batch, by the bytes of a row.

    What a batch takes grows with the number of rows and with their length, so a ceiling that was found for rows of one
    size holds for larger rows, too, and says nothing about smaller ones.
    """

    def __init__(self, known: Mapping[int, int] | None = None) -> None:
        self.known = dict(known or {})

    def most(self, row_bytes: int, rows: int) -> int:
        """The most rows of this size that may run at once; at most `rows`.

        >>> Ceilings({100: 8, 400: 2}).most(200, 64)
        8
        """
        return min([rows, *(most for known_bytes, most in self.known.items() if known_bytes <= row_bytes)])

    def lower(self, row_bytes: int, most: int) -> None:
        """Record that more than `most` rows of this size did not fit."""
        self.known[row_bytes] = min(most, self.known.get(row_bytes, most))

    def put_back(self, row_bytes: int, most: int | None) -> None:
        """Undo what was found for rows of this size since the ceiling was `most`; None means that there was none."""
        if most is None:
            self.known.pop(row_bytes, None)
        elif row_bytes in self.known:
            self.known[row_bytes] = max(most, self.known[row_bytes])
