"""Text sources: a broken row is named and takes no other row down, and every other row stays in its place."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.columns import OPAQUE, to_arrow
from penstock.core.protocols import Source
from penstock.core.records import STRING, RowFailure
from penstock.errors import InputError
from penstock.options.records import ReadOptions
from penstock.sources.tables import csv as csv_module
from penstock.sources.tables import jsonl as jsonl_module
from penstock.sources.tables.csv import CsvFiles
from penstock.sources.tables.jsonl import JsonLines

from .reading import read_span

Read = tuple[list[dict[str, Any]], dict[int, RowFailure]]


def rows_of(source: Source, rows_per_span: int, columns: list[str] | None = None) -> Read:
    """Every row in order, and the failures by row."""
    names = columns or list(source.schema())
    rows: list[dict[str, Any]] = []
    failures: dict[int, RowFailure] = {}
    for span in source.divide(rows_per_span):
        read, failed = read_span(source, span, names)
        rows += [dict(zip(names, values, strict=True)) for values in zip(*read.values(), strict=True)]
        for failure in failed:
            assert failure.row not in failures
            failures[failure.row] = failure
    return rows, failures


@pytest.fixture(params=[1, 2, 1000], ids=["1 a span", "2 a span", "all in one span"])
def rows_per_span(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def csv(tmp_path: Path, rows_per_span: int) -> Callable[..., Read]:
    def read(raw: bytes | str, columns: list[str] | None = None, suffix: str = ".csv") -> Read:
        path = tmp_path / f"rows{suffix}"
        path.write_bytes(raw if isinstance(raw, bytes) else raw.encode())
        return rows_of(CsvFiles([str(path)]), rows_per_span, columns)

    return read


@pytest.fixture
def jsonl(tmp_path: Path, rows_per_span: int) -> Callable[..., Read]:
    def read(raw: bytes | str, columns: list[str] | None = None) -> Read:
        path = tmp_path / "rows.jsonl"
        path.write_bytes(raw if isinstance(raw, bytes) else raw.encode())
        return rows_of(JsonLines([str(path)]), rows_per_span, columns)

    return read


pytestmark = pytest.mark.timeout(10)  # a parser that halves nothing for ever must fail, not hang

READ_IDS = """
import json, sys
from penstock.sources.tables.jsonl import JsonLines

