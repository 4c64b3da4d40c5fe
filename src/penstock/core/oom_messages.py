"""How frameworks, libraries and dying processes say that there was no memory left."""

from __future__ import annotations

_WORDS = (
    "allocate memory",
    "bad_alloc",
    "can't start new thread",
    "failed to allocate",
    "memoryerror",
    "out of memory",
    "out_of_memory",
    "resource_exhausted",
    "ynnpack operation failed",  # what XLA says on a CPU whatever the library met; seen where memory was limited
)


def speaks_of_memory(words: str) -> bool:
    """Whether an error, or the last words of a process, are about memory.

    >>> speaks_of_memory("terminate called after throwing an instance of 'std::bad_alloc'")
    True
    """
    return any(word in words.lower() for word in _WORDS)
