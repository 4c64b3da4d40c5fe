"""Text files scanned once for the places where records begin."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.records import Block, RowFailure, Span, TensorSpec
from penstock.errors import InputError
from penstock.sources.tables import lines
from penstock.sources.tables.csv import CsvFiles
from penstock.sources.tables.jsonl import JsonLines
from penstock.sources.tables.lines import LineFiles, TableLines, parse_surviving


class PlainLines(LineFiles):
    """Lines that are only divided."""

    def schema(self) -> dict[str, TensorSpec]:
        raise NotImplementedError

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        raise NotImplementedError


def scan(path: Path, raw: bytes, rows: int, *, delimiter: str | None, piece: int) -> list[Span]:
    path.write_bytes(raw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_SCAN_BYTES", piece)
        return list(PlainLines([str(path)], delimiter).divide(rows))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lines") / "file"


BLANKS = ["\n", "\r\n"]
PLAIN = st.lists(st.sampled_from(["a\n", "bb\r\n", "c c\n", "\n", "\r\n", "longer line\n", '{"q": 1}\n']), max_size=12)
QUOTED = st.lists(
    st.sampled_from(
        [
            "a,b\n",
            '"x\ny",1\n',
            '"x ""y""\r\n",2\r\n',
            "\n",
            "\r\n",
            '"",\n',
            'z,"\n\n"\n',
            '"a""",3\n',
            '5" pipe,6"\n',
            'a"",b\n',
        ]
    ),
    max_size=12,
)


@given(records=PLAIN, rows=st.integers(1, 5), piece=st.integers(1, 40), end=st.sampled_from(["", "last", "last\r"]))
def test_lines_are_found_whatever_the_size_of_a_piece(
    path: Path, records: list[str], rows: int, piece: int, end: str
) -> None:
    check(path, [*records, *([end] if end else [])], rows, piece, delimiter=None)


@given(records=QUOTED, rows=st.integers(1, 5), piece=st.integers(1, 40), end=st.sampled_from(["", "l,m", '"l\nm",n']))
def test_quoted_records_are_found_whatever_the_size_of_a_piece(
    path: Path, records: list[str], rows: int, piece: int, end: str
) -> None:
    check(path, ["h,i\n", *records, *([end] if end else [])], rows, piece, delimiter=",")


def check(path: Path, records: list[str], rows: int, piece: int, *, delimiter: str | None) -> None:
    raw = "".join(records).encode()
    expected = [record for record in records[1 if delimiter else 0 :] if record not in BLANKS]
    if not expected:
        with pytest.raises(InputError, match="the input has no rows"):
            scan(path, raw, rows, delimiter=delimiter, piece=piece)
        return
    spans = scan(path, raw, rows, delimiter=delimiter, piece=piece)
    assert [span.rows for span in spans[:-1]] == [rows] * (len(spans) - 1)
    assert [span.start for span in spans] == list(range(0, len(expected), rows))
    excerpts = [raw[first:end].decode() for span in spans for _, first, end, _, _ in span.locator]
    for position, excerpt in enumerate(excerpts):
        wanted = "".join(expected[position * rows : (position + 1) * rows])
        assert without_blanks(excerpt, expected) == wanted


def without_blanks(excerpt: str, expected: list[str]) -> str:
    """The excerpt less the blank lines between its records."""
    kept = ""
    while excerpt:
        blank = next((blank for blank in BLANKS if excerpt.startswith(blank)), None)
        if blank is not None:
            excerpt = excerpt[len(blank) :]
            continue
        record = max((record for record in expected if excerpt.startswith(record)), key=len)
        kept, excerpt = kept + record, excerpt[len(record) :]
    return kept


