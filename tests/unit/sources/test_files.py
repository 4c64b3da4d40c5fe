"""From arguments to files, in the order that rows will have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.errors import InputError
from penstock.sources.files import expand, fail_empty, fragment, suffix_of

SUFFIXES = (".npy", ".parquet")


def make(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def names(folder: Path, paths: list[str]) -> list[str]:
    return [os.path.relpath(path, folder) for path in paths]


def test_arguments_come_as_given(tmp_path: Path) -> None:
    make(tmp_path, "b.npy", "a.npy", "c.npy")
    given = [str(tmp_path / name) for name in ("c.npy", "a.npy", "b.npy", "a.npy")]
    assert expand(given, SUFFIXES) == given


def test_folder_comes_by_relative_path_bytewise(tmp_path: Path) -> None:
    make(tmp_path, "b.npy", "B.npy", "a/z.npy", "a.npy", "a-1.npy", "é.npy", "10.npy", "9.npy")
    assert names(tmp_path, expand([str(tmp_path)], SUFFIXES)) == [
        "10.npy",
        "9.npy",
        "B.npy",
        "a-1.npy",
        "a.npy",
        "a/z.npy",
        "b.npy",
        "é.npy",
    ]


def test_folder_gives_only_known_suffixes_in_any_case(tmp_path: Path) -> None:
    make(tmp_path, "a.npy", "b.NPY", "c.txt", "d", "e.parquet", "f.parquet.tmp")
    assert names(tmp_path, expand([str(tmp_path)], SUFFIXES)) == ["a.npy", "b.NPY", "e.parquet"]


def test_hidden_and_underscored_names_are_skipped_in_folders(tmp_path: Path) -> None:
    make(tmp_path, "a.npy", ".b.npy", "_c.npy", "_penstock/d.npy", ".git/e.npy", "deep/_f/g.npy", "deep/h.npy")
    assert names(tmp_path, expand([str(tmp_path)], SUFFIXES)) == ["a.npy", "deep/h.npy"]


def test_file_that_is_named_outright_may_be_called_anything(tmp_path: Path) -> None:
    make(tmp_path, "_c.dat")
    assert names(tmp_path, expand([str(tmp_path / "_c.dat")], SUFFIXES)) == ["_c.dat"]


def test_glob_comes_sorted_and_without_folders(tmp_path: Path) -> None:
    make(tmp_path, "b1.npy", "a1.npy", "B1.npy", "c1.npy/inside.npy", "sub/d1.npy")
    assert names(tmp_path, expand([str(tmp_path / "*1.npy")], SUFFIXES)) == ["B1.npy", "a1.npy", "b1.npy"]
    assert names(tmp_path, expand([str(tmp_path / "**" / "d1.npy")], SUFFIXES)) == ["sub/d1.npy"]


def test_file_whose_name_looks_like_a_glob_is_a_file(tmp_path: Path) -> None:
    make(tmp_path, "a[1].npy", "a1.npy")
    assert names(tmp_path, expand([str(tmp_path / "a[1].npy")], SUFFIXES)) == ["a[1].npy"]


def test_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "x/a.npy")
    monkeypatch.chdir(tmp_path)
    assert expand(["x"], SUFFIXES) == expand(["x/a.npy"], SUFFIXES) == [str(tmp_path / "x" / "a.npy")]


def test_linked_folder_is_followed(tmp_path: Path) -> None:
    make(tmp_path, "real/a.npy", "in/b.npy")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "real")
    assert names(tmp_path, expand([str(tmp_path / "in")], SUFFIXES)) == ["in/b.npy", "in/link/a.npy"]


def test_folder_that_links_to_itself_gives_every_file_once(tmp_path: Path) -> None:
    make(tmp_path, "in/a.npy")
    (tmp_path / "in" / "again").symlink_to(tmp_path / "in")
    assert names(tmp_path, expand([str(tmp_path / "in")], SUFFIXES)) == ["in/a.npy"]


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ("absent.npy", "no such file or folder"),
        ("*.csv", "the glob matches no file"),
        ("empty", "the folder holds no file of a known format"),
    ],
)
def test_argument_that_gives_nothing_is_told(tmp_path: Path, argument: str, problem: str) -> None:
    make(tmp_path, "a.npy", "empty/readme.txt")
    with pytest.raises(InputError) as caught:
        expand([str(tmp_path / "a.npy"), str(tmp_path / argument)], SUFFIXES)
    assert caught.value.problem == problem
    assert caught.value.received == str(tmp_path / argument)


def test_suffixes_are_told_in_lower_case() -> None:
    assert suffix_of("/a.b/c.NPZ") == ".npz"
    assert suffix_of("/a.b/c") == ""


def test_fragment_changes_with_size_and_time(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(b"12345")
    os.utime(path, ns=(0, 1_000_000_001))
    first = fragment(str(path))
    assert (first.path, first.size, first.mtime_ns) == (str(path), 5, 1_000_000_001)
    os.utime(path, ns=(0, 1_000_000_002))
    assert fragment(str(path)) != first


def test_empty_input_names_the_first_files() -> None:
    assert fail_empty(["a", "b"]).received == "a, b"
    assert fail_empty(list("abcde")).received == "a, b, c …"
