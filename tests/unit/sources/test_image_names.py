"""Where images are looked for, and what members of an archive are called."""

from __future__ import annotations

import pytest

from penstock.sources.images.columns import folder_of
from penstock.sources.tar.files import split_name


@pytest.mark.parametrize(
    ("paths", "folder"),
    [
        (["/d/a.csv"], "/d"),
        (["/d/x/a.csv", "/d/y/b.csv"], "/d"),
        (["s3://b/t/ab/1.csv", "s3://b/t/ac/2.csv"], "s3://b/t"),
        (["s3://b/t/1.csv"], "s3://b/t"),
    ],
)
def test_paths_are_taken_from_the_folder_of_their_tables(paths: list[str], folder: str) -> None:
    assert folder_of(paths) == folder


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a.jpg", ("a", "jpg")),
        ("x.y/a.Left.JPG", ("x.y/a", "left.jpg")),
        ("README", ("README", "")),
        ("d/.hidden.jpg", ("d/.hidden.jpg", "")),
        ("../../a.cls", ("../../a", "cls")),
    ],
)
def test_names_of_members_are_a_key_and_a_column(name: str, parts: tuple[str, str]) -> None:
    assert split_name(name) == parts
