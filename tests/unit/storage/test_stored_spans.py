"""Spans of a manifest: what a resumed run costs depends on what is left, not on what is done."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.records import Span
from penstock.errors import OutputError
from penstock.storage import stored_spans
from penstock.storage.journal import PartRecord
from penstock.storage.ledger import Ledger, committed_records, is_finished
from penstock.storage.manifest import MANIFEST, load_manifest
from penstock.storage.places import place_of
from penstock.storage.stored_spans import StoredSpans, as_json, store

from .test_ledger import manifest_of

SPANS = (
    Span(0, 0, 5, ((0, 0, 0, 5), (1, 0, 0, 2))),
    Span(1, 5, 7, (1, 100, 250), "0:3"),
    Span(2, 12, 1, (), None, ((40, 1),)),
)
ROWS = 256
"""Of a span: eight batches of 32."""


def stored(spans: Sequence[Span]) -> StoredSpans:
    return StoredSpans(json.loads(json.dumps(as_json(spans))))


def test_spans_are_those_that_were_stored() -> None:
    spans = stored(SPANS)
    assert spans == SPANS
    assert list(spans) == list(SPANS)
    assert [spans[index] for index in range(-3, 3)] == [*SPANS, *SPANS]
    assert [spans[first:stop] for first in range(4) for stop in range(5)] == [
        SPANS[first:stop] for first in range(4) for stop in range(5)
    ]
    assert as_json(spans) == json.loads(json.dumps(as_json(SPANS)))
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


@pytest.fixture
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of three spans, from the fifth span on."""
    monkeypatch.setattr(stored_spans, "MOST_LISTED", 4)
    monkeypatch.setattr(stored_spans, "_BLOCK", 3)


LOCATORS = st.recursive(
    st.none() | st.integers() | st.text(max_size=3) | st.booleans(),
    lambda some: st.lists(some, max_size=3),
    max_leaves=4,
)


@pytest.mark.usefixtures("few_are_many")
@given(
    rows=st.lists(st.integers(1, 9), max_size=12),
    locators=st.lists(st.lists(LOCATORS, max_size=3), min_size=12, max_size=12)
    | st.integers(-3, 3).map(lambda step: [[[0, step * n], n, "x"] for n in range(12)]),
    groups=st.lists(st.none() | st.sampled_from("ab"), min_size=12, max_size=12),
    numbers=st.none() | st.just(((7, 1), (9, 2))),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_many_spans_are_packed_and_are_the_same(
    rows: list[int], locators: list[list[Any]], groups: list[str | None], numbers: tuple[tuple[int, int], ...] | None
) -> None:
    firsts = itertools.accumulate(rows, initial=0)
    fields = enumerate(zip(firsts, rows, locators, groups, strict=False))
    spans = tuple(
        Span(index, first, count, stored_spans.nested_tuples(locator), group, numbers)
        for index, (first, count, locator, group) in fields
    )
    kept = store(iter(spans))
    assert isinstance(kept, StoredSpans) == (len(spans) > 4)
    again = StoredSpans(json.loads(json.dumps(as_json(kept))))
    assert again == spans
    assert len(again) == len(spans)
    assert again[2:9] == spans[2:9]
    assert again[-2:] == spans[-2:]


@pytest.mark.usefixtures("few_are_many")
def test_packed_spans_that_are_damaged_are_told_as_such() -> None:
    spans = store(Span(index, 5 * index, 5, (index,)) for index in range(9))
    document = as_json(spans)
    swapped = [document["blocks"][0][:2] + ["AAAA"], *document["blocks"][1:]]
    with pytest.raises(OutputError, match="the manifest is damaged"):
        StoredSpans({"blocks": swapped})[0]
    shorter = [[2, 10, document["blocks"][0][2]], *document["blocks"][1:]]
    with pytest.raises(OutputError, match="the manifest is damaged"):
        StoredSpans({"blocks": shorter})[1]
    for block in ([0, 0, ""], [3, 2, ""], [1, 1, None], ["1", 1, ""]):
        with pytest.raises(ValueError, match="no job has such spans"):
            StoredSpans({"blocks": [block]})


def test_many_regular_spans_take_few_bytes_and_none_is_looked_at_when_a_job_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 3 << 16
    (tmp_path / "_penstock").mkdir()
    place = place_of(str(tmp_path))
    spans = store(Span(index, index * ROWS, ROWS, (index // 64, index % 64 * ROWS, ROWS)) for index in range(count))
    whole = manifest_of(tuple(range(0, count, 64)))
    type(whole)(**{**vars(whole), "spans": spans}).save(place)
    assert (tmp_path / MANIFEST).stat().st_size < count, "less than a byte a span"
    looked: list[int] = []
    unpacked = StoredSpans._unpacked

    def noted(spans: StoredSpans, block: int) -> Any:
        looked.append(block)
        return unpacked(spans, block)

    monkeypatch.setattr(StoredSpans, "_unpacked", noted)
    manifest = load_manifest(place)
    assert manifest is not None
    ledger = Ledger(place, manifest)
    try:
        assert len(ledger.pending_pieces()) == count // 64
    finally:
        ledger.close()
    assert looked == []
    assert manifest.rows == count * ROWS
    assert manifest.spans[count // 2].start == count // 2 * ROWS


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
