"""The spans of a manifest as they are stored: each is made when it is asked for.

Of ten million finished rows few spans are left to predict, but all of them are in the manifest.
"""

from collections.abc import Iterator, Sequence
from typing import Any, overload

from penstock.core.records import Span


class StoredSpans(Sequence[Span]):
    """Spans behind the entries of a JSON document: start, rows, locator, group, numbers.

    Raises:
        ValueError: An entry is none of a span, or does not begin where the one before ends.
    """

    def __init__(self, entries: Sequence[Sequence[Any]]) -> None:
        self._entries = entries
        row = 0
        for index, entry in enumerate(entries):
            if not _is_span(entry, row):
                raise ValueError(f"no job has such spans: number {index}, {entry!s:.60}")
            row += entry[1]

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> Span: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Span, ...]: ...

    def __getitem__(self, index: int | slice) -> Span | tuple[Span, ...]:
        if isinstance(index, slice):
            return tuple(map(self._made, range(*index.indices(len(self)))))
        return self._made(range(len(self))[index])

    def __iter__(self) -> Iterator[Span]:
        return map(self._made, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(Span.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def entries(self) -> Sequence[Sequence[Any]]:
        """What `entries_of` gives for these spans."""
        return self._entries

    def _made(self, index: int) -> Span:
        start, rows, locator, group, numbers = self._entries[index]
        return Span(index, start, rows, nested_tuples(locator), group, nested_tuples(numbers))


def _is_span(entry: Any, row: int) -> bool:
    """Whether an entry is that of a span that begins at a row."""
    if type(entry) is not list or len(entry) != 5:
        return False
    start, rows, locator, group, numbers = entry
    return (
        type(start) is int
        and start == row
        and type(rows) is int
        and rows > 0
        and type(locator) is list
        and (group is None or type(group) is str)
        and (numbers is None or _are_runs(numbers))
    )


def _are_runs(numbers: Any) -> bool:
    return type(numbers) is list and all(
        type(run) is list and len(run) == 2 and type(run[0]) is int and type(run[1]) is int for run in numbers
    )


def entries_of(spans: Sequence[Span]) -> Sequence[Sequence[Any]]:
    """Spans as plain JSON."""
    if isinstance(spans, StoredSpans):
        return spans.entries()
    return [[span.start, span.rows, span.locator, span.group, span.numbers] for span in spans]


def nested_tuples(value: Any) -> Any:
    """Lists as tuples, also inside each other.

    >>> nested_tuples([1, [2, [3]]])
    (1, (2, (3,)))
    """
    return tuple(map(nested_tuples, value)) if isinstance(value, list) else value
