"""Record batches that inflate to far more than the file holds are refused before anything is inflated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import InputError
from penstock.sources.tables.arrow import ArrowFiles
from penstock.sources.tables.arrow_sizes import refuse_bombs, refuse_bombs_of_stream

ZEROS = (1 << 30) // 8 + 1
"""Numbers that take more than 1 GB. Memory that was never written to costs nothing."""


def write(path: Path, table: pa.Table, codec: str, *, is_stream: bool) -> None:
    opened = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    with opened(path, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table)


@pytest.mark.parametrize("is_stream", [False, True])
def test_batch_that_inflates_to_gigabytes_is_refused(is_stream: bool, tmp_path: Path) -> None:
    path = tmp_path / "bomb.arrow"
    write(path, pa.table({"x": np.zeros(ZEROS, np.float64)}), "zstd", is_stream=is_stream)
    assert path.stat().st_size < 1 << 20
    before = pa.total_allocated_bytes()
    with pytest.raises(InputError, match=r"a record batch of [\d,]+ bytes inflates to 1,073,741,8"):
        ArrowFiles([str(path)]).schema()
    assert pa.total_allocated_bytes() == before


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize("is_stream", [False, True])
def test_dictionary_that_inflates_to_gigabytes_is_refused(is_stream: bool, codec: str, tmp_path: Path) -> None:
    """A header that says so is enough: here the size that stands before a compressed buffer is altered."""
    path = tmp_path / "bomb.arrow"
    words = pa.array(["word " * 5000, "other " * 5000]).dictionary_encode()
    write(path, pa.table({"word": words}), codec, is_stream=is_stream)
    raw, size = path.read_bytes(), (11 * 5000).to_bytes(8, "little")
    assert size in raw
    path.write_bytes(raw.replace(size, (1 << 40).to_bytes(8, "little")))
    with pytest.raises(InputError, match="inflates to 1,099,511,"):
        ArrowFiles([str(path)]).schema()


@pytest.mark.parametrize("codec", ["zstd", "lz4", None])
def test_usual_batches_are_no_bombs(codec: str | None, tmp_path: Path) -> None:
    table = pa.table({"x": np.zeros(1 << 20), "word": pa.array(["a", "b"] * (1 << 19)).dictionary_encode()})
    file, stream = tmp_path / "file.arrow", tmp_path / "stream.arrow"
    for path in (file, stream):
        write(path, table, codec, is_stream=path is stream)  # type: ignore[arg-type]
        assert list(ArrowFiles([str(path)]).schema()) == ["x", "word"]
    refuse_bombs(str(file), file.stat().st_size)
    refuse_bombs_of_stream(str(stream))
