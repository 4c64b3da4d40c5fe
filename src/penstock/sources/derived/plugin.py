"""The source of a plugin: an error of its code ends the job in order and says which plugin failed at which file."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from penstock.core.protocols import Source
from penstock.core.records import Block, Fragment, Span, TensorSpec
from penstock.errors import InputError, PenstockError, one_line
from penstock.sources.derived.wrapper import Around


class PluginSource(Around):
    """A source of another package. A `PenstockError` passes; every other error becomes an InputError."""

    def __init__(self, source: Source, name: str) -> None:
        super().__init__(source)
        self._name = name

    def fragments(self) -> Sequence[Fragment]:
        with plugin_errors(self._name, self.paths):
            return self.source.fragments()

    def schema(self) -> dict[str, TensorSpec]:
        with plugin_errors(self._name, self.paths):
            return self.source.schema()

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterable[Span]:
        with plugin_errors(self._name, self.paths):
            yield from self.source.divide(rows_per_span, most_rows)

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        row = span.start
        blocks = self.source.read(span, columns)
        while True:
            with plugin_errors(self._name, self.paths, (self.source, span, row)):
                block = next(blocks, None)
            if block is None:
                return
            yield block
            row += block.rows


@contextmanager
def plugin_errors(name: str, paths: Sequence[str], at: tuple[Source, Span, int] | None = None) -> Iterator[None]:
    """Turn errors of a plugin's code into an InputError; the stack trace of a worker is in the log.

    `at` says what was being read: the source, the span, and the first row that was not returned.
    """
    try:
        yield
    except (PenstockError, MemoryError):
        raise
    except Exception as error:
        where = ", ".join(paths[:3]) + (" …" if len(paths) > 3 else "")
        if at is not None:
            source, span, row = at
            row = min(row, span.stop - 1)  # it may fail behind its last row
            where = f"{source.origin(span, row)} (row {row} or one of the next {span.stop - row - 1})"
        raise InputError(
            f"the plugin {name!r}, which reads the input, failed",
            received=f"{where}: {one_line(error)}",
            hint="is the file damaged? If not, tell the authors of the plugin; --verbose shows the stack trace",
        ) from error
