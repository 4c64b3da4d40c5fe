"""Sources that are made from another source: its rows, seen differently."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from penstock.core.protocols import OfFiles, Source
from penstock.core.records import Extent, Fragment, Span


class Around:
    """What the source inside says of itself (what it keeps, whether it can be read again) holds outside, too."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "source":
            raise AttributeError(name)
        return getattr(self.source, name)

    def fragments(self) -> Sequence[Fragment]:
        return self.source.fragments()

    def extents(self, span: Span, columns: Sequence[str]) -> Iterable[Extent]:
        return self.source.extents(span, columns) if isinstance(self.source, OfFiles) else ()
