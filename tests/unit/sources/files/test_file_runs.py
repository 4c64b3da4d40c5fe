"""One row a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import InputError
from penstock.sources.audio.files import AudioFiles
from penstock.sources.files.file_runs import path_column


def written(folder: Path, sizes: list[int]) -> list[str]:
    paths = [folder / f"{number:05}" for number in range(len(sizes))]
    for path, size in zip(paths, sizes, strict=True):
        path.write_bytes(bytes(size))
    return [str(path) for path in paths]


def test_spans_are_runs_of_files(tmp_path: Path) -> None:
    paths = written(tmp_path, [1] * 10)
    runs = AudioFiles(paths)
    spans = list(runs.spans(4))
    assert [(span.start, span.rows, span.locator) for span in spans] == [(0, 4, (0,)), (4, 4, (4,)), (8, 2, (8,))]
    assert [path for span in spans for path in runs.paths_of(span)] == paths
    assert runs.origin(spans[1], 6) == paths[6]


def test_large_files_make_spans_of_fewer_rows(tmp_path: Path) -> None:
    runs = AudioFiles(written(tmp_path, [10, 10, 100, 10, 10, 10, 10, 0, 0]))
    assert [span.rows for span in runs.spans(4, 30)] == [2, 1, 3, 3]


def test_every_thousand_files_are_one_fragment(tmp_path: Path) -> None:
    paths = written(tmp_path, [2] * 2001)
    fragments = AudioFiles(paths).fragments()
    assert [fragment.size for fragment in fragments] == [2000, 2000, 2]
    assert fragments[0].path.startswith(f"{paths[0]} and 999 more: ")
    assert fragments[2].path == paths[2000]


def test_file_that_is_gone_stops_nobody(tmp_path: Path) -> None:
    runs = AudioFiles([*written(tmp_path, [1]), str(tmp_path / "gone")])
    assert [span.rows for span in runs.spans(5)] == [2]


def test_no_files_are_no_rows() -> None:
    with pytest.raises(InputError, match="the input has no rows"):
        list(AudioFiles([]).spans(5))


def test_names_that_are_not_utf8_can_be_written() -> None:
    assert path_column(["é", "a\udcffb"]).to_pylist() == ["é", "a�b"]
