"""Base of sources that are made from another source."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Self

from penstock.core.protocols import Source, SourceTraits, with_changes
from penstock.core.records import Array, Block, Extent, Fragment, Span, TensorSpec, Watch


class Around(Source):
    """A source around another one. It passes everything on, except what a subclass overrides."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def around(self, source: Source) -> Self:
        """The same view of another source."""
        return self if source is self.source else with_changes(self, source=source)

    @property
    def traits(self) -> SourceTraits:
        return self.source.traits

    @property
    def is_positional(self) -> bool:
        return self.source.is_positional

    @property
    def keeps(self) -> tuple[str, ...]:
        return self.source.keeps

    @property
    def paths(self) -> Sequence[str]:
        return self.source.paths

    def remarks(self) -> list[str]:
        return self.source.remarks()

    def fragments(self) -> Sequence[Fragment]:
        return self.source.fragments()

    def schema(self) -> dict[str, TensorSpec]:
        return self.source.schema()

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterable[Span]:
        return self.source.divide(rows_per_span, most_rows)

    def pick(self, numbers: Array, start: int) -> Span:
        return self.source.pick(numbers, start)

    def origin(self, span: Span, row: int) -> str:
        return self.source.origin(span, row)

    def extents(self, span: Span, columns: Sequence[str]) -> Iterable[Extent]:
        return self.source.extents(span, columns)

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        return self.source.read(span, columns)

    def release(self, span: Span) -> None:
        self.source.release(span)

    def close(self) -> None:
        self.source.close()

    def fitted_to(self, inputs: Sequence[TensorSpec]) -> Self:
        return self.around(self.source.fitted_to(inputs))

    def with_floats(self, columns: Sequence[str]) -> Self:
        return self.around(self.source.with_floats(columns))

    def watched_by(self, watch: Watch) -> Self:
        return self.around(self.source.watched_by(watch))