source = JsonLines([sys.argv[1]])
blocks = [block for span in source.divide(int(sys.argv[2])) for block in source.read(span, ["id"])]
ids = [value for block in blocks for value in block.columns["id"].to_pylist()]
print(json.dumps({"ids": ids, "failed": [failure.row for block in blocks for failure in block.failures]}))
"""


def ids(read: Read) -> list[Any]:
    return [row["id"] for row in read[0]]


class TestCsv:
    @pytest.mark.parametrize("broken", ["3", "3,c,extra", "3,c,extra,more", '3,"c",', "just words"], ids=str)
    def test_record_with_another_number_of_fields_fails_alone(self, csv: Callable[..., Read], broken: str) -> None:
        rows, failures = csv(f"id,word\n1,a\n2,b\n{broken}\n4,d\n5,e\n")
        assert list(failures) == [2]
        assert [row for i, row in enumerate(rows) if i != 2] == [
            {"id": 1, "word": "a"},
            {"id": 2, "word": "b"},
            {"id": 4, "word": "d"},
            {"id": 5, "word": "e"},
        ]

    def test_failure_says_where_and_why(self, csv: Callable[..., Read], tmp_path: Path) -> None:
        _, failures = csv("id,word\n1,a\n2\n")
        assert failures[1].row == 1
        assert str(tmp_path / "rows.csv") in failures[1].origin
        assert failures[1].stage == "read"
        assert failures[1].reason == "1 fields, not 2"

    def test_field_of_another_type_beyond_the_beginning_fails_alone(
        self, csv: Callable[..., Read], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(csv_module, "_SAMPLE_BYTES", 16)
        rows, failures = csv("id,x\n1,0.5\n2,1.5\n3,oops\n4,3.5\n")
        assert list(failures) == [2]
        assert failures[2].reason == "column 'x' is 'oops', not a number"
        assert [row["x"] for row in rows] == [0.5, 1.5, None, 3.5]

    def test_fraction_in_a_column_of_whole_numbers_is_read_where_it_is_fed_as_floats(
        self, tmp_path: Path, rows_per_span: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(csv_module, "_SAMPLE_BYTES", 10)
        path = tmp_path / "a.csv"
        path.write_text("id,x\n1,5\n2,6\n3,6.5\n4,7\n", encoding="utf-8")
        source = CsvFiles([str(path)]).with_floats(["x"])
        rows, failures = rows_of(source, rows_per_span)
        assert not failures
        assert [row["x"] for row in rows] == [5, 6, 6.5, 7]
        kept, failures = rows_of(CsvFiles([str(path)]), rows_per_span)
        assert list(failures) == [2]
        assert failures[2].reason == "column 'x' is '6.5', not a whole number, as the first ones are"
        assert [row["x"] for row in kept] == [5, 6, None, 7]

    def test_truth_values_stay_what_they_are_where_they_are_fed_as_floats(
        self, tmp_path: Path, rows_per_span: int
    ) -> None:
        path = tmp_path / "a.csv"
        path.write_text("x,flag\n1,True\n2,False\n", encoding="utf-8")
        rows, failures = rows_of(CsvFiles([str(path)]).with_floats(["x", "flag"]), rows_per_span)
        assert not failures
        assert rows == [{"x": 1.0, "flag": True}, {"x": 2.0, "flag": False}]

    def test_ids_of_more_than_64_bits_keep_all_digits_and_may_be_fed_as_floats(
        self, tmp_path: Path, rows_per_span: int
    ) -> None:
        path = tmp_path / "a.csv"
        path.write_text("id,x\n12345678901234567890,1e30\n,2\n12345678901234567891,3\n", encoding="utf-8")
        rows, failures = rows_of(CsvFiles([str(path)]), rows_per_span)
        assert [row["id"] for row in rows] == ["12345678901234567890", "", "12345678901234567891"]
        assert [row["x"] for row in rows] == [1e30, 2, 3]
        assert not failures
        assert CsvFiles([str(path)]).schema()["id"].dtype == "float64"
        fed, _ = rows_of(CsvFiles([str(path)]).with_floats(["id"]), rows_per_span)
        assert [row["id"] for row in fed] == [12345678901234567890.0, None, 12345678901234567891.0]

    def test_broken_record_does_not_change_the_numbers_of_its_neighbours(self, csv: Callable[..., Read]) -> None:
        rows, failures = csv("id,x\n9007199254740993,1\nbroken\n9007199254740995,3\n")
        assert list(failures) == [1]
        assert [row["id"] for row in rows] == [9007199254740993, None, 9007199254740995]

    def test_broken_record_does_not_change_the_type_of_a_column(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_text("id,x\n1,1\nbroken\n3,3\n4,4\n", encoding="utf-8")
        source = CsvFiles([str(path)])
        kinds = [to_arrow(block.columns["id"]).type for span in source.divide(2) for block in source.read(span, ["id"])]
        assert kinds == [pa.int64(), pa.int64()]

    @pytest.mark.parametrize(
        ("field", "value"),
        [("", None), ("NA", None), ("null", None), ("nan", float("nan")), (" 7", 7.0), ("7 ", 7.0)],
        ids=str,
    )
    def test_broken_record_leaves_odd_numbers_as_they_are_read_without_it(
        self, csv: Callable[..., Read], field: str, value: object
    ) -> None:
        whole, none = csv(f"id,x\n1,1.5\n2,{field}\n4,4.5\n", ["x"])
        assert not none
        assert [str(row["x"]) for row in whole] == ["1.5", str(value), "4.5"]
        rows, failures = csv(f"id,x\n1,1.5\n2,{field}\nbroken\n4,4.5\n", ["x"])
        assert list(failures) == [2]
        assert [str(row["x"]) for row in rows] == ["1.5", str(value), "None", "4.5"]

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            ("true", "False"),
            ("2024-01-01", "2024-02-01"),
            ("2024-01-01 10:00:00", "2024-01-01 11:00:00"),
            ("2024-01-01T10:00:00Z", "2024-01-01T11:00:00Z"),
            ("10:00:00", "11:30:00"),
            ("", ""),
            ("text", "NA"),
        ],
        ids=["bool", "date", "time stamp", "time stamp with zone", "time", "nothing", "text"],
    )
    def test_broken_record_leaves_columns_of_every_type_as_they_are(
        self, csv: Callable[..., Read], first: str, second: str
    ) -> None:
        whole, _ = csv(f"id,x\n1,{first}\n3,{second}\n")
        rows, failures = csv(f"id,x\n1,{first}\nbroken\n3,{second}\n")
        assert list(failures) == [1]
        assert [rows[0], rows[2]] == whole

    def test_time_of_day_is_read(self, csv: Callable[..., Read]) -> None:
        rows, _ = csv("id,x\n1,10:00:00\n2,11:30:00\n")
        assert [row["x"] for row in rows] == [datetime.time(10), datetime.time(11, 30)]

    def test_quotes_inside_a_field_are_letters(self, csv: Callable[..., Read]) -> None:
        rows, failures = csv('id,word\n1,a\n2,5" pipe\n3,c\n4,d\n5,e\n')
        assert not failures
        assert [row["word"] for row in rows] == ["a", '5" pipe', "c", "d", "e"]

    def test_two_rows_with_quotes_inside_do_not_swallow_those_between(self, csv: Callable[..., Read]) -> None:
        rows, failures = csv('id,word\n1,a\n2,5" pipe\n3,c\n4,6" pipe\n5,e\n')
        assert not failures
        assert [row["id"] for row in rows] == [1, 2, 3, 4, 5]

    def test_carriage_return_inside_a_field_moves_no_other_row(self, csv: Callable[..., Read]) -> None:
        rows, failures = csv("id,word\n1,a\n2,b\rc\n3,d\n4,e\n")
        assert [(row["id"], row["word"]) for row in rows if row["id"] in (1, 3, 4)] == [(1, "a"), (3, "d"), (4, "e")]
        assert len(rows) == 4
        assert set(failures) <= {1}

    @pytest.mark.parametrize("broken", ["", "3\n"], ids=["whole", "with a broken record"])
    def test_line_breaks_between_quotes_belong_to_the_field(self, csv: Callable[..., Read], broken: str) -> None:
        rows, failures = csv(f'id,word\n1,"a\nb"\n2,"c\r\n\r\nd"\n{broken}4,"say ""hi"",\n"\n')
        kept = [row for i, row in enumerate(rows) if i not in failures]
        assert [row["word"] for row in kept] == ["a\nb", "c\r\n\r\nd", 'say "hi",\n']
        assert len(failures) == bool(broken)

    @pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
    @pytest.mark.parametrize("end", [True, False], ids=["ended", "not ended"])
    @pytest.mark.parametrize("bom", ["", "\ufeff"], ids=["", "BOM"])
    @pytest.mark.parametrize("broken", [False, True], ids=["", "broken"])
    def test_line_ends_and_marks_do_not_matter(
        self, csv: Callable[..., Read], newline: str, end: bool, bom: str, broken: bool
    ) -> None:
        lines = ["id,word", "1,a", *(["oops"] if broken else []), "2,b", "3,c"]
        rows, failures = csv((bom + newline.join(lines) + (newline if end else "")).encode())
        assert [row for i, row in enumerate(rows) if i not in failures] == [
            {"id": 1, "word": "a"},
            {"id": 2, "word": "b"},
            {"id": 3, "word": "c"},
        ]
        assert list(failures) == ([1] if broken else [])

    @pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
    @pytest.mark.parametrize("broken", [False, True], ids=["", "broken"])
    def test_blank_lines_are_no_rows(self, csv: Callable[..., Read], newline: str, broken: bool) -> None:
        lines = ["id,word", "", "1,a", "", "", "oops" if broken else "2,b", "3,c", "", ""]
        read = csv(newline.join(lines))
        assert ids(read) == [1, None if broken else 2, 3]
        assert list(read[1]) == ([1] if broken else [])

    def test_file_that_ends_inside_a_quoted_field_keeps_the_rows_before(self, csv: Callable[..., Read]) -> None:
        read = csv('id,word\n1,a\n2,b\n3,"cut o')
        assert ids(read)[:2] == [1, 2]
        assert len(read[0]) == 3
        assert set(read[1]) <= {2}

    def test_quote_that_is_never_closed_keeps_the_rows_before(self, csv: Callable[..., Read]) -> None:
        read = csv('id,word\n1,a\n2,b\n3,"open\n4,d\n5,e\n')
        assert ids(read)[:2] == [1, 2]
        assert not {0, 1} & set(read[1])

    def test_bytes_that_are_not_utf8_fail_alone_or_stay_bytes(self, csv: Callable[..., Read]) -> None:
        rows, failures = csv(b"id,word\n1,a\n2,\xff\xfe\n3,c\n")
        assert [row["id"] for i, row in enumerate(rows) if i not in failures] == ([1, 2, 3] if not failures else [1, 3])
        assert rows[1]["word"] == (None if failures else b"\xff\xfe")

    def test_bytes_that_are_not_utf8_beyond_the_beginning_fail_alone(
        self, csv: Callable[..., Read], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(csv_module, "_SAMPLE_BYTES", 16)
        rows, failures = csv(b"id,word\n1,a\n2,b\n3,\xff\xfe\n4,d\n")
        assert list(failures) == [2]
        assert failures[2].reason == "column 'word' is not UTF-8"
        assert [row["word"] for row in rows] == ["a", "b", None, "d"]

    def test_bytes_that_are_not_utf8_in_a_column_nobody_reads_do_not_matter(
        self, csv: Callable[..., Read], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(csv_module, "_SAMPLE_BYTES", 16)
        rows, failures = csv(b"id,word\n1,a\n2,b\n3,\xff\xfe\n4,d\n", ["id"])
        assert not failures
        assert [row["id"] for row in rows] == [1, 2, 3, 4]

    def test_very_long_field_beside_a_broken_record_is_read(self, csv: Callable[..., Read]) -> None:
        rows, failures = csv(f"id,word\n1,{'a' * 200_000}\n2\n3,c\n")
        assert list(failures) == [1]
        assert len(rows[0]["word"]) == 200_000
        assert rows[2] == {"id": 3, "word": "c"}

    def test_column_that_is_empty_at_first_and_filled_later_does_not_stop_the_job(
        self, csv: Callable[..., Read], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(csv_module, "_SAMPLE_BYTES", 12)
        rows, failures = csv("id,note\n1,\n2,\n3,hello\n4,\n")
        assert [row["id"] for i, row in enumerate(rows) if i not in failures] in ([1, 2, 3, 4], [1, 2, 4])

    def test_tabs_divide_the_fields_of_a_tsv(self, csv: Callable[..., Read]) -> None:
        rows, failures = csv("id\tword\n1\ta,b\n2\n3\tc\n", suffix=".tsv")
        assert list(failures) == [1]
        assert [row["word"] for row in rows] == ["a,b", None, "c"]

    def test_empty_text_is_not_a_null(self, csv: Callable[..., Read]) -> None:
        for broken in ("", "x\n"):
            rows, failures = csv(f'id,word\n1,a\n2,\n3,""\n{broken}')
            assert [row["word"] for i, row in enumerate(rows) if i not in failures] == ["a", "", ""]

    def test_every_record_broken_is_every_row_failed(self, csv: Callable[..., Read]) -> None:
        rows, failures = csv("id,word\nx\ny\nz\n")
        assert list(failures) == [0, 1, 2]
        assert len(rows) == 3

    def test_header_alone_is_an_empty_input(self, csv: Callable[..., Read]) -> None:
        with pytest.raises(InputError, match="the input has no rows"):
            csv("id,word\n")

    def test_empty_file_is_told(self, csv: Callable[..., Read]) -> None:
        with pytest.raises(InputError, match="the input has no rows"):
            csv("")

    def test_column_of_numbers_with_one_word_among_the_first_can_be_fed(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_text("id,x\n" + "".join(f"{i},{i}.5\n" for i in range(20)) + "20,oops\n21,21.5\n", encoding="utf-8")
        source = CsvFiles([str(path)])
        assert source.schema()["x"].dtype == "float64"
        rows, failures = rows_of(source.with_floats(["x"]), 1000)
        assert list(failures) == [20]
        assert [row["x"] for row in rows] == [*(i + 0.5 for i in range(20)), None, 21.5]

    def test_blank_line_before_the_header_is_skipped(self, csv: Callable[..., Read]) -> None:
        assert ids(csv("\nid,word\n1,a\n2,b\n")) == [1, 2]


class TestHeaders:
    def open(self, folder: Path, raw: bytes | str, header: str = "auto", name: str = "rows.csv") -> CsvFiles:
        path = folder / name
        path.write_bytes(raw if isinstance(raw, bytes) else raw.encode())
        return CsvFiles([str(path)], ReadOptions(header=header))

    @pytest.mark.parametrize(
        "first", ["5.1,3.5,Iris-setosa", "1,0,0", "0.5", "7", "1e3,a", " 2.5 ,x", "-1,2", "1,1"], ids=str
    )
    def test_first_line_of_numbers_is_told(self, tmp_path: Path, first: str) -> None:
        with pytest.raises(InputError, match="seems to have no header") as caught:
            self.open(tmp_path, f"{first}\n{first}\n").schema()
        assert str(tmp_path / "rows.csv") in (caught.value.received or "")
        assert "--header no" in (caught.value.hint or "")

    @pytest.mark.parametrize("first", ["name,2019,2020", "0,1,2", "a,b,c", "v1.0,v2,x", "nan,inf,x", ",a,b"], ids=str)
    def test_first_line_of_names_is_the_header(self, tmp_path: Path, first: str) -> None:
        assert list(self.open(tmp_path, f"{first}\n1,2,3\n").schema()) == first.split(",")

    @pytest.mark.parametrize("bom", ["", "\ufeff"], ids=["", "BOM"])
    @pytest.mark.parametrize("rows_per_span", [1, 100])
    def test_every_line_is_a_row_where_there_is_no_header(self, tmp_path: Path, bom: str, rows_per_span: int) -> None:
        source = self.open(tmp_path, f"{bom}1.5,a\n2.5,b\nbroken\n3.5,c\n", "no")
        rows, failures = rows_of(source, rows_per_span)
        assert list(failures) == [2]
        nothing = {"f0": None, "f1": None}
        assert rows == [{"f0": 1.5, "f1": "a"}, {"f0": 2.5, "f1": "b"}, nothing, {"f0": 3.5, "f1": "c"}]

    def test_numbers_are_names_where_that_is_said(self, tmp_path: Path) -> None:
        rows, _ = rows_of(self.open(tmp_path, "2019,2020\n1,2\n", "yes"), 10)
        assert rows == [{"2019": 1, "2020": 2}]

    def test_files_without_a_header_must_have_as_many_columns(self, tmp_path: Path) -> None:
        for name, row in (("a.csv", "1,2\n"), ("b.csv", "1,2,3\n")):
            (tmp_path / name).write_text(row)
        source = CsvFiles([str(tmp_path / "a.csv"), str(tmp_path / "b.csv")], ReadOptions(header="no"))
        with pytest.raises(InputError, match="differ in their columns"):
            source.schema()

    @pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
    def test_file_that_is_not_utf8_is_said_to_be_so(self, tmp_path: Path, encoding: str) -> None:
        with pytest.raises(InputError) as caught:
            self.open(tmp_path, "Straße,x\nZürich,1\n".encode(encoding)).schema()
        assert caught.value.problem == "the file is not UTF-8"
        assert str(tmp_path / "rows.csv") in (caught.value.received or "")
        assert "iconv" in (caught.value.hint or "")

    def test_text_that_is_not_utf8_is_remarked(self, tmp_path: Path) -> None:
        (remark,) = self.open(tmp_path, "city,x\nZürich,1\n".encode("latin-1")).remarks()
        assert "the text of city is not UTF-8" in remark
        assert self.open(tmp_path, "city,x\nZürich,1\n").remarks() == []


class TestJsonLines:
    @pytest.mark.parametrize(
        "broken",
        ['{"id": 3', "{id: 3}", "oops", "[3]", "3", '"text"', '{"id": 3}{"id": 4}', "}", "   "],
        ids=str,
    )
    def test_line_that_is_no_object_fails_alone(self, jsonl: Callable[..., Read], broken: str) -> None:
        rows, failures = jsonl(
            f'{{"id": 1, "x": [1, 2]}}\n{{"id": 2, "x": [3, 4]}}\n{broken}\n{{"id": 5, "x": [5, 6]}}\n'
        )
        assert list(failures) == [2]
        assert [row for i, row in enumerate(rows) if i != 2] == [
            {"id": 1, "x": [1, 2]},
            {"id": 2, "x": [3, 4]},
            {"id": 5, "x": [5, 6]},
        ]

    @pytest.mark.parametrize("odd", ['{"text": "' + ":]" * 600 + '"}', '{"broken', ' {"text": "one space"}'])
    def test_types_hold_for_all_of_the_first_lines_whatever_one_of_them_is(
        self, jsonl: Callable[..., Read], odd: str
    ) -> None:
        """Half of the lines have whole numbers only, and few have a language."""
        lines: list[dict[str, Any]] = [
            {"text": "thanks :]", "score": n if n % 2 else n + 0.5, "lang": "en" if n == 4 else None} for n in range(6)
        ]
        del lines[1]["lang"]
        rows, failures = jsonl("\n".join([*map(json.dumps, lines), odd]) + "\n")
        assert set(failures) <= {6}
        assert [row["score"] for row in rows[:6]] == [line["score"] for line in lines]
        assert [row["lang"] for row in rows[:6]] == [None, None, None, None, "en", None]

    def test_lines_that_contradict_the_common_ones_fail_alone(self, jsonl: Callable[..., Read]) -> None:
        rows, failures = jsonl('{"id": 1}\n{"id": "two"}\n{"id": 3}\n{"id\n{"id": 5.5, "more": true}\n')
        assert sorted(failures) == [1, 3]
        assert [row["id"] for row in rows] == [1, None, 3, None, 5.5]
        assert [row["more"] for row in rows] == [None, None, None, None, True]

    def test_a_number_with_more_digits_than_a_fraction_does_not_end_the_run(self, jsonl: Callable[..., Read]) -> None:
        rows, failures = jsonl('{"id": 9007199254740993}\n{"id": 7}\n{"id": 1.5}\n{"id\n')
        assert sorted(failures) == [2, 3]
        assert [row["id"] for row in rows] == [9007199254740993, 7, None, None]

    def test_a_key_that_is_null_in_the_first_lines_may_be_text_later(
        self, jsonl: Callable[..., Read], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jsonl_module, "_SAMPLE_BYTES", 24)
        rows, failures = jsonl('{"c": null}\n{"c": null}\n{"c": "late"}\n')
        assert not failures
        assert [row["c"] for row in rows] == [None, None, "late"]

    def test_ids_that_lose_digits_are_told(self, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").write_text('{"id": 98765432109876543210, "x": 1e30}\n{"id": 1}\n', encoding="utf-8")
        (remark,) = JsonLines([str(tmp_path / "a.jsonl")]).remarks()
        assert remark.startswith("id, x: whole numbers of more than 64 bits")
        (tmp_path / "b.jsonl").write_text('{"id": 9007199254740993, "x": 0.5}\n', encoding="utf-8")
        assert JsonLines([str(tmp_path / "b.jsonl")]).remarks() == []

    def test_a_key_that_is_null_in_the_first_lines_feeds_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").write_text('{"text": "a", "note": null}\n', encoding="utf-8")
        schema = JsonLines([str(tmp_path / "a.jsonl")]).schema()
        assert {name: spec.dtype for name, spec in schema.items()} == {"text": STRING, "note": OPAQUE}

    def test_failure_says_where_and_why(self, jsonl: Callable[..., Read], tmp_path: Path) -> None:
        _, failures = jsonl('{"id": 1}\n{"id"\n')
        assert str(tmp_path / "rows.jsonl") in failures[1].origin
        assert failures[1].stage == "read"
        assert failures[1].reason.startswith("not JSON: ")
        assert "\n" not in failures[1].reason

    @pytest.mark.parametrize("line", ['"text"', "5", "[1]"])
    def test_value_that_is_no_object_is_called_that(self, jsonl: Callable[..., Read], line: str) -> None:
        _, failures = jsonl(f'{{"id": 1}}\n{line}\n')
        assert failures[1].reason == "not a JSON object"

    def test_value_of_another_type_beyond_the_beginning_fails_alone(
        self, jsonl: Callable[..., Read], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jsonl_module, "_SAMPLE_BYTES", 22)
        rows, failures = jsonl('{"id": 1}\n{"id": 2}\n{"id": "three"}\n{"id": 4}\n')
        assert list(failures) == [2]
        assert [row["id"] for row in rows] == [1, 2, None, 4]

    @pytest.mark.parametrize("odd", ['{"id": "three"}', '{"id": {"a": 1}}', '{"id": 3, "id": 4}'], ids=str)
    def test_odd_line_among_the_first_fails_alone(self, jsonl: Callable[..., Read], odd: str) -> None:
        rows, failures = jsonl(f'{{"id": 1}}\n{{"id": 2}}\n{odd}\n{{"id": 4}}\n')
        assert list(failures) == [2]
        assert [row["id"] for row in rows] == [1, 2, None, 4]

    def test_absent_keys_are_null_and_unknown_keys_are_ignored(
        self, jsonl: Callable[..., Read], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jsonl_module, "_SAMPLE_BYTES", 22)
        rows, failures = jsonl('{"id": 1, "w": "a"}\n{"w": "b", "new": 5}\n{}\n{"id": 4}\n')
        assert not failures
        assert rows == [
            {"id": 1, "w": "a"},
            {"id": None, "w": "b"},
            {"id": None, "w": None},
            {"id": 4, "w": None},
        ]

    @pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
    @pytest.mark.parametrize("end", [True, False], ids=["ended", "not ended"])
    @pytest.mark.parametrize("bom", ["", "\ufeff"], ids=["", "BOM"])
    @pytest.mark.parametrize("broken", [False, True], ids=["", "broken"])
    def test_line_ends_marks_and_blank_lines_do_not_matter(
        self, jsonl: Callable[..., Read], newline: str, end: bool, bom: str, broken: bool
    ) -> None:
        lines = ['{"id": 1}', "", "oops" if broken else '{"id": 2}', "", "", '{"id": 3}']
        read = jsonl((bom + newline.join(lines) + (newline if end else "")).encode())
        assert ids(read) == [1, None if broken else 2, 3]
        assert list(read[1]) == ([1] if broken else [])

    @pytest.mark.parametrize("broken", ["", "oops\n"], ids=["", "with a broken line"])
    def test_line_of_carriage_returns_moves_no_other_row(self, jsonl: Callable[..., Read], broken: str) -> None:
        rows, failures = jsonl(f'{{"id": 1}}\n\r\r\n{{"id": 3}}\n{broken}{{"id": 5}}\n')
        kept = [row["id"] for i, row in enumerate(rows) if i not in failures and row["id"] is not None]
        assert kept == [1, 3, 5]

    def test_line_with_two_objects_and_a_line_of_spaces_do_not_cancel_out(self, jsonl: Callable[..., Read]) -> None:
        rows, failures = jsonl('{"id": 1}\n{"id": 2}{"id": 99}\n   \n{"id": 4}\n')
        assert rows[0]["id"] == 1
        assert rows[3]["id"] == 4
        assert 1 in failures
        assert 99 not in [row["id"] for row in rows]

    def test_bytes_that_are_not_utf8_fail_alone(self, tmp_path: Path, rows_per_span: int) -> None:
        path = tmp_path / "rows.jsonl"
        path.write_bytes(b'{"id": 1, "w": "a"}\n{"id": 2, "w": "\xff\xfe"}\n{"id": 3, "w": "c"}\n')
        source = JsonLines([str(path)])
        failed = [f.row for span in source.divide(rows_per_span) for b in source.read(span, ["w"]) for f in b.failures]
        assert failed == [1]
        rows, _ = rows_of(source, rows_per_span)
        assert [row["w"] for row in rows] == ["a", None, "c"]

    def test_object_that_runs_over_two_lines_is_two_failed_rows(self, jsonl: Callable[..., Read]) -> None:
        rows, failures = jsonl('{"id": 1}\n{"id":\n2}\n{"id": 4}\n')
        assert list(failures) == [1, 2]
        assert [row["id"] for row in rows] == [1, None, None, 4]

    @pytest.mark.parametrize(
        ("lines", "lost", "in_one_span"),
        [
            (["null", '{"id": 1}', '{"id": 2}'], 0, 1000),
            (['{"id": 1}', "null", '{"id": 2}'], 1, 1),
            (['{"id": 1}', '{"id": 5, "x": ' + "[" * 100_000 + "]" * 100_000 + "}", '{"id": 2}'], 1, 1000),
        ],
        ids=["null at the beginning", "null in a span of its own", "deep lists"],
    )
    def test_line_that_kills_arrows_parser_takes_no_other_down(
        self, tmp_path: Path, lines: list[str], lost: int, in_one_span: int
    ) -> None:
        """In a process of its own: some of these lines end it with a segmentation fault inside pyarrow."""
        path = tmp_path / "rows.jsonl"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        ran = subprocess.run(
            [sys.executable, "-c", READ_IDS, str(path), str(in_one_span)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-300:]
        found = json.loads(ran.stdout)
        assert [value for row, value in enumerate(found["ids"]) if row != lost] == [1, 2]
        assert set(found["failed"]) <= {lost}

    def test_lists_keep_their_shape_beside_a_broken_line(self, jsonl: Callable[..., Read]) -> None:
        rows, failures = jsonl('{"x": [[1, 2], [3, 4]]}\noops\n{"x": [[5, 6], [7, 8]]}\n')
        assert list(failures) == [1]
        assert [row["x"] for row in rows] == [[[1, 2], [3, 4]], None, [[5, 6], [7, 8]]]

    @pytest.mark.parametrize("raw", ["", "oops\nmore\n", "[1]\n[2]\n"], ids=["empty", "no JSON", "no objects"])
    def test_file_without_a_single_object_is_told(self, jsonl: Callable[..., Read], tmp_path: Path, raw: str) -> None:
        with pytest.raises(InputError) as caught:
            jsonl(raw)
        assert str(tmp_path / "rows.jsonl") in str(caught.value)
