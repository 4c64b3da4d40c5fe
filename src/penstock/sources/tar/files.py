"""Tar files of samples, by WebDataset's convention: members that share a key are one row.

The key of a member is its path up to the first dot of the name; what follows the dot is its column. `a.jpg`, `a.cls`
and `a.json` are one row with the columns `image`, `cls` and `json`.
"""

import itertools
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from penstock.core.kinds import SourceFormat
from penstock.core.protocols import SourceTraits
from penstock.core.records import STRING, Array, Block, Extent, RowFailure, SourceColumn, Span, TensorSpec
from penstock.errors import InputError
from penstock.options.records import ReadOptions
from penstock.sources.files import paths as files
from penstock.sources.files.file_source import FileSource
from penstock.sources.files.paths import fail_empty, fail_unreadable, open_binary
from penstock.sources.images.decoding import PACKAGES
from penstock.sources.images.encoded import MOST_FILE_BYTES, EncodedImages, image_spec
from penstock.sources.images.files import IMAGE_SUFFIXES, LARGEST_SPAN
from penstock.sources.images.resizing import Rendition
from penstock.sources.tar.members import CUT, Damage, Member, NotATar, walk

BLOCK_BYTES = 8 << 20
"""A block is passed on when it has about this many bytes."""

MOST_COLUMNS = 100
_TEXTS = frozenset({"txt", "text", "cls", "cls2", "index", "json", "csv", "caption", "transcript", "html", "xml"})
_PLAIN_IMAGES = frozenset(suffix.removeprefix(".") for suffix in IMAGE_SUFFIXES)


@dataclass
class _Sample:
    """The members of one row, by column; or only why they cannot be read."""

    start: int
    key: str
    members: dict[str, Member] = field(default_factory=dict)
    damage: str | None = None

    @property
    def name(self) -> str:
        """The name that stands for the row: that of its image, if it has one."""
        member = self.members.get("image") or next(iter(self.members.values()), None)
        return member.name if member is not None else f"byte {self.start}"


@dataclass
class _Index:
    """Where the samples of a tar begin, as a flat array, and the columns they have together."""

    starts: Array
    end: int
    columns: tuple[str, ...]


class TarFiles(FileSource):
    """Tar files with a column for every extension; `image` unites those of images, and `path` is TAR/member.

    Images of a compound extension (`left.jpg`), and a second one of a sample, are image columns under that name.
    Text (`txt`, `cls`, `json` and such) is text, all else bytes; what a sample lacks is null. Members without an
    extension, hidden ones and folders are passed over. Links and devices are never followed: their row fails.
    Each place at which an archive is cut or damaged is one failed row, with the number of bytes that were lost.
    """

    keeps = ("path",)
    traits = SourceTraits(packages=PACKAGES)

    def __init__(self, paths: Sequence[str], reading: ReadOptions | None = None) -> None:
        super().__init__(paths)
        self._reading = reading or ReadOptions()
        self._schema: dict[str, TensorSpec] | None = None
        self._indices: list[_Index] = []

    def __getstate__(self) -> dict[str, Any]:
        # Spans say where their samples lie: the index is for dividing, and may be large.
        return super().__getstate__() | {"_indices": []}

    def schema(self) -> dict[str, TensorSpec]:
        if self._schema is None:
            self._scan()
            columns = dict.fromkeys(name for index in self._indices for name in index.columns)
            names = [*(["image"] if "image" in columns else []), *(name for name in columns if name != "image"), "path"]
            self._schema = {name: self._spec(name) for name in names}
        return self._schema

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterator[Span]:
        """A locator is (file, first byte, end). A span stays inside its archive."""
        self._scan()
        rows = sum(len(index.starts) for index in self._indices)
        if not rows:
            raise fail_empty(self.paths)
        most_bytes = LARGEST_SPAN * rows_per_span * sum(index.end for index in self._indices) // rows
        number = row = 0
        for file, index in enumerate(self._indices):
            edges = np.append(index.starts, index.end)
            first = 0
            while first < len(index.starts):
                fitting = int(np.searchsorted(edges, edges[first] + most_bytes, "right")) - 1
                stop = min(len(index.starts), first + rows_per_span, max(first + 1, fitting))
                yield Span(number, row, stop - first, (file, int(edges[first]), int(edges[stop])))
                number, row, first = number + 1, row + stop - first, stop

    def origin(self, span: Span, row: int) -> str:
        number, start, stop = span.locator
        path: str = self.paths[number]
        with _opened(path) as (file, length):
            samples = itertools.islice(_samples(walk(file, length, start, stop)), row - span.start, None)
            sample = next(samples, None)
        return f"{path}/{sample.name}" if sample is not None else path

    def extents(self, span: Span, columns: Sequence[str]) -> Iterator[Extent]:
        number, start, stop = span.locator
        yield Extent(files.listed(self.paths, number), start, stop - start)

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        schema = self.schema()
        path = self.paths[span.locator[0]]
        gathered = _BlockBuilder(
            path, span.start, {name: schema[name] for name in columns}, Rendition.of(self._reading)
        )
        _, start, stop = span.locator
        with _opened(path) as (file, length):
            for sample in _samples(walk(file, length, start, stop)):
                gathered.add(sample, file)
                if gathered.bytes >= BLOCK_BYTES:
                    yield gathered.take()
        if gathered.rows:
            yield gathered.take()

    def _spec(self, name: str) -> TensorSpec:
        return image_spec(name, self._reading) if _is_image(name) else TensorSpec(name, STRING, ())

    def _scan(self) -> None:
        if not self._indices:
            self._indices = [_index(path) for path in self.paths]
        names = {name for index in self._indices for name in index.columns}
        if len(names) > MOST_COLUMNS:
            raise InputError(
                "the members have too many extensions to be columns",
                received=f"{self.paths[0]}: {len(names)}, such as {', '.join(sorted(names)[:3])}",
                allowed=f"{MOST_COLUMNS} at most",
                hint="all that follows the first dot of a name is its extension: rename a.001.jpg to a_001.jpg",
            )


