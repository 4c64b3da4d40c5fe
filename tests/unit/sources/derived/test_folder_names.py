"""The name of a photo's folder as a column."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from penstock.core.columns import to_arrow
from penstock.core.protocols import Source
from penstock.errors import UsageError
from penstock.jobs.output_columns import written_names
from penstock.jobs.steps import select_rows
from penstock.options.records import PredictOptions
from penstock.sources.derived.folder_names import FOLDER, FolderNames
from penstock.sources.images.files import ImageFiles
from penstock.sources.python.memory import InMemory
from penstock.sources.tar.files import TarFiles


def photos(folder: Path) -> ImageFiles:
    paths = [folder / "cats" / "1.jpg", folder / "cats" / "old" / "2.jpg", folder / "dogs é" / "3.jpg"]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return ImageFiles([str(path) for path in paths])


def column_of(source: Source, columns: list[str]) -> list[str]:
    blocks = [block for span in source.divide(2) for block in source.read(span, columns)]
    assert all(list(block.columns) == columns for block in blocks)
    return [value for block in blocks for value in to_arrow(block.columns[FOLDER]).to_pylist()]


def test_folder_is_the_last_one_of_the_path(tmp_path: Path) -> None:
    source = FolderNames(photos(tmp_path))
    assert list(source.schema()) == ["image", "path", FOLDER]
    assert column_of(source, [FOLDER]) == ["cats", "old", "dogs é"]
    assert column_of(source, ["path", FOLDER]) == ["cats", "old", "dogs é"]


def test_columns_are_as_they_were_where_it_is_not_asked_for(tmp_path: Path) -> None:
    source = FolderNames(photos(tmp_path))
    block = next(iter(source.read(next(iter(source.divide(3))), ["path"])))
    assert list(block.columns) == ["path"]


def test_folder_inside_an_archive_counts(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in ("cats/1.jpg", "dogs/2.jpg"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    assert column_of(FolderNames(TarFiles([str(tmp_path / "a.tar")])), [FOLDER]) == ["cats", "dogs"]


def test_rows_that_are_no_files_have_no_folder() -> None:
    with pytest.raises(UsageError, match="no folder") as caught:
        FolderNames(InMemory({"x": np.arange(3)}))
    assert caught.value.received == "keep=@folder"
    assert "columns: x" in (caught.value.allowed or "")


def test_job_has_it_only_where_it_is_kept(tmp_path: Path) -> None:
    source = photos(tmp_path)
    assert FOLDER not in select_rows(source, PredictOptions()).schema()
    options = PredictOptions(keep=(FOLDER,), limit=2)
    assert column_of(select_rows(source, options), [FOLDER]) == ["cats", "old"]


def test_it_is_written_as_folder_or_as_it_is_renamed() -> None:
    assert written_names(["y"], PredictOptions(keep=(FOLDER,)))["kept:@folder"] == "folder"
    renamed = PredictOptions(keep=(FOLDER,), rename={FOLDER: "class"})
    assert written_names(["y"], renamed)["kept:@folder"] == "class"
