"""The protocol of sources: where rows come from, and what a source is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from penstock.core.records import Array, Block, Extent, Fragment, Span, TensorSpec, Watch
from penstock.errors import InputError

S = TypeVar("S")


@dataclass(frozen=True)
class SourceTraits:
    """What a source is. Known before any of its rows is read."""

    is_resumable: bool = True
    """Its rows can be read again, also by a later process. Those of a stream cannot."""
    runs_python: bool = False
    """Reading runs Python code for every row: loaders are processes of their own."""
    is_frame: bool = False
    """The columns are those of one table, which together may feed one input."""
    may_have_targets: bool = False
    """The last of columns without names may be the targets that the model was trained on."""
    reads_at_random: bool = False
    """Rows in any order are read as fast as in the order of the input: `pick` makes spans of them."""
    packages: tuple[str, ...] = ()
    """Packages that decode its values: another version may give other values. Some may not be installed."""


class Source(Protocol):
    """Where rows come from. Picklable; `read` runs in a loader, in another process.

    A source is never changed after it was made: `fitted_to` and `with_floats` return another one. A class that
    inherits from this protocol needs the five methods without a body; the rest has defaults.
    """

    @property
    def traits(self) -> SourceTraits:
        return SourceTraits()

    @property
    def is_positional(self) -> bool:
        """Whether columns have no names of their own, so that they feed inputs in order. May look at the first row."""
        return False

    @property
    def keeps(self) -> tuple[str, ...]:
        """Columns that are written beside the predictions by default. May look at the first rows."""
        return ()

    @property
    def paths(self) -> Sequence[str]:
        """The files that are read, in input order; empty where rows do not come from files."""
        return ()

    def fragments(self) -> Sequence[Fragment]:
        """The files that the fingerprint covers, in input order."""
        ...

    def schema(self) -> dict[str, TensorSpec]:
        """The columns, in their order."""
        ...

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterable[Span]:
        """All rows in order, cut into spans. Deterministic.

        A span may be larger where the format needs that (a row group), up to `most_rows`.
        """
        ...

    def pick(self, numbers: Array, start: int) -> Span:
        """A span of the rows with these numbers, in this order, counted from `start`; where `reads_at_random`.

        Such a span is read by the process that made it: its locator may hold arrays.
        """
        raise TypeError(f"{type(self).__name__} does not read rows at random")

    def origin(self, span: Span, row: int) -> str:
        """Where a row of `span` comes from: its file, and the place in it (`FILE, row 3`, or `FILE` alone)."""
        ...

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        """The rows of `span` in order, in blocks of whatever size is read fastest."""
        ...

    def fitted_to(self, inputs: Sequence[TensorSpec]) -> Source:
        """The source with its columns read as a model with these inputs takes them."""
        return self

    def with_floats(self, columns: Sequence[str]) -> Source:
        """The source with these columns read as floats, where the file itself has no types (text)."""
        return self

    def remarks(self) -> list[str]:
        """Remarks on the input that people see before it is read."""
        return []

    def extents(self, span: Span, columns: Sequence[str]) -> Iterable[Extent]:
        """The bytes of files that these columns of a span are made from, in a fixed order; empty where unknown."""
        return ()

    def watched_by(self, watch: Watch) -> Source:
        """The source, which calls `watch` for each row before it runs the user's code on it.

        It leaves out the rows that are `poisoned` in `watch`. A source that runs no such code does not call it.
        """
        return self

    def release(self, span: Span) -> None:
        """Free what is held in memory for a span whose result exists."""
        return

    def close(self) -> None:
        """Free what is held in memory for all spans."""
        return


def with_changes(source: S, /, **attributes: Any) -> S:
    """A copy of a source with other values of these attributes. It shares what was learnt from the files."""
    made = object.__new__(type(source))
    made.__dict__.update(source.__dict__ | attributes)
    return made


class FileGone(InputError):
    """A file of the input was there when the job began, and is not there any more."""


def gone(path: str) -> FileGone:
    """The error for a file that is not there any more."""
    problem = f"the input changed since the job began: {path} is gone"
    return FileGone(problem, hint="put it back and try again; or begin again without it")