@contextmanager
def _opened(path: str) -> Iterator[tuple[BinaryIO, int]]:
    """An archive and its length."""
    try:
        length = files.size_of(path)
        with open_binary(path) as file:
            if file.read(2) == b"\x1f\x8b":
                raise InputError(
                    "a compressed archive cannot be read from the middle",
                    received=path,
                    allowed="plain .tar files",
                    hint="gunzip it first: images are compressed already",
                )
            yield file, length
    except NotATar as error:
        raise InputError("the file is damaged or not a tar file", received=f"{path}: {error}") from error
    except OSError as error:
        raise fail_unreadable(path, error) from error


def _index(path: str) -> _Index:
    starts = array("q")
    columns: dict[str, None] = {}
    with _opened(path) as (file, length):
        for sample in _samples(walk(file, length)):
            starts.append(sample.start)
            columns |= dict.fromkeys(sample.members)
    if starts and not columns:
        raise InputError("nothing in the archive can be read", received=path)
    # One more than the length: if the end of an archive is missing, that is a sample at `length`.
    return _Index(np.array(starts, np.int64), length + 1, tuple(columns))


def _samples(members: Iterable[Member | Damage]) -> Iterator[_Sample]:
    """Members in a row that share a key, together; damage by itself."""
    sample: _Sample | None = None
    for member in members:
        if isinstance(member, Damage):
            if sample is not None:
                yield sample
            yield _Sample(member.start, "", damage=str(member))
            sample = None
            continue
        key, extension = split_name(member.name)
        if not extension:
            continue
        column = _column(extension, sample) if sample is not None and sample.key == key else None
        if sample is None or column is None:
            if sample is not None:
                yield sample
            sample = _Sample(member.start, key)
            column = _column(extension, sample)
        assert column is not None
        sample.members[column] = member
    if sample is not None:
        yield sample


def split_name(name: str) -> tuple[str, str]:
    """Key and extension of a member; no extension for what is no part of a sample.

    >>> split_name("train.v2/0001.left.JPG")
    ('train.v2/0001', 'left.jpg')
    """
    folder, slash, last = name.rpartition("/")
    stem, _, extension = last.partition(".")
    return (folder + slash + stem, extension.lower()) if stem else (name, "")


def _column(extension: str, sample: _Sample) -> str | None:
    """The column for another member of a sample; None if it has one already, and a new sample begins."""
    if extension in _PLAIN_IMAGES:
        first = sample.members.get("image")
        if first is None:
            return "image"
        if split_name(first.name)[1] == extension:
            return None
    column = f".{extension}" if extension in ("image", "path") else extension
    return None if column in sample.members else column


def _is_image(column: str) -> bool:
    return column == "image" or column.rpartition(".")[2] in _PLAIN_IMAGES


class _BlockBuilder:
    """Rows on their way into a block."""

    def __init__(self, path: str, start: int, columns: Mapping[str, TensorSpec], rendition: Rendition) -> None:
        self._path = path
        self._start = start
        self._columns = columns
        self._rendition = rendition
        self._clear()

    def _clear(self) -> None:
        self.rows = self.bytes = 0
        self._values: dict[str, list[bytes | str | None]] = {name: [] for name in self._columns}
        self._failures: dict[int, RowFailure] = {}

    def add(self, sample: _Sample, file: BinaryIO) -> None:
        if sample.damage is not None:
            self._fail(sample, "DamagedArchive", sample.damage)
        for name, values in self._values.items():
            if name == "path":
                values.append(f"{self._path}/{sample.name}")
                continue
            member = sample.members.get(name)
            try:
                content = _content(file, member) if member is not None else None
                values.append(content.decode() if content is not None and name in _TEXTS else content)
                self.bytes += len(content or b"")
            except ValueError as error:
                reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
                self._fail(sample, "BadMember", f"{member.name if member else name} is {reason}")
                values.append(None)
        self.rows += 1

    def take(self) -> Block:
        """The gathered rows as a block; the next row begins another one."""
        made: dict[str, SourceColumn] = {}
        for name, values in self._values.items():
            if self._columns[name].encoding is not None:
                made[name] = EncodedImages(pa.array(values, pa.large_binary()), self._rendition)
            else:
                is_text = name == "path" or name in _TEXTS
                made[name] = pa.array(values, pa.large_string() if is_text else pa.large_binary())
        block = Block(self._start, self.rows, made, tuple(self._failures.values()))
        self._start += self.rows
        self._clear()
        return block

    def _fail(self, sample: _Sample, error: str, reason: str) -> None:
        row = self._start + self.rows
        self._failures.setdefault(row, RowFailure(row, f"{self._path}/{sample.name}", "read", error, reason))


def _content(file: BinaryIO, member: Member) -> bytes:
    if member.problem is not None:
        raise ValueError(member.problem)
    if member.size > MOST_FILE_BYTES:
        raise ValueError(f"too large ({member.size:,} bytes)")
    file.seek(member.offset)
    content = file.read(member.size)
    if len(content) < member.size:
        raise ValueError(CUT)
    return content


FORMAT = SourceFormat((".tar", ".tgz", ".tar.gz"), TarFiles)
