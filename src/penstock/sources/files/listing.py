"""Compact lists of files: paths, sizes and times of a million files in less than 100 bytes each."""

from __future__ import annotations

import glob
import itertools
import os
import re
import stat
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.records import Array, Fragment
from penstock.errors import InputError

_STEP = 4096
_COMPRESSIONS = frozenset({".gz", ".bz2", ".xz", ".zst"})
_NUMBERED = re.compile(r"-\d+-of-\d+$")


NUMBERED = "-of-"
"""Stands in place of a suffix for the numbered files of a set that have none."""


def suffix_of(path: str) -> str:
    """The part of a name that gives the format, in lower case: `.csv`, but also `.tfrecord.gz`.

    Of `x.tfrecord-00000-of-00010` it is `.tfrecord`; of `train-00000-of-00010`, which has no format, `-of-`.

    >>> suffix_of("a/b.v2/rows.TFRecord.gz"), suffix_of("train-00000-of-00010")
    ('.tfrecord.gz', '-of-')
    """
    name = path.rpartition("/")[2].lower()
    if "-of-" in name:
        name, numbers = _NUMBERED.subn("", name)
        if numbers and "." not in name:
            return NUMBERED
    stem, dot, last = name.rpartition(".")
    if not stem:
        return ""  # no dot at all, or a hidden file
    if dot + last in _COMPRESSIONS and "." in stem:
        return "." + stem.rpartition(".")[2] + dot + last
    return dot + last


@dataclass(frozen=True)
class Group:
    """Files whose paths begin with `prefix`, which ends in a slash or is empty. Names are bytes, as on disk."""

    prefix: str
    names: pa.LargeBinaryArray
    sizes: Array
    mtimes: Array
    suffixes: Mapping[str, bytes]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, rows: slice) -> Group:
        return Group(self.prefix, self.names[rows], self.sizes[rows], self.mtimes[rows], self.suffixes)

    def path(self, position: int) -> str:
        return self._join(self.names[position].as_py())

    def full_names(self) -> pa.LargeBinaryArray:
        """The paths as they are on disk, in bytes."""
        prefix = pa.scalar(os.fsencode(self.prefix), pa.large_binary())
        return pc.binary_join_element_wise(prefix, self.names, pa.scalar(b"", pa.large_binary()))

    def split(self, suffixes: Collection[str]) -> tuple[Group, list[str]]:
        """The files that have one of the suffixes, and the paths of the others."""
        if self.suffixes.keys() <= set(suffixes):
            return self, []
        kept = np.fromiter((suffix_of(path) in suffixes for path in self), bool, len(self))
        known = {suffix: name for suffix, name in self.suffixes.items() if suffix in suffixes}
        group = Group(self.prefix, self.names.filter(pa.array(kept)), self.sizes[kept], self.mtimes[kept], known)
        return group, [self.path(int(position)) for position in np.flatnonzero(~kept)]

    def examples(self) -> dict[str, str]:
        """Every suffix, with the path of a file that has it."""
        return {suffix: self._join(name) for suffix, name in self.suffixes.items()}

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self.names), _STEP):
            yield from map(self._join, self.names.slice(start, _STEP).to_pylist())

    def _join(self, name: bytes) -> str:
        return self.prefix + os.fsdecode(name)


