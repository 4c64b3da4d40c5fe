"""Files of any bytes: each gives rows, failed rows or an error of the input; never another exception, and no hang.

Every case is a small file of its format with bytes changed, cut, repeated or put in, or bytes without any sense. The
short form runs in `make test`, the long one in `make test-all`; each test reports its number of cases as a property.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image

from penstock.core.deferred import Deferred
from penstock.core.protocols import Source
from penstock.core.records import Block
from penstock.errors import InputError
from penstock.options.records import ReadOptions
from penstock.sources.audio.files import AudioFiles
from penstock.sources.files.unchanged import Digester
from penstock.sources.images.files import ImageFiles
from penstock.sources.tables.arrow import ArrowFiles
from penstock.sources.tables.csv import CsvFiles
from penstock.sources.tables.jsonl import JsonLines
from penstock.sources.tables.npy import ArrayFiles
from penstock.sources.tables.parquet import ParquetFiles
from penstock.sources.tables.text import TextLines
from penstock.sources.tar.files import TarFiles
from penstock.sources.tfrecord.files import TFRecordFiles
from penstock.sources.tfrecord.framing import pack_record
from tests.support.tfrecord_writer import Floats, Ints, Strings, example

SHORT, LONG = 25, 5000

_RANDOM = np.random.default_rng(8)
_ROWS = _RANDOM.integers(0, 9, (40, 3))


def saved(save: Callable[[io.BytesIO], object]) -> bytes:
    """What a writer writes."""
    buffer = io.BytesIO()
    save(buffer)
    return buffer.getvalue()


def picture(kind: str, **options: Any) -> bytes:
    pixels = _RANDOM.integers(0, 255, (9, 11, 3), np.uint8)
    image = Image.fromarray(pixels)
    return saved(lambda file: (image.convert("P") if kind == "GIF" else image).save(file, kind, **options))


def archive() -> bytes:
    def write(file: io.BytesIO) -> None:
        with tarfile.open(fileobj=file, mode="w") as tar:
            for number in range(3):
                for name, content in ((f"a{number}.txt", b"hello"), (f"a{number}.png", picture("PNG"))):
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))

    return saved(write)


def wave() -> bytes:
    samples = _RANDOM.integers(-99, 99, 64, np.int16).tobytes()
    header = b"fmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x80\x3e\0\0\x02\0\x10\0data" + len(samples).to_bytes(4, "little")
    return b"RIFF" + (4 + len(header) + len(samples)).to_bytes(4, "little") + b"WAVE" + header + samples


RECORDS = b"".join(
    pack_record(example({"a": Ints([number]), "b": Floats([0.5, 1.5]), "c": Strings([b"text"])})) for number in range(8)
)
QUOTED = b'x,y\n1,"a\nb"\n'
TEXTS = np.array(["ab", "c"])
TABLE = pa.table({"x": _ROWS[:, 0], "word": [f"word {row}" for row in range(40)], "list": _ROWS.tolist()})


def feather(compression: str) -> bytes:
    return saved(lambda file: pa.feather.write_feather(TABLE, file, compression))


FORMATS: dict[str, tuple[Callable[[list[str]], Source], list[bytes]]] = {
    "csv": (CsvFiles, [b"x,y,z\n" + b"".join(b'%d,"a b",%d.5\n' % (row, row) for row in range(40)), QUOTED]),
    "jsonl": (JsonLines, [b"".join(b'{"x": %d, "y": [1, 2], "z": {"a": "b"}}\n' % row for row in range(40))]),
    "text": (TextLines, ["über\nalles\r\n\n".encode() * 9]),
    "npy": (ArrayFiles, [saved(lambda file: np.save(file, _ROWS)), saved(lambda file: np.save(file, TEXTS))]),
    "npz": (ArrayFiles, [saved(lambda f: np.savez(f, x=_ROWS)), saved(lambda f: np.savez_compressed(f, x=_ROWS))]),
    "tfrecord": (TFRecordFiles, [RECORDS]),
    "tfrecord.gz": (TFRecordFiles, [gzip.compress(RECORDS, mtime=0), gzip.compress(RECORDS, mtime=0) * 2]),
    "tar": (TarFiles, [archive()]),
    "parquet": (ParquetFiles, [saved(lambda f: pq.write_table(TABLE, f, row_group_size=9, compression=None))]),
    "arrow": (ArrowFiles, [feather("uncompressed"), feather("zstd")]),
    "wav": (AudioFiles, [wave()]),
} | {
    kind.lower(): (lambda paths: ImageFiles(paths, ReadOptions(image_size=(8, 8), color="rgb")), [picture(kind), *more])
    for kind, more in {
        "JPEG": [picture("JPEG", progressive=True)],
        "PNG": [saved(lambda file: Image.new("I;16", (4, 5)).save(file, "PNG"))],
        "GIF": [picture("GIF", save_all=True, append_images=[Image.new("P", (9, 9))])],
        "BMP": [],
        "TIFF": [picture("TIFF", compression="tiff_lzw"), picture("TIFF", compression="jpeg")],
        "WEBP": [picture("WEBP", lossless=True)],
    }.items()
}  # fmt: skip
Change = tuple[str, float, int, int]
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["set", "flip", "cut", "insert", "repeat", "remove", "zeros"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 255),
        st.integers(1, 64),
    ),
    max_size=8,
)


def changed(raw: bytes, changes: list[Change]) -> bytes:
    content = bytearray(raw)
    for kind, share, value, length in changes:
        place = int(share * len(content))
        if kind == "set" and content:
            content[place] = value
        elif kind == "flip" and content:
            content[place] ^= 1 << value % 8
        elif kind == "cut":
            del content[place:]
        elif kind == "insert":
            content[place:place] = bytes([value]) * length
        elif kind == "repeat":
            content[place:place] = content[place : place + length]
        elif kind == "remove":
            del content[place : place + length]
        elif kind == "zeros":
            content[place : place + length] = bytes(min(length, len(content) - place))
    return bytes(content)


def read_everything(source: Source) -> None:
    """Read all rows, as a job would. Rows are as many as were counted."""
    try:
        columns = list(source.schema())
        for span in source.divide(7):
            blocks = list(source.read(span, columns))
            assert sum(block.rows for block in blocks) == span.rows
            source.origin(span, span.start)
            Digester(source, columns).digest(span)
            for block in blocks:
                fill(block)
    except InputError:
        pass


def fill(block: Block) -> None:
    for column in block.columns.values():
        if isinstance(column, Deferred):
            column.sizes()
            shape = (8, 8, 3) if type(column).__module__.startswith("penstock.sources.images") else (100,)
            bad = column.fill(
                np.zeros((block.rows, *shape), np.uint8 if len(shape) == 3 else np.float32), lambda _: None
            )
            assert all(bad.values())


def fuzz(name: str, folder: Path, cases: int) -> int:
    """Run the cases of a format; returns how many there were."""
    opened, samples = FORMATS[name]
    path = folder / f"case.{name}"
    count = 0

    @settings(
        max_examples=cases,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(samples) | st.binary(max_size=300), CHANGES)
    def run(raw: bytes, changes: list[Change]) -> None:
        nonlocal count
        count += 1
        path.write_bytes(changed(raw, changes))
        read_everything(opened([str(path)]))

    run()
    return count


@pytest.mark.parametrize("name", FORMATS)
def test_any_bytes_give_rows_failures_or_an_error(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property("cases", fuzz(name, tmp_path, SHORT))


def test_parquet_chunk_that_arrow_aborts_on_is_an_error_of_its_span(tmp_path: Path) -> None:
    """A histogram of 2 levels in the place of 4, in the footer: `RowGroupMetaData.column` would end the process."""
    raw = FORMATS["parquet"][1][0]
    before, four_levels, after = raw.rpartition(b"\x46\0\0\0\x36\0")  # the fourth group is the last with 9 rows
    two_levels_and_unknown_fields = b"\x26\0\0\x11\x11\0"
    assert four_levels
    path = tmp_path / "levels.parquet"
    path.write_bytes(before + two_levels_and_unknown_fields + after)
    source = ParquetFiles([str(path)])
    columns = ["list"]
    first, _, _, span, _ = source.divide(7)
    assert sum(block.rows for block in source.read(first, columns)) == 9
    with pytest.raises(InputError, match="histogram size mismatch"):
        list(source.read(span, columns))
    with pytest.raises(InputError, match="histogram size mismatch"):
        list(source.extents(span, columns))


def test_names_of_columns_that_are_no_text_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "names.arrow"
    path.write_bytes(FORMATS["arrow"][1][0].replace(b"word\0", b"wor\xe4\0"))
    with pytest.raises(InputError, match="the file is damaged or not an Arrow file"):
        ArrowFiles([str(path)]).schema()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", FORMATS)
def test_very_many_bytes_give_rows_failures_or_an_error(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property("cases", fuzz(name, tmp_path, LONG))
