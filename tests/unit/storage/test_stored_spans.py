"""Spans of a manifest: what a resumed run costs depends on what is left, not on what is done."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.core.records import Span
from penstock.storage.journal import PartRecord
from penstock.storage.ledger import Ledger, committed_records, is_finished
from penstock.storage.manifest import MANIFEST, load_manifest
from penstock.storage.places import place_of
from penstock.storage.stored_spans import StoredSpans, entries_of

from .test_ledger import manifest_of

SPANS = (
    Span(0, 0, 5, ((0, 0, 0, 5), (1, 0, 0, 2))),
    Span(1, 5, 7, (1, 100, 250), "0:3"),
    Span(2, 12, 1, (), None, ((40, 1),)),
)
ROWS = 256
"""Of a span: eight batches of 32."""


def stored(spans: Sequence[Span]) -> StoredSpans:
    return StoredSpans(json.loads(json.dumps(entries_of(spans))))


def test_spans_are_those_that_were_stored() -> None:
    spans = stored(SPANS)
    assert spans == SPANS
    assert list(spans) == list(SPANS)
    assert [spans[index] for index in range(-3, 3)] == [*SPANS, *SPANS]
    assert [spans[first:stop] for first in range(4) for stop in range(5)] == [
        SPANS[first:stop] for first in range(4) for stop in range(5)
    ]
    assert entries_of(spans) == json.loads(json.dumps(entries_of(SPANS)))
    assert stored(SPANS[:2]) != SPANS
    with pytest.raises(IndexError):
        spans[3]


@pytest.mark.parametrize(
    "entries",
    [
        [[0, 0, [], None, None]],
        [[1, 5, [], None, None]],
        [[0, 5, [], None, None], [6, 5, [], None, None]],
        [[0, 5, []]],
        [[0, "5", [], None, None]],
        [[0, 5, "here", None, None]],
        [[0, 5, [], 3, None]],
        [[0, 5, [], None, [[1, 2, 3]]]],
        [None],
    ],
)
def test_entries_that_are_no_spans_are_refused(entries: list[Any]) -> None:
    with pytest.raises(ValueError, match="no job has such spans"):
        StoredSpans(entries)


def test_opening_a_job_of_ten_million_rows_makes_only_the_spans_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, part_spans = 10_000_000 // ROWS, 4096
    (tmp_path / "_penstock").mkdir()
    place = place_of(str(tmp_path))
    parts = tuple(range(0, count, part_spans))
    spans = [Span(index, index * ROWS, ROWS, ((0, index * ROWS, ROWS),)) for index in range(count)]
    whole = manifest_of(parts)
    type(whole)(**{**vars(whole), "spans": spans}).save(place)
    assert (tmp_path / MANIFEST).stat().st_size < 64 * count, "the bytes of a span in the manifest"
    journal = place.journal()
    for part, first in enumerate(parts[:-1]):
        digests = {str(span): "0" * 8 for span in range(first, first + part_spans)}
        journal.append_all([PartRecord(part, 0, first, first + part_spans, 0, 0, {}, 0, digests=digests)])
    journal.close()
    assert (tmp_path / "_penstock" / "journal").stat().st_size < 32 * count, "the bytes of a span in the journal"

    made: list[int] = []
    make = StoredSpans._made

    def noted(spans: StoredSpans, index: int) -> Span:
        made.append(index)
        return make(spans, index)

    monkeypatch.setattr(StoredSpans, "_made", noted)
    manifest = load_manifest(place)
    assert manifest is not None
    assert not is_finished(manifest, committed_records(place, manifest))
    ledger = Ledger(place, manifest)
    try:
        assert len(ledger.pending) == count - parts[-1]
    finally:
        ledger.close()
    assert made == list(range(parts[-1], count))