class Paths(Sequence[str]):
    """Absolute paths in input order, made when they are asked for.

    Attributes:
        sizes: int64, the bytes of every file.
        mtimes: int64, when every file was changed, in nanoseconds; for a URL, a number that changes with the object.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = [group for group in groups if len(group)]
        self._starts = [0, *itertools.accumulate(len(group) for group in self._groups)]
        nothing = np.empty(0, np.int64)
        self.sizes: Array = _joined([group.sizes for group in self._groups] or [nothing])
        self.mtimes: Array = _joined([group.mtimes for group in self._groups] or [nothing])

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Paths: ...

    def __getitem__(self, index: int | slice) -> str | Paths:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError("paths are sliced without a step")
            return self._between(start, stop)
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(index)
        number = bisect_right(self._starts, position) - 1
        return self._groups[number].path(position - self._starts[number])

    def _between(self, start: int, stop: int) -> Paths:
        cut = [
            group[max(0, start - first) : max(0, stop - first)]
            for group, first in zip(self._groups, self._starts, strict=False)
        ]
        return Paths(cut)

    def __iter__(self) -> Iterator[str]:
        for group in self._groups:
            yield from group

    def __repr__(self) -> str:
        return f"Paths({len(self)} files)"

    def examples(self) -> dict[str, str]:
        """Every suffix among them, with the path of a file that has it: no need to look at a million."""
        examples: dict[str, str] = {}
        for group in self._groups:
            examples = group.examples() | examples
        return examples

    def split(self, suffixes: Collection[str]) -> tuple[Paths, list[str]]:
        """The files that have one of the suffixes, and the paths of the others. Files named one by one are kept."""
        divided = [group.split(suffixes) if group.prefix else (group, []) for group in self._groups]
        return Paths([group for group, _ in divided]), [path for _, others in divided for path in others]

    def fragments(self) -> list[Fragment]:
        """The files as the fingerprint has them: from the listing, without another look at any file."""
        files = zip(self, self.sizes.tolist(), self.mtimes.tolist(), strict=True)
        return [Fragment(path, size, mtime) for path, size, mtime in files]

    def fragment(self, number: int) -> Fragment:
        """One of the files as the fingerprint has it."""
        return Fragment(self[number], int(self.sizes[number]), int(self.mtimes[number]))

    def distributed(self, wanted: Sequence[Sequence[str]]) -> list[Paths]:
        """The files of each list, in the order of the list, and last all other files, in their present order.

        A file that is not here is left out.
        """
        whole = pa.chunked_array([group.full_names() for group in self._groups], pa.large_binary()).combine_chunks()
        lists = [pa.array(map(os.fsencode, paths), pa.large_binary()) for paths in wanted]
        known_rows = [pc.index_in(names, value_set=whole).drop_null().to_numpy() for names in lists]
        known = pc.is_in(whole, value_set=pa.chunked_array(lists, pa.large_binary())).to_numpy(zero_copy_only=False)
        suffixes = {suffix: os.fsencode(path) for suffix, path in self.examples().items()}
        return [
            Paths([Group("", whole.take(pa.array(rows)), self.sizes[rows], self.mtimes[rows], suffixes)])
            for rows in (*known_rows, np.flatnonzero(~known))
        ]


def _joined(arrays: list[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


class Collector:
    """Names with their sizes and times, collected one by one into flat buffers."""

    def __init__(self) -> None:
        self._names = bytearray()
        self._ends = array("q", [0])
        self._sizes = array("q")
        self._mtimes = array("q")
        self._suffixes: dict[str, bytes] = {}

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, name: bytes, size: int, mtime_ns: int, suffix: str) -> None:
        self._suffixes.setdefault(suffix, name)
        self._names += name
        self._ends.append(len(self._names))
        self._sizes.append(size)
        self._mtimes.append(mtime_ns)

    def finish(self, prefix: str, *, is_sorted: bool, keep: Callable[[bytes], bool] | None = None) -> Group:
        """The collected files, sorted bytewise by name unless they are sorted already; `keep` filters the names."""
        buffers = [None, pa.py_buffer(self._ends), pa.py_buffer(self._names)]
        names = pa.Array.from_buffers(pa.large_binary(), len(self), buffers)
        sizes, mtimes = np.frombuffer(self._sizes, np.int64), np.frombuffer(self._mtimes, np.int64)
        if not is_sorted:
            order = pc.array_sort_indices(names)
            positions = np.from_dlpack(order)  # `to_numpy` imports pandas where it is installed
            names, sizes, mtimes = names.take(order), sizes[positions], mtimes[positions]
        if keep is not None:
            kept = np.fromiter((keep(name.as_py()) for name in names), bool, len(names))
            names, sizes, mtimes = names.filter(pa.array(kept)), sizes[kept], mtimes[kept]
        return Group(prefix, names, sizes, mtimes, self._suffixes)


def walk(folder: str, suffixes: Collection[str], last_resort: Collection[str] = ()) -> Group:
    """The files below a folder that have one of the suffixes, links followed, every folder once.

    Names that start with a dot or an underscore are skipped. Files with a suffix of `last_resort` count only where
    there is nothing else: a README.txt beside a table is not data.
    """
    root = os.path.abspath(folder)
    matching, spare = Collector(), Collector()
    walked: set[tuple[int, int]] = set()
    waiting = [b""]
    while waiting:
        inside = waiting.pop()
        full_path = os.path.join(os.fsencode(root), inside)
        try:
            status = os.stat(full_path)
            if (status.st_dev, status.st_ino) in walked:
                continue  # a link back to where we were
            walked.add((status.st_dev, status.st_ino))
            if inside and os.path.isdir(os.path.join(full_path, b"_penstock")):
                continue  # an output folder of penstock is not part of the input
            folders = _look_into(full_path, inside, suffixes, last_resort, matching, spare)
        except OSError as error:
            received = f"{os.fsdecode(full_path)}: {error.strerror}"
            raise InputError("a folder cannot be read", received=received) from error
        # `pop` takes the last one: folders are walked in sorted order, so that of two links the same one always wins.
        waiting += sorted(folders, reverse=True)
    return (matching if len(matching) else spare).finish(as_prefix(root), is_sorted=False)


def _look_into(
    folder: bytes,
    inside: bytes,
    suffixes: Collection[str],
    last_resort: Collection[str],
    matching: Collector,
    spare: Collector,
) -> list[bytes]:
    """Collect the files of one folder; returns the folders in it."""
    folders: list[bytes] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if name.startswith((b".", b"_")):
                continue
            relative = inside + b"/" + name if inside else name
            suffix = suffix_of(os.fsdecode(name))
            if _is_folder(entry, is_data=suffix in suffixes or suffix in last_resort):
                folders.append(relative)
                continue
            wanted = matching if suffix in suffixes else spare if suffix in last_resort else None
            if wanted is not None:
                _collect(wanted, relative, entry, suffix)
    return folders


def _is_folder(entry: os.DirEntry[bytes], is_data: bool) -> bool:
    """Whether an entry is a folder, or a link to one. A link that cannot be followed is a broken file if its name fits.

    Raises:
        InputError: The link is part of a loop, or leads into a folder that this user may not read.
    """
    try:
        return entry.is_dir()
    except OSError as error:
        if is_data:
            return False
        received = f"{os.fsdecode(entry.path)}: {error.strerror}"
        raise InputError("a link leads nowhere", received=received, hint="remove it, or the loop of links") from error


def _collect(collector: Collector, name: bytes, entry: os.DirEntry[bytes], suffix: str) -> None:
    try:
        status = entry.stat()
    except OSError:
        collector.add(name, 0, 0, suffix)  # a broken link: an error when it is read
        return
    if stat.S_ISREG(status.st_mode):
        collector.add(name, status.st_size, status.st_mtime_ns, suffix)


def match(pattern: str) -> Group:
    """The files that a glob matches, bytewise."""
    literal = pattern[: re.search(r"[*?\[]", pattern).start()]  # type: ignore[union-attr]
    root = os.path.dirname(literal)
    matching = Collector()
    inside = len(root.rstrip("/")) + 1 if root else 0
    for path in glob.iglob(pattern, recursive=True):
        try:
            status = os.stat(path)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            matching.add(os.fsencode(path[inside:]), status.st_size, status.st_mtime_ns, suffix_of(path))
    return matching.finish(as_prefix(os.path.abspath(root)), is_sorted=False)


def as_prefix(folder: str) -> str:
    return folder if folder.endswith("/") else folder + "/"


def has_magic(path: str) -> bool:
    return glob.has_magic(path)