def test_spans_cover_small_files_together(tmp_path: Path) -> None:
    for name, raw in (("a", b"1\n2\n3\n"), ("b", b""), ("c", b"\n\n"), ("d", b"4\n5"), ("e", b"6\n7\n8\n")):
        (tmp_path / name).write_bytes(raw)
    files = PlainLines([str(tmp_path / name) for name in "abcde"])
    spans = list(files.divide(4))
    assert spans == [
        Span(0, 0, 4, ((0, 0, 6, 0, 3), (3, 0, 2, 0, 1))),
        Span(1, 4, 4, ((3, 2, 3, 1, 1), (4, 0, 6, 0, 3))),
    ]
    assert files.origin(spans[1], 4) == f"{tmp_path / 'd'}, bytes 2 to 3"
    assert files.origin(spans[1], 7) == f"{tmp_path / 'e'}, bytes 0 to 6"


def test_every_file_has_its_own_header(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(b"h\n1\n2\n")
    files = PlainLines([str(tmp_path / name) for name in "ab"], ",")
    assert list(files.divide(10)) == [Span(0, 0, 4, ((0, 2, 6, 0, 2), (1, 2, 6, 0, 2)))]


def test_excerpt_holds_the_bytes_of_its_run(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"h\n1\n2\n3\n")
    files = PlainLines([str(tmp_path / "a")], ",")
    excerpts = [excerpt for span in files.divide(2) for excerpt in files.excerpts(span)]
    assert [excerpt.raw for excerpt in excerpts] == [b"1\n2\n", b"3\n"]
    (failure,) = excerpts[0].failures([b"1\n", b"2\n"], {1: "broken"}, 10)
    assert (failure.row, failure.origin, failure.reason) == (11, f"{tmp_path / 'a'}, byte 4", "broken")


DAMAGED = [
    (b'h,i\n1,a\n2,"b\n3,c\n4,d\n', [1]),
    (b'h,i\n1,a\n2,"b\n3,"c\n4,"d\n5,e\n', [1, 2, 3]),
    (b'h,i\n1,"a\n2,b\n3,"c"\n4,"x\ny"\n', [0]),
    (b'h,i\n1,"a ""b"" c\n2,b\n', [0]),
    (b'h,i\n1,a\n2,"b', [1]),
    (b'h,i\n1,"x\ny"\n2,"z\n', [1]),
    (b'h,i\n1,"x" y\n2,b\n', []),
]


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 8, 1000])
@pytest.mark.parametrize(("raw", "damaged"), DAMAGED)
def test_quote_that_is_never_closed_damages_its_own_line(
    tmp_path: Path, raw: bytes, damaged: list[int], piece: int
) -> None:
    records = raw.replace(b"x\ny", b"x y").splitlines()[1:]
    path = tmp_path / "rows.csv"
    spans = scan(path, raw, 1, delimiter=",", piece=piece)
    assert len(spans) == len(records)
    source = CsvFiles([str(path)])
    for rows_per_span in (1, 2, 100):
        failed: dict[int, RowFailure] = {}
        rows: list[str] = []
        for span in source.divide(rows_per_span):
            for block in source.read(span, ["i"]):
                rows += block.columns["i"].to_pylist()  # type: ignore[union-attr]
                failed |= {failure.row: failure for failure in block.failures}
        assert sorted(failed) == damaged
        assert [len(row or "") > 0 for row in rows] == [row not in damaged for row in range(len(records))]
        for row, failure in failed.items():
            assert failure.reason == "a quote opens a field in this line and is never closed"
            assert failure.origin == f"{path}, byte {raw.index(records[row])}"


def test_field_that_is_open_for_too_long_damages_its_own_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    raw = b'h,i\n1,"a\n' + b"2,b\n" * 50 + b'3,"c"\n'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_LONGEST_FIELD", 100)
        for piece in (7, 64, 1000):
            spans = scan(path, raw, 10, delimiter=",", piece=piece)
            assert [span.rows for span in spans] == [10] * 5 + [2]
            files = PlainLines([str(path)], ",")
            records = [
                record for span in spans for excerpt in files.excerpts(span) for record in files.records(excerpt)
            ]
            assert records == raw.splitlines(keepends=True)[1:]


