"""The files of a job that was appended to: each append has a source of its own, and all look like one input."""

import itertools
import operator
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

from penstock.core.protocols import Source, SourceTraits, with_changes
from penstock.core.records import Block, Extent, Fragment, Span, TensorSpec, Watch
from penstock.sources.derived.selection import Renumbered
from penstock.sources.derived.wrapper import Around


class Generations(Around):
    """The files that a job began with, and those of each append, one source for each, in this order.

    `source` is the last of them: it says what columns there are, and `divide` divides its rows only. Every span is read
    from the source that it was made from, whose rows are numbered from 0.

    Args:
        sources: One for each generation.
        first_rows: The number of the first row of each in the whole job.
        first_span: The number of the first span of the last one.
    """

    def __init__(self, sources: Sequence[Source], first_rows: Sequence[int], first_span: int) -> None:
        super().__init__(sources[-1])
        self._before: tuple[Source | None, ...] = tuple(sources[:-1])
        self._first_rows = tuple(first_rows)
        self._first_span = first_span
        self._watch: Watch | None = None
        self._changes: tuple[Callable[[Any], Source], ...] = ()
        """The changes made to the last source. An earlier source gets them before it is read, and not sooner, because a
        change may open all files of a source."""
        self._ready: dict[int, Source] = {}
        """The sources of earlier generations that have these changes already."""

    @property
    def traits(self) -> SourceTraits:
        return replace(self.source.traits, reads_at_random=False)

    def only(self, generations: Collection[int]) -> Self:
        """A copy for a run that reads these generations and the last one, without the paths of the others."""
        kept = (each if number in generations else None for number, each in enumerate(self._before))
        return with_changes(self, _before=tuple(kept))

    def fragments(self) -> Sequence[Fragment]:
        every = (*(each for each in self._before if each is not None), self.source)
        return list(itertools.chain.from_iterable(each.fragments() for each in every))

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterator[Span]:
        for span in self.source.divide(rows_per_span, most_rows):
            yield replace(span, index=self._first_span + span.index, start=self._first_rows[-1] + span.start)

    def divide_all(self, divisions: Sequence[tuple[int, int]], first_spans: Sequence[int]) -> Iterator[Span]:
        """The spans of all generations, each divided as it was."""
        for number, source in enumerate((*self._before, self.source)):
            assert source is not None, f"generation {number} was left out of this run"
            for span in source.divide(*divisions[number]):
                index, start = first_spans[number] + span.index, self._first_rows[number] + span.start
                yield replace(span, index=index, start=start)

    def origin(self, span: Span, row: int) -> str:
        source, inner = self._inside(span)
        return source.origin(inner, row - span.start + inner.start)

    def extents(self, span: Span, columns: Sequence[str]) -> Iterable[Extent]:
        source, inner = self._inside(span)
        return source.extents(inner, columns)

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        source, inner = self._inside(span)
        if self._watch is not None:
            source = source.watched_by(Renumbered(self._watch, [(inner.start, inner.rows)], span.start))
        shift = span.start - inner.start
        for block in source.read(inner, columns):
            failures = tuple(replace(failure, row=failure.row + shift) for failure in block.failures)
            yield replace(block, start=block.start + shift, failures=failures)

    def release(self, span: Span) -> None:
        source, inner = self._inside(span)
        source.release(inner)

    def fitted_to(self, inputs: Sequence[TensorSpec]) -> Self:
        return self._changed(operator.methodcaller("fitted_to", tuple(inputs)))

    def with_floats(self, columns: Sequence[str]) -> Self:
        return self._changed(operator.methodcaller("with_floats", tuple(columns)))

    def watched_by(self, watch: Watch) -> Self:
        return with_changes(self, _watch=watch)

    def _changed(self, change: Callable[[Any], Source]) -> Self:
        return with_changes(self, source=change(self.source), _changes=(*self._changes, change), _ready={})

    def _inside(self, span: Span) -> tuple[Source, Span]:
        """The source that a span was made from, and the span with that source's own row numbers."""
        number = bisect_right(self._first_rows, span.start) - 1
        inner = replace(span, start=span.start - self._first_rows[number])
        if number == len(self._before):
            return self.source, inner
        if number not in self._ready:
            source = self._before[number]
            assert source is not None, f"generation {number} was left out of this run"
            for change in self._changes:
                source = change(source)
            self._ready[number] = source
        return self._ready[number], inner
