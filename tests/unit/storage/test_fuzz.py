"""Whatever is in a journal or a manifest, reading it ends well: with what penstock wrote, or with an OutputError."""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.errors import OutputError
from penstock.storage.journal import Journal, decode_record, encode_record, read_journal
from penstock.storage.ledger import is_finished, planned_records
from penstock.storage.manifest import Manifest, load_manifest
from penstock.storage.places import place_of
from tests.unit.storage.test_journal import RECORDS
from tests.unit.storage.test_manifest import MANIFEST

CASES = int(os.environ.get("PENSTOCK_FUZZ_CASES", "60"))
"""For each test; more of them are for a longer search."""
JOURNAL = b"".join(map(encode_record, RECORDS))
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def edits(content: bytes) -> st.SearchStrategy[bytes]:
    """The content with some bytes overwritten, cut out or put in."""
    places = st.integers(0, len(content) - 1)
    edit = st.tuples(places, st.integers(0, 40), st.binary(max_size=40))

    def apply(chosen: list[tuple[int, int, bytes]]) -> bytes:
        edited = content
        for at, removed, put in chosen:
            edited = edited[:at] + put + edited[at + removed :]
        return edited

    return st.lists(edit, min_size=1, max_size=4).map(apply)


def saved() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "_penstock").mkdir()
        MANIFEST.save(place_of(folder))
        return Path(folder, "_penstock", "manifest.json").read_bytes()


SAVED = saved()
DOCUMENT: dict[str, Any] = {name: value for name, value in json.loads(SAVED).items() if name != "checksum"}


def sealed(document: dict[str, Any]) -> bytes:
    """A manifest with the right checksum, whatever is in it."""
    body = json.dumps(document).encode()[1:]
    return b'{"checksum": "%08x", %s' % (zlib.crc32(body), body)


def loaded(content: bytes) -> Manifest | None:
    """What is read of a manifest; None where it is refused."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "_penstock").mkdir()
        Path(folder, "_penstock", "manifest.json").write_bytes(content)
        with suppress(OutputError):
            return load_manifest(place_of(folder))
        return None


@settings(max_examples=CASES)
@given(edits(JOURNAL))
def test_edited_journal_gives_records_that_were_written_and_no_others(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "journal"))
        Path(path).write_bytes(content)
        found = read_journal(path)[0]
        assert all(record in RECORDS for record in found)
        journal = Journal(path)
        journal.append_all([RECORDS[0]])
        journal.close()
        assert journal.records == read_journal(path)[0] == [*found, RECORDS[0]]
        assert read_journal(path)[1] == []


@settings(max_examples=CASES)
@given(st.binary(max_size=400))
@example(b"\n")
def test_any_bytes_are_a_journal_without_records(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal")
        path.write_bytes(content)
        assert read_journal(str(path))[0] == []
        assert bool(read_journal(str(path))[1]) == bool(content)


@settings(max_examples=CASES)
@given(st.dictionaries(st.sampled_from([*vars(RECORDS[0]), "other"]), anything), st.sampled_from(RECORDS))
def test_record_of_any_content_with_the_right_checksum_is_refused_or_can_be_worked_with(
    fields: dict[str, Any], record: Any
) -> None:
    body = json.dumps(vars(record) | fields).encode()
    decoded = decode_record(b"%08x %s\n" % (zlib.crc32(body), body))
    if decoded is not None:
        is_finished(MANIFEST, planned_records([*RECORDS, decoded], MANIFEST))
        assert decode_record(encode_record(decoded)) == decoded


@settings(max_examples=CASES)
@given(edits(SAVED))
def test_edited_manifest_is_refused(content: bytes) -> None:
    manifest = loaded(content)
    assert manifest is None or content == SAVED


@settings(max_examples=CASES)
@given(st.binary(max_size=200) | anything.map(lambda value: json.dumps(value).encode()))
@example(b"[" * 100_000)
@example(b'{"penstock_manifest": ' * 50_000)
@example(b"9" * 10_000)
def test_anything_in_the_place_of_a_manifest_is_refused(content: bytes) -> None:
    assert loaded(content) is None


@settings(max_examples=CASES)
@given(
    st.dictionaries(st.sampled_from(list(DOCUMENT)), anything, min_size=1, max_size=3),
    st.sampled_from([5, 6, 7]),
)
@example({"spans": []}, 5)
@example({"parts": []}, 5)
@example({"parts": [0, 0]}, 5)
@example({"parts": [0, 3]}, 5)
@example({"streamed": [0, 0]}, 5)
@example({"recipe": DOCUMENT["recipe"] | {"batch_size": 0}}, 5)
@example({"recipe": DOCUMENT["recipe"] | {"batch_size": "32"}}, 6)
@example({"spans": [[0, 5, [], None, None], [6, 7, [], None, None]]}, 6)
@example({"kinds": {"cpu": {}}}, 7)
@example({"kinds": []}, 7)
@example({"bindings": [DOCUMENT["bindings"][0] | {"columns": 5}]}, 5)
def test_manifest_of_any_fields_is_refused_or_can_be_worked_with(fields: dict[str, Any], version: int) -> None:
    document = DOCUMENT | fields | {"penstock_manifest": version}
    manifest = loaded(sealed(document) if version >= 6 else json.dumps(document).encode())
    if manifest is not None:
        assert manifest.rows == 13
        is_finished(manifest, planned_records(RECORDS, manifest))
        assert manifest.parts[0] == 0
        assert manifest.recipe.batch_size > 0


def test_the_edits_that_people_make_are_refused() -> None:
    for name, value in (("spans", []), ("parts", []), ("max_failures", 1), ("request", {})):
        assert loaded(json.dumps(json.loads(SAVED) | {name: value}).encode()) is None, name
    assert loaded(SAVED) == MANIFEST
    assert loaded(json.dumps(json.loads(SAVED)).encode()) == MANIFEST, "the same content, put down again"
    assert loaded(sealed(DOCUMENT | {"penstock_manifest": 8})) is None
