"""Files behind URLs: what needs no server to be shown."""

from __future__ import annotations

import errno
import os
import sys
import uuid

import pytest

from penstock.errors import DeviceError, InputError
from penstock.sources.files import remote
from penstock.sources.files.paths import expand, fragment, open_binary, read_bytes
from penstock.sources.files.remote_listing import _matches

URL = "s3://bucket/key"


class Failing:
    """Raises each error once, then answers; and notes how long it was waited for in between."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.waited: list[float] = []

    def call(self) -> str:
        if self._errors:
            raise self._errors.pop(0)
        return "answer"

    def tried(self, tries: int = 5) -> str:
        return remote.trying(URL, self.call, sleep=self.waited.append, tries=tries)


def test_errors_that_pass_are_survived_with_longer_and_longer_waits() -> None:
    store = Failing(TimeoutError(), ConnectionResetError(), OSError(errno.EBUSY, "slow down"), BrokenPipeError())
    assert store.tried() == "answer"
    assert len(store.waited) == 4
    assert store.waited == sorted(store.waited)
    assert 0 < sum(store.waited) < 10


def test_last_try_names_the_url_the_error_and_how_often() -> None:
    store = Failing(*(TimeoutError("no answer") for _ in range(9)))
    with pytest.raises(InputError) as caught:
        store.tried(tries=3)
    assert caught.value.received == f"{URL}: TimeoutError: no answer (tried 3 times)"
    assert len(store.waited) == 2


@pytest.mark.parametrize("error", [FileNotFoundError("key"), PermissionError("denied")])
def test_missing_and_forbidden_objects_are_told_at_once(error: Exception) -> None:
    store = Failing(error)
    with pytest.raises(type(error)):
        store.tried()
    assert not store.waited


def test_error_that_does_not_pass_is_told_at_once() -> None:
    store = Failing(RuntimeError("what is this"))
    with pytest.raises(InputError, match=r"what is this \(tried once\)"):
        store.tried()
    assert not store.waited


def test_unknown_protocol_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        expand(["gopher://host/x.npy"], [".npy"])
    assert caught.value.problem == "unknown protocol"


def test_missing_package_comes_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    monkeypatch.setattr(remote, "_file_systems", {})
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(DeviceError) as caught:
        expand(["gs://bucket/x.npy"], [".npy"])
    assert caught.value.hint == "pip install gcsfs"


def test_version_is_the_etag_however_it_is_quoted() -> None:
    assert remote.version_of({"ETag": '"abc"'}) == remote.version_of({"etag": "abc"})
    assert remote.version_of({"ETag": 'W/"abc"'}) == remote.version_of({"ETag": "abc", "LastModified": "later"})
    assert remote.version_of({"ETag": "abc"}) != remote.version_of({"ETag": "abd"})
    assert 0 <= remote.version_of({}) < 1 << 63


@pytest.mark.parametrize(
    ("pattern", "name", "is_match"),
    [
        ("*.npy", "a.npy", True),
        ("*.npy", "x/a.npy", False),
        ("*.npy", ".a.npy", False),
        ("*.npy", "_a.npy", True),
        (".*", ".a", True),
        ("*/a.npy", "x/a.npy", True),
        ("*/a.npy", "a.npy", False),
        ("**/a.npy", "a.npy", True),
        ("**/a.npy", "x/y/a.npy", True),
        ("**/a.npy", "x/.y/a.npy", False),
        ("**", "x/y/a.npy", True),
        ("x/**/b?.[ch]", "x/b1.c", True),
        ("x/**/b?.[ch]", "x/y/z/b1.h", True),
        ("x/**/b?.[ch]", "x/y/z/b12.h", False),
        ("part-[!0]*", "part-1", True),
        ("part-[!0]*", "part-0", False),
    ],
)
def test_globs_of_urls_mean_what_they_mean_for_files(pattern: str, name: str, is_match: bool) -> None:
    assert _matches(name.split("/"), pattern.split("/")) is is_match


@pytest.fixture
def memory() -> str:
    """A folder of files that exist in this process only."""
    fsspec = pytest.importorskip("fsspec")
    folder = f"memory://{uuid.uuid4().hex}"
    store = fsspec.filesystem("memory")
    for name in ("b.npy", "a/1.npy", "a.npy", "_c.npy", "d.txt", "x[1].npy"):
        store.pipe_file(f"{folder}/{name}", name.encode())
    return folder


def test_memory_files_are_copied_to_where_replicas_can_read_them(memory: str) -> None:
    found = expand([memory], [".npy"])
    assert [read_bytes(path) for path in found] == [b"a.npy", b"a/1.npy", b"b.npy", b"x[1].npy"]
    assert all(os.path.isfile(path) for path in found)
    assert read_bytes(expand([f"{memory}/*.npy"], [".npy"])[0]) == b"_c.npy"
    assert [read_bytes(path) for path in expand([f"{memory}/x[1].npy"], [".npy"])] == [b"x[1].npy"]


def test_memory_files_that_did_not_change_are_the_same_fragments(memory: str) -> None:
    first = list(expand([memory], [".npy"]).fragments())
    assert list(expand([memory], [".npy"]).fragments()) == first
    remote.file_system(memory).pipe_file(f"{memory}/b.npy", b"other")
    again = list(expand([memory], [".npy"]).fragments())
    assert [position for position in range(4) if again[position] != first[position]] == [2]


def test_memory_file_that_is_not_there_is_told(memory: str) -> None:
    with pytest.raises(InputError, match="only in the process that made them") as caught:
        expand([f"{memory}/none.npy"], [".npy"])
    assert caught.value.received == f"{memory}/none.npy"


def test_ranged_file_reads_like_a_file(memory: str) -> None:
    url = f"{memory}/b.npy"
    with open_binary(url) as file:
        assert (file.read(2), file.tell(), file.read(), file.read()) == (b"b.", 2, b"npy", b"")
        assert (file.seek(-2, os.SEEK_END), file.read(100)) == (3, b"py")
        assert (file.seek(99), file.read(1)) == (99, b"")
    assert read_bytes(url, 1, 3) == b".np"
    assert read_bytes(url, 3, 100) == b"py"
    assert fragment(url).size == 5