@given(
    st.lists(st.sampled_from(['"', ",", "\n", "a", "\r\n", '""']), max_size=30), st.integers(1, 40), st.integers(1, 9)
)
def test_any_quotes_give_the_same_records_whatever_is_read_at_once(
    path: Path, pieces: list[str], piece: int, rows: int
) -> None:
    raw = "".join(["h,i\n", *pieces, "\nx,y\n"]).encode()
    spans = scan(path, raw, rows, delimiter=",", piece=piece)
    assert spans == scan(path, raw, rows, delimiter=",", piece=1000)
    files = PlainLines([str(path)], ",")
    found = [record for span in spans for excerpt in files.excerpts(span) for record in files.records(excerpt)]
    assert len(found) == spans[-1].stop
    assert b"".join(found).replace(b"\r\n", b"\n").replace(b"\n", b"") == raw[4:].replace(b"\r", b"").replace(
        b"\n", b""
    )


@pytest.mark.parametrize("delimiter", [None, ","])
@pytest.mark.parametrize("raw", [b"", b"\n", b"\r\n\r\n", b"\n\n\n"])
def test_file_of_blank_lines_has_no_rows(tmp_path: Path, raw: bytes, delimiter: str | None) -> None:
    (tmp_path / "a").write_bytes(raw)
    with pytest.raises(InputError, match="the input has no rows"):
        list(PlainLines([str(tmp_path / "a")], delimiter).divide(5))


def test_head_ends_with_a_whole_record(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b'h\n"1\n1"\n2\n')
    files = PlainLines([str(path)], ",")
    assert files.head(str(path), 100) == b'h\n"1\n1"\n2\n'
    assert files.head(str(path), 9) == b'h\n"1\n1"\n'
    assert files.head(str(path), 4) == b'h\n"1\n1"\n', "one record at least"
    assert PlainLines([str(path)]).head(str(path), 1) == b"h\n"


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 8, 1000])
@pytest.mark.parametrize(
    ("raw", "rows"),
    [
        (b'h,i\n1,5" pipe\n2,b\n3,c\n', 3),
        (b'h,i\n1,5" pipe\n2,b\n3,6" pipe\n4,d\n', 4),
        (b'h,i\n1,a"b"c\n2,"x\ny"\n3,c\n', 3),
        (b'h,i\n"1",""\n"2","a""b"\n', 2),
        (b'h,i\n1,a ""\n2,b\n', 2),
        (b'\xef\xbb\xbf"h\nh",i\n1,a\n2,b\n', 2),
    ],
    ids=[
        "stray quote",
        "two stray quotes",
        "quotes inside",
        "quoted",
        "two quotes inside",
        "quoted header after a BOM",
    ],
)
def test_only_quotes_at_the_beginning_of_a_field_open_it(path: Path, raw: bytes, rows: int, piece: int) -> None:
    spans = scan(path, raw, 1, delimiter=",", piece=piece)
    assert len(spans) == rows


def test_first_file_with_records_is_the_sample(tmp_path: Path) -> None:
    for name, raw in (("a", b""), ("b", b"h\n"), ("c", b"h\n1\n")):
        (tmp_path / name).write_bytes(raw)
    files = PlainLines([str(tmp_path / name) for name in "abc"], ",")
    assert files.sample_path() == str(tmp_path / "c")
    with pytest.raises(InputError, match="the input has no rows"):
        PlainLines([str(tmp_path / "a")], ",").sample_path()


@pytest.mark.timeout(5)
def test_no_records_at_all_survive_as_none() -> None:
    """As when a file was emptied since it was divided: halving nothing for ever would hang the job."""

    def parse(records: Sequence[object]) -> pa.Table:
        raise pa.ArrowInvalid("nothing to parse")

    table, reasons = parse_surviving([], parse, pa.table({"a": pa.nulls(1, pa.int64())}))
    assert table.num_rows == 0
    assert reasons == {}


