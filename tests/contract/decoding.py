"""Decoding pictures as a loader does, for tests of images only."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from penstock.core.deferred import Deferred
from penstock.core.protocols import Source
from penstock.core.records import Array, Span

from .picture import SIZE


def decode_span(source: Source, span: Span) -> tuple[Array, dict[int, str]]:
    """The pictures of a span and the reasons of those that failed; that blocks follow each other is checked."""
    pictures: list[Array] = []
    failed: dict[int, str] = {}
    position = span.start
    for block in source.read(span, ["image"]):
        assert block.start == position
        column = block.columns["image"]
        assert isinstance(column, Deferred)
        assert len(column) == block.rows
        out = np.full((block.rows, *SIZE, 3), 7, np.uint8)
        announced: list[int] = []
        bad = column.fill(out, announced.append)
        assert announced == list(range(block.rows))
        failed |= {block.start + place: reason for place, reason in bad.items()}
        failed |= {failure.row: failure.reason for failure in block.failures}
        pictures.append(out)
        position += block.rows
    assert position == span.stop
    return np.concatenate(pictures), failed


def decode_all(source: Source, spans: Iterable[Span]) -> tuple[Array, dict[int, str]]:
    """All pictures, read in the order given and put into the order of the input."""
    found = {span.start: decode_span(source, span) for span in spans}
    failed = {row: reason for _, reasons in found.values() for row, reason in reasons.items()}
    return np.concatenate([found[start][0] for start in sorted(found)]), failed
