"""The spans of a manifest in their stored form: each span is made when it is needed.

When ten million rows are finished, few spans are left to predict, but the manifest still has all spans. Where there are
many, it does not list them one by one: it has packed blocks of spans, column by column, as differences. Spans follow
each other regularly, so that a packed one takes a byte or two, and none is unpacked when a job is opened.
"""

import base64
import binascii
import bisect
import functools
import itertools
import json
import operator
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, overload

from penstock.core.records import Span
from penstock.errors import OutputError

MOST_LISTED = 1 << 13
"""The most spans that a manifest lists one by one."""
_BLOCK = 1 << 12
_KEPT_BLOCKS = 16
_Entry = Sequence[Any]
"""Start, rows, locator, group, numbers."""


class StoredSpans(Sequence[Span]):
    """Spans behind a JSON document: a list of entries, or packed blocks, each with its number of spans and rows.

    Raises:
        ValueError: An entry is not that of a span, or does not begin where the one before ends.
    """

    def __init__(self, document: Any) -> None:
        self._document = document
        self._entries: Callable[[int], Sequence[_Entry]]
        if isinstance(document, dict):
            counts = [_checked(block)[0] for block in document["blocks"]]
            self._rows = [0, *itertools.accumulate(block[1] for block in document["blocks"])]
            self._entries = functools.lru_cache(_KEPT_BLOCKS)(self._unpacked)
        else:
            _check_entries(document)
            counts = [len(document)] if document else []
            self._entries = lambda block: document
        self._firsts = list(itertools.accumulate(counts, initial=0))

    def __len__(self) -> int:
        return self._firsts[-1]

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

    def as_json(self) -> Any:
        """The document."""
        return self._document

    def _made(self, index: int) -> Span:
        block = bisect.bisect_right(self._firsts, index) - 1
        start, rows, locator, group, numbers = self._entries(block)[index - self._firsts[block]]
        return Span(index, start, rows, nested_tuples(locator), group, nested_tuples(numbers))

    def _unpacked(self, block: int) -> Sequence[_Entry]:
        count, rows, packed = self._document["blocks"][block]
        try:
            columns = json.loads(zlib.decompress(base64.b64decode(packed)))
            sizes, *others = (list(_values(column, count)) for column in columns)
            starts = itertools.accumulate(sizes, initial=self._rows[block])
            entries = list(zip(starts, sizes, *others, strict=False))
            if not len(entries) == len(sizes) == count or len(others) != 3 or sum(sizes) != rows or min(sizes) < 1:
                raise ValueError("it holds other spans than it says")
        except (ValueError, TypeError, KeyError, IndexError, zlib.error, binascii.Error) as error:
            raise OutputError("the manifest is damaged", received=f"block {block} of its spans: {error}") from error
        return entries


def store(spans: Iterable[Span]) -> StoredSpans | tuple[Span, ...]:
    """Spans as a manifest keeps them: many of them packed, so that they are never all in the memory."""
    spans = iter(spans)
    listed = tuple(itertools.islice(spans, MOST_LISTED + 1))
    if len(listed) <= MOST_LISTED:
        return listed
    rest = itertools.chain(listed, spans)
    del listed
    return StoredSpans({"blocks": list(map(_packed, iter(lambda: list(itertools.islice(rest, _BLOCK)), [])))})


def as_json(spans: Sequence[Span]) -> Any:
    """Spans as plain JSON."""
    if isinstance(spans, StoredSpans):
        return spans.as_json()
    return [[span.start, span.rows, span.locator, span.group, span.numbers] for span in spans]


def _packed(spans: Sequence[Span]) -> list[Any]:
    fields = map(operator.attrgetter, ("rows", "locator", "group", "numbers"))
    columns = [_column(list(map(field, spans))) for field in fields]
    body = zlib.compress(json.dumps(columns, separators=(",", ":")).encode(), 6)
    return [len(spans), sum(span.rows for span in spans), base64.b64encode(body).decode()]


def _column(values: Sequence[Any]) -> list[Any]:
    """Values of one kind: whole numbers as differences; sequences of one length as a column for each place."""
    kinds = set(map(type, values))
    if kinds == {int}:
        return ["differences", values[0], *map(operator.sub, values[1:], values)]
    if kinds <= {tuple, list} and len(set(map(len, values))) == 1:
        return ["columns", *map(_column, zip(*values, strict=True))]
    if len(set(map(repr, values))) == 1:
        return ["same", values[0]]
    return ["each", *values]


def _values(column: Sequence[Any], count: int) -> Iterable[Any]:
    """What `_column` was given, with tuples for lists."""
    how, *content = column
    if how == "differences":
        return itertools.accumulate(content)
    if how == "columns":
        return zip(*(_values(each, count) for each in content), strict=True) if content else itertools.repeat((), count)
    if how == "same":
        return itertools.repeat(nested_tuples(content[0]), count)
    return map(nested_tuples, content)


def _checked(block: Any) -> tuple[int, int, str]:
    count, rows, packed = block
    if type(count) is not int or type(rows) is not int or not 0 < count <= rows or type(packed) is not str:
        raise ValueError(f"no job has such spans: block {block!s:.60}")
    return count, rows, packed


def _check_entries(entries: Sequence[_Entry]) -> None:
    row = 0
    for index, entry in enumerate(entries):
        if not _is_span(entry, row):
            raise ValueError(f"no job has such spans: number {index}, {entry!s:.60}")
        row += entry[1]


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


def nested_tuples(value: Any) -> Any:
    """Lists as tuples, also inside each other.

    >>> nested_tuples([1, [2, [3]]])
    (1, (2, (3,)))
    """
    return tuple(map(nested_tuples, value)) if isinstance(value, list) else value
