"""Files of one row each, up to a million of them. A span is a run of files."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from penstock.core.protocols import Source, SourceTraits
from penstock.core.records import Array, Extent, Fragment, Span
from penstock.errors import InputError
from penstock.sources.files import paths as files
from penstock.sources.files.listing import Paths
from penstock.sources.files.paths import fail_empty

FILES_PER_FRAGMENT = 1000
SPAN_BYTES = 256 << 20


class FileRuns(Source):
    """Files in input order, one row each: all that a source of such files needs, except columns and reading.

    A locator is (first file,), and the span's rows are the files from there on. For picked rows, the locator has the
    number of every file.

    Args:
        paths: A list, or `listing.Paths`, which is compact and has sizes and times already.
    """

    keeps = ("path",)
    traits = SourceTraits(reads_at_random=True)
    paths: Sequence[str] = ()

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths
        self._sizes: Array | None = paths.sizes if isinstance(paths, Paths) else None

    def __len__(self) -> int:
        return len(self.paths)

    def fragments(self) -> Sequence[Fragment]:
        """One for every 1,000 files: a digest of their paths and sizes, and one of their times."""
        groups: list[Fragment] = []
        sizes = np.zeros(len(self.paths), np.int64)
        for start in range(0, len(self.paths), FILES_PER_FRAGMENT):
            listed = list(_look_at(self.paths[start : start + FILES_PER_FRAGMENT]))
            sizes[start : start + len(listed)] = [file.size for file in listed]
            groups.append(listed[0] if len(listed) == 1 else _joined(listed))
        self._sizes = sizes
        return groups

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterator[Span]:
        return self.spans(rows_per_span)

    def spans(self, rows_per_span: int, most_bytes: int = SPAN_BYTES) -> Iterator[Span]:
        """Runs of `rows_per_span` files, or fewer where files are large, so that no replica works alone at the end."""
        if not len(self.paths):
            raise fail_empty(self.paths)
        if self._sizes is None:
            self.fragments()
        assert self._sizes is not None
        ends = np.cumsum(self._sizes)
        index = start = passed = 0
        while start < len(ends):
            fitting = int(np.searchsorted(ends, passed + most_bytes, "right"))
            stop = min(len(ends), start + rows_per_span, max(fitting, start + 1))
            yield Span(index, start, stop - start, (start,))
            index, start, passed = index + 1, stop, int(ends[stop - 1])

    def paths_of(self, span: Span) -> list[str]:
        first: int = span.locator[0]
        if len(span.locator) == span.rows:
            return [self.paths[number] for number in span.locator]
        return list(self.paths[first : first + span.rows])

    def pick(self, numbers: Array, start: int) -> Span:
        return Span(0, start, len(numbers), tuple(numbers.tolist()))

    def extents(self, span: Span, columns: Sequence[str]) -> Iterator[Extent]:
        first: int = span.locator[0]
        return map(Extent, _look_at(self.paths[first : first + span.rows]))

    def origin(self, span: Span, row: int) -> str:
        place = row - span.start
        number: int = span.locator[place] if len(span.locator) == span.rows else span.locator[0] + place
        return self.paths[number]


def _look_at(paths: Sequence[str]) -> Iterable[Fragment]:
    if isinstance(paths, Paths):
        return paths.fragments()
    return map(_fragment, paths)


def _fragment(path: str) -> Fragment:
    """The fragment of a file. A file that is gone by now becomes a failed row and does not stop the others."""
    try:
        return files.fragment(path)
    except (OSError, InputError):
        return Fragment(path, 0, 0)


def _joined(listed: Sequence[Fragment]) -> Fragment:
    digest, times = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=7)
    for file in listed:
        digest.update(os.fsencode(file.path) + f"\0{file.size}\0".encode())
        times.update(f"{file.mtime_ns} ".encode())
    path = f"{listed[0].path} and {len(listed) - 1} more: {digest.hexdigest()}"
    return Fragment(path, sum(file.size for file in listed), int.from_bytes(times.digest()))


def path_column(paths: Sequence[str]) -> pa.Array:
    """Paths as a column that every sink can write: bytes that are not UTF-8 are shown as �.

    Made without `pa.array`, which imports pandas where it is installed.
    """
    texts = [os.fsencode(path).decode("utf-8", "replace").encode() for path in paths]
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(texts))]
    return pa.Array.from_buffers(pa.large_string(), len(texts), buffers)
