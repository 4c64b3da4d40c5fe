"""`.toy` files: a number on each line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from penstock.core.kinds import SourceFormat
from penstock.core.records import Block, Span, TensorSpec
from penstock.sources.files.file_source import FileSource, origin_of_run, spans_of_files


class ToyFiles(FileSource):
    """Toy files with one column, `x`."""

    def schema(self) -> dict[str, TensorSpec]:
        return {"x": TensorSpec("x", "float32", ())}

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterator[Span]:
        return spans_of_files((len(_lines(path)) for path in self.paths), rows_per_span)

    def origin(self, span: Span, row: int) -> str:
        return origin_of_run(self.paths, span.start, span.locator, row)

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        start = span.start
        for file, first, rows in span.locator:
            values = np.array(_lines(self.paths[file])[first : first + rows], np.float32)
            yield Block(start, rows, {"x": values})
            start += rows


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="ascii").split()


FORMAT = SourceFormat((".toy",), lambda paths, reading: ToyFiles(paths))