def test_broken_records_are_found_by_halves() -> None:
    calls: list[int] = []

    def parse(records: Sequence[int]) -> pa.Table:
        calls.append(len(records))
        if 700 in records:
            raise ValueError("broken\nin detail")
        return pa.table({"a": pa.array(records, pa.int64())})

    table, reasons = parse_surviving(range(1024), parse, pa.table({"a": pa.nulls(1, pa.int64())}))
    assert reasons == {700: "broken"}
    assert table["a"].to_pylist() == [None if i == 700 else i for i in range(1024)]
    assert len(calls) <= 21


@pytest.mark.parametrize("last", ["{}", "1", "12", '"', '{"x": 2}'])
def test_last_record_without_a_line_break_is_a_row_however_short(last: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for before in ('{"x": 1}\n', '{"x": 1}\n' * 1000):
        path.write_text(before + last)
        source = JsonLines([str(path)])
        assert sum(span.rows for span in source.divide(300)) == before.count("\n") + 1


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from(["a", "b,c", "\n", "\r\n", "\r", '"', "\n\n", "{}"]), max_size=14).map("".join),
    st.sampled_from([CsvFiles, JsonLines]),
    st.integers(1, 4),
)
def test_short_files_are_divided_as_long_ones_are(text: str, opened: type[TableLines], room: int) -> None:
    with tempfile.NamedTemporaryFile(buffering=0) as file:
        file.write(text.encode())
        source = opened([file.name])
        assert list(source._ranges(file.name, room, 3)) == list(LineFiles._ranges(source, file.name, room, 3))


@pytest.mark.parametrize(("name", "opened"), [("rows.csv", CsvFiles), ("rows.jsonl", JsonLines)])
def test_record_without_an_end_is_refused_and_never_held(name: str, opened: type[TableLines], tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b'{"x": 1}\n{"x": 2}\n' if name.endswith("jsonl") else b"x\n1\n2\n")
    with path.open("ab") as file:
        file.truncate(8 << 30)  # zeros without a line break, on no disk
    with pytest.raises(InputError, match=r"a record is too long to be read\n.*from byte \d"):
        list(opened([str(path)]).divide(10))


@pytest.mark.parametrize("size", [10, 20 << 20])
def test_header_with_a_stray_quote_is_told_and_never_holds_the_file(size: int, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('a,"b\n' + "1,2\n" * (size // 4))
    with pytest.raises(InputError, match=r"the header has no end\n") as refused:
        CsvFiles([str(path)]).schema()
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("text", ["a,b\n1,{}", "a,b\n1,{}\n", 'a,b\n1,"{}\n{}"\n2,z\n'])
def test_type_is_learnt_from_a_giant_first_record(text: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text.format("x" * (2 << 20), "y" * (1 << 20)))
    assert CsvFiles([str(path)]).schema()["a"].dtype == "int64"


def test_header_and_line_of_more_than_a_block_are_read(tmp_path: Path) -> None:
    names = [f"column_{place}_{'x' * 100}" for place in range(12_000)]
    table = tmp_path / "wide.csv"
    table.write_text(",".join(names) + "\n" + ",".join(["1"] * len(names)) + "\n" + "2\n")
    assert list(CsvFiles([str(table)]).schema()) == names
    lines = tmp_path / "long.jsonl"
    lines.write_text(f'{{"x": "{"a" * (2 << 20)}"}}\n')
    assert list(JsonLines([str(lines)]).schema()) == ["x"]


def test_reason_of_a_failed_row_quotes_little_of_a_giant_field(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    rows = 600_000  # the type is learnt from the first MB
    path.write_text("x\n" + "1\n" * rows + "9" * 100_000 + "x\n")
    source = CsvFiles([str(path)])
    *_, last = source.divide(1000)
    (block,) = source.read(last, ["x"])
    assert [failure.row for failure in block.failures] == [rows]
    assert len(block.failures[0].reason) <= 500


def test_more_columns_than_a_table_can_have_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(",".join(map("c{}".format, range(100_001))) + "\n1\n")
    with pytest.raises(InputError, match="too many columns"):
        CsvFiles([str(path)]).schema()
