"""The journal: whole records or nothing."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.storage.journal import Journal, PartRecord, failed_by_node, lean, read_journal, valid_records

RECORDS = [
    PartRecord(0, 0, 0, 2, 10, 0, {"part-00000000.parquet": 1234}, 0),
    PartRecord(1, 0, 2, 3, 4, 1, {"row/part-00000001.npy": 99, "ä/part-00000001.npy": 7}, 120),
    PartRecord(1, 1, 3, 5, 0, 9, {}, 999),
]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "journal")


@pytest.fixture
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def write(path: str, records: list[PartRecord]) -> list[int]:
    """Write a journal; returns where each record ends."""
    ends: list[int] = []
    journal = Journal(path)
    for record in records:
        journal.append_all([record])
        ends.append(os.path.getsize(path))
    journal.close()
    return ends


def reopen(path: str) -> list[PartRecord]:
    journal = Journal(path)
    journal.close()
    return journal.records


def test_records_are_read_back(path: str) -> None:
    write(path, RECORDS)
    assert reopen(path) == read_journal(path)[0] == RECORDS


def test_record_of_a_node_has_its_name_and_others_have_not_a_byte_of_it(path: str) -> None:
    by_nodes = [replace(record, node=node) for record, node in zip(RECORDS, ("b", "a", "b"), strict=True)]
    write(path, [*by_nodes, RECORDS[2]])
    assert reopen(path) == [*by_nodes, RECORDS[2]]
    assert failed_by_node(reopen(path)) == {"b": 9, "a": 1}
    with open(path) as journal:
        assert ["node" in line for line in journal] == [True, True, True, False]


def test_records_that_are_appended_together_are_read_back(path: str) -> None:
    journal = Journal(path)
    journal.append_all(RECORDS)
    journal.close()
    assert reopen(path) == RECORDS


@pytest.mark.parametrize(
    "digests",
    [
        {"9": "0a", "10": "1b", "11": "--"},
        {"9": "0a", "11": "1b"},
        {"9": "0a", "10": "1b1b"},
        {"8": "0a", "9": "1b"},
        {},
    ],
)
def test_digests_are_the_same_in_less_memory(path: str, digests: dict[str, str]) -> None:
    record = replace(RECORDS[0], first_span=9, stop_span=12, digests=digests)
    write(path, [record, lean(record)])
    assert reopen(path) == [record, record]
    found = reopen(path)[0].digests
    assert dict(found) == digests
    assert [found.get(key) for key in ("8", "9", "10", "11", "12", "x", "-1")] == [
        digests.get(key) for key in ("8", "9", "10", "11", "12", "x", "-1")
    ]


def test_new_journal_is_empty(path: str) -> None:
    assert reopen(path) == []
    assert os.path.getsize(path) == 0


def test_absent_journal_has_no_records_and_is_not_made_by_looking(path: str) -> None:
    assert read_journal(path)[0] == []
    assert not os.path.exists(path)


def test_appended_record_is_on_the_disk_when_append_returns(path: str) -> None:
    journal = Journal(path)
    journal.append_all([RECORDS[0]])
    assert read_journal(path)[0] == [RECORDS[0]]
    journal.close()


@pytest.mark.usefixtures("no_waiting_for_the_disk")
def test_torn_tail_is_cut_to_a_whole_record_at_every_byte(path: str) -> None:
    ends = write(path, RECORDS)
    raw = Path(path).read_bytes()
    assert ends[-1] == len(raw)
    for length in range(len(raw) + 1):
        Path(path).write_bytes(raw[:length])
        whole = sum(end <= length for end in ends)
        assert read_journal(path)[0] == RECORDS[:whole]
        assert os.path.getsize(path) == length, "looking must not touch the file"
        assert reopen(path) == RECORDS[:whole]
        assert os.path.getsize(path) == ([0, *ends][whole])


@pytest.mark.usefixtures("no_waiting_for_the_disk")
def test_journal_that_was_cut_goes_on(path: str) -> None:
    ends = write(path, RECORDS)
    raw = Path(path).read_bytes()
    for length in range(ends[0] + 1, ends[1]):
        Path(path).write_bytes(raw[:length])
        journal = Journal(path)
        journal.append_all([RECORDS[2]])
        journal.close()
        assert read_journal(path)[0] == [RECORDS[0], RECORDS[2]]


@pytest.mark.usefixtures("no_waiting_for_the_disk")
@pytest.mark.parametrize("change", [0x01, 0x20, 0xFF])
def test_altered_byte_takes_its_record_and_no_other(path: str, change: int) -> None:
    ends = write(path, RECORDS)
    raw = Path(path).read_bytes()
    for position in range(len(raw)):
        altered = bytearray(raw)
        altered[position] ^= change
        Path(path).write_bytes(altered)
        hit = sum(end <= position for end in ends)
        lost = {hit, hit + 1} if position == ends[hit] - 1 else {hit}  # without its end, a line runs into the next
        kept = [record for number, record in enumerate(RECORDS) if number not in lost]
        assert read_journal(path)[1]
        assert read_journal(path)[0] == reopen(path) == kept
        assert read_journal(path)[1] == []
        assert read_journal(path)[0] == kept, "what was lost is gone from the file, too"


def test_piece_whose_predecessor_was_lost_does_not_count() -> None:
    assert held([spans(0, 0, 2), spans(0, 3, 4), spans(1, 4, 6)]) == [(0, 0, 2), (1, 4, 6)]


def test_altered_checksum_in_other_letters_is_not_the_checksum(path: str) -> None:
    write(path, RECORDS)
    raw = Path(path).read_bytes()
    Path(path).write_bytes(raw[:8].upper() + raw[8:] if raw[:8].upper() != raw[:8] else b"ffffffff" + raw[8:])
    assert read_journal(path)[0] == RECORDS[1:]


@pytest.mark.parametrize(
    "garbage",
    [b"\0" * 512, b"\n", b"\n\n\n", b"not a record\n", b"\xff\xfe\n" * 3, b"00000000 \n", b"a3a6bf43 {}\n"],
    ids=["zeros", "newline", "newlines", "text", "bytes", "checksum of nothing", "record without fields"],
)
def test_garbage_after_the_records_is_cut(path: str, garbage: bytes) -> None:
    ends = write(path, RECORDS)
    with open(path, "ab") as file:
        file.write(garbage)
    assert read_journal(path)[0] == reopen(path) == RECORDS
    assert os.path.getsize(path) == ends[-1]


def held(records: list[PartRecord]) -> list[tuple[int, int, int]]:
    """(part, first span, stop span) of the records that are valid."""
    return [(record.part, record.first_span, record.stop_span) for record in valid_records(records)]


def spans(part: int, first: int, stop: int) -> PartRecord:
    return PartRecord(part, 0, first, stop, 0, 0, {}, 0)


def test_valid_records_are_in_the_order_of_the_parts_whatever_order_they_were_committed_in() -> None:
    assert held([spans(2, 6, 9), spans(0, 0, 2), spans(1, 3, 6), spans(0, 2, 3)]) == [
        (0, 0, 2), (0, 2, 3), (1, 3, 6), (2, 6, 9),
    ]  # fmt: skip


def test_record_without_spans_takes_back_its_part_from_there_on() -> None:
    pieces = [spans(0, 0, 2), spans(1, 3, 6), spans(0, 2, 3)]
    assert held([*pieces, spans(0, 2, 2)]) == [(0, 0, 2), (1, 3, 6)]
    assert held([*pieces, spans(0, 0, 0)]) == [(1, 3, 6)]
    assert held([*pieces, spans(0, 0, 0), spans(0, 0, 3)]) == [(0, 0, 3), (1, 3, 6)]


def test_record_of_a_whole_part_takes_the_place_of_its_pieces() -> None:
    assert held([spans(0, 0, 2), spans(1, 3, 6), spans(0, 2, 3), spans(0, 0, 3)]) == [(0, 0, 3), (1, 3, 6)]


def test_two_journals_of_the_same_records_have_the_same_bytes(path: str, tmp_path: Path) -> None:
    write(path, RECORDS)
    write(str(tmp_path / "other"), reopen(path))
    assert Path(path).read_bytes() == (tmp_path / "other").read_bytes()


def test_batch_sizes_that_memory_forced_are_recorded_and_other_records_stay_as_they_were(path: str) -> None:
    records = [RECORDS[0], replace(RECORDS[1], reduced={"2": 16})]
    write(path, records)
    assert reopen(path) == records
    plain, reduced = Path(path).read_bytes().splitlines()
    assert b"reduced" not in plain, "a journal of before can be cut where it always could"
    assert b'"reduced": {"2": 16}' in reduced
