"""From arguments to files, in the order that rows will have."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable
from pathlib import Path

import pytest

from penstock.core.records import Fragment
from penstock.errors import InputError
from penstock.sources.files.paths import (
    expand,
    fail_empty,
    fragment,
    is_url,
    open_binary,
    read_bytes,
    read_many,
    suffix_of,
)

SUFFIXES = (".npy", ".parquet")


def make(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def names(folder: Path, paths: Iterable[str]) -> list[str]:
    return [os.path.relpath(path, folder) for path in paths]


def test_arguments_come_as_given(tmp_path: Path) -> None:
    make(tmp_path, "b.npy", "a.npy", "c.npy")
    given = [str(tmp_path / name) for name in ("c.npy", "a.npy", "b.npy", "a.npy")]
    assert list(expand(given, SUFFIXES)) == given


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
    for argument in ("x", "x/a.npy", "x/*.npy", "./x/../x", "*/a.npy"):
        assert list(expand([argument], SUFFIXES)) == [str(tmp_path / "x" / "a.npy")]


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


def test_folder_that_links_to_a_neighbour_takes_the_first_by_name(tmp_path: Path) -> None:
    make(tmp_path, "b/x.npy")
    (tmp_path / "a").symlink_to(tmp_path / "b")
    assert names(tmp_path, expand([str(tmp_path)], SUFFIXES)) == ["a/x.npy"]


def test_output_folder_of_penstock_is_not_part_of_a_folder(tmp_path: Path) -> None:
    make(tmp_path, "a.npy", "predictions/part.npy", "predictions/_penstock/manifest.json", "predictions/deep/b.npy")
    assert names(tmp_path, expand([str(tmp_path)], SUFFIXES)) == ["a.npy"]
    assert names(tmp_path, expand([str(tmp_path / "predictions")], SUFFIXES)) == [
        "predictions/deep/b.npy",
        "predictions/part.npy",
    ]


def test_broken_link_is_listed_and_a_pipe_is_not(tmp_path: Path) -> None:
    make(tmp_path, "a.npy")
    (tmp_path / "broken.npy").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe.npy")
    found = expand([str(tmp_path)], SUFFIXES)
    assert names(tmp_path, found) == ["a.npy", "broken.npy"]
    assert found.sizes.tolist() == [0, 0]


def test_last_resort_counts_only_where_there_is_nothing_else(tmp_path: Path) -> None:
    make(tmp_path, "table/README.txt", "table/rows.parquet", "books/deep/a.txt", "books/b.TXT")
    assert names(tmp_path, expand([str(tmp_path / "table")], SUFFIXES, [".txt"])) == ["table/rows.parquet"]
    assert names(tmp_path, expand([str(tmp_path / "books")], SUFFIXES, [".txt"])) == ["books/b.TXT", "books/deep/a.txt"]


def test_name_that_is_not_utf8_is_found_and_opened(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff.npy"
    with open(name, "wb") as file:
        file.write(b"x")
    (path,) = expand([str(tmp_path)], SUFFIXES)
    assert os.fsencode(path) == name
    assert read_bytes(path) == b"x"


def test_paths_know_sizes_and_times(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.npy").write_bytes(b"x" * number)
        os.utime(tmp_path / f"{number}.npy", ns=(0, 10 + number))
    found = expand([str(tmp_path / "4.npy"), str(tmp_path), str(tmp_path / "[01].npy")], SUFFIXES)
    assert found.sizes.tolist() == [4, 0, 1, 2, 3, 4, 0, 1]
    assert found.mtimes.tolist() == [14, 10, 11, 12, 13, 14, 10, 11]
    assert list(found.fragments()) == [fragment(path) for path in found]
    assert found.fragments()[-1] == fragment(str(tmp_path / "1.npy"))
    assert found.examples() == {".npy": str(tmp_path / "4.npy")}


def test_paths_are_a_sequence_also_after_pickling(tmp_path: Path) -> None:
    make(tmp_path, "a/1.npy", "a/2.npy", "a/3.npy", "b.npy")
    arguments = [str(tmp_path / "a"), str(tmp_path / "b.npy"), str(tmp_path / "a")]
    found = pickle.loads(pickle.dumps(expand(arguments, SUFFIXES)))
    whole = list(found)
    assert len(found) == len(whole) == 7
    assert [found[position] for position in range(-7, 7)] == whole + whole
    for start in range(8):
        for stop in range(8):
            assert list(found[start:stop]) == whole[start:stop]
    assert list(found[2:6].fragments()[1:3]) == [fragment(path) for path in whole[3:5]]
    assert isinstance(found.fragments()[0], Fragment)
    with pytest.raises(IndexError):
        found[7]


def test_many_small_files_are_read_and_a_missing_one_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    first, second = read_many([str(tmp_path / "a"), str(tmp_path / "b")])
    assert first == b"a"
    assert isinstance(second, FileNotFoundError)


def test_url_of_a_file_is_a_path(tmp_path: Path) -> None:
    make(tmp_path, "x/a.npy")
    for argument in (f"file://{tmp_path}/x", f"file://{tmp_path}/x/a.npy", f"file://{tmp_path}/*/a.npy"):
        assert names(tmp_path, expand([argument], SUFFIXES)) == ["x/a.npy"]


def test_urls_are_told_from_paths() -> None:
    assert all(map(is_url, ("s3://b/k", "https://h/x.csv?y=1", "memory://x", "gs://b")))
    assert not any(map(is_url, ("/a/b", "a:b", "c:/d", "s3:/b", "./s3://b", "")))


@pytest.mark.parametrize(
    ("path", "suffix"),
    [
        ("/a.b/c", ""),
        ("x.tfrecord.gz", ".tfrecord.gz"),
        ("X.TAR.GZ", ".tar.gz"),
        ("x.gz", ".gz"),
        ("/d/rows.tfrecord-00003-of-00010", ".tfrecord"),
        ("train-00003-of-00010", "-of-"),
        ("train-00003-of-00010.parquet", ".parquet"),
        ("s3://bucket/v1.2/a.csv", ".csv"),
    ],
)
def test_suffix_says_the_format(path: str, suffix: str) -> None:
    assert suffix_of(path) == suffix


def test_suffixes_are_told_in_lower_case() -> None:
    assert suffix_of("/a.b/c.NPZ") == ".npz"
    assert suffix_of("/a.b/c") == suffix_of("/a.b/.npy") == ""


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


def test_files_are_distributed_over_lists_and_the_rest_keeps_its_order(tmp_path: Path) -> None:
    make(tmp_path, "a/1.npy", "a/2.npy", "a/3.npy", "b/ä.npy", "c.npy")
    found = expand([str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "c.npy")], SUFFIXES)
    first, second, rest = found.distributed(
        [[f"{tmp_path}/c.npy", f"{tmp_path}/a/2.npy"], [f"{tmp_path}/b/ä.npy", f"{tmp_path}/gone.npy"]]
    )
    assert names(tmp_path, first) == ["c.npy", "a/2.npy"]
    assert names(tmp_path, second) == ["b/ä.npy"], "what is not there is left out"
    assert names(tmp_path, rest) == ["a/1.npy", "a/3.npy"]
    assert list(first.fragments()) == [fragment(path) for path in first]
    assert first.examples().keys() == {".npy"}


def test_file_that_is_given_twice_is_in_one_list(tmp_path: Path) -> None:
    make(tmp_path, "1.npy", "2.npy")
    found = expand([str(tmp_path / "1.npy"), str(tmp_path)], SUFFIXES)
    first, rest = found.distributed([[f"{tmp_path}/1.npy"] * 2])
    assert names(tmp_path, first) == ["1.npy", "1.npy"]
    assert names(tmp_path, rest) == ["2.npy"]


def test_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.npy")
    for read in (open_binary, read_bytes):
        with pytest.raises(InputError, match="a pipe cannot be read"):
            read(str(tmp_path / "a.npy"))
