"""What a source is to the suite: how its files are written, how it is opened, what it must give, what it cannot do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.core.protocols import Source

Rows = dict[str, list[Any]]


@dataclass(frozen=True)
class Bad:
    """The row that was damaged: what its failure must say, and the values that are left in its place."""

    row: int
    origin: str
    says: str
    left: Mapping[str, Any]
    stage: str = "read"


def write_nothing(folder: Path) -> list[str]:
    return []


@dataclass(frozen=True)
class Case:
    """A source over known rows.

    Args:
        write: Make the files in a folder; returns the paths that `open` takes.
        expected: The rows, without the column `path` where there is a `path_of`.
        origin: What `origin` says of a row: all, or what comes before a comma (one at its end: more must follow).
        path_of: The column `path`, which depends on the folder.
        spoil: Damage a row in the files at these paths.
        open_spoiled: Opens rows of which one is bad, where there are no files to damage.
        unspoilable: Why there is no bad row, where there is no `spoil`: damage is then refused as a whole.
        others: Sources that differ from this one in a value, where there are no files that could change.
        unseen: Files that are read and that the fingerprint does not cover.
        numbers: What the rows are called in the whole input, where the source gives only some of them.
        varying: Columns of lists whose length is no part of the schema.
        most_times: How many times larger than asked for a span may be.
        is_row_a_file: Every file is a row, and one that is gone is a failed row; all files are one fragment.
        flaws: Promises that the source does not keep yet, by name, and why.
        is_stream: It can be divided once, only where it was made, and it is like no other.
    """

    name: str
    write: Callable[[Path], list[str]]
    open: Callable[[list[str]], Source]
    expected: Rows
    origin: Callable[[list[str], int], str]
    path_of: Callable[[list[str], int], str] | None = None
    spoil: Callable[[list[str]], Bad] | None = None
    open_spoiled: Callable[[list[str]], Source] | None = None
    unspoilable: str = ""
    others: Callable[[], Sequence[Source]] = list
    unseen: Callable[[list[str]], list[str]] | None = None
    numbers: tuple[int, ...] | None = None
    most_times: int = 1
    varying: tuple[str, ...] = ()
    is_row_a_file: bool = False
    is_stream: bool = False
    flaws: Mapping[str, str] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        return [*self.expected, *(["path"] if self.path_of is not None else [])]

    @property
    def num_rows(self) -> int:
        return len(next(iter(self.expected.values())))

    @property
    def has_files(self) -> bool:
        return self.write is not write_nothing

    def rows_at(self, paths: list[str]) -> Rows:
        """The rows that files at these paths must give."""
        if self.path_of is None:
            return self.expected
        return {**self.expected, "path": [self.path_of(paths, row) for row in range(self.num_rows)]}


def some_rows(case: Case, name: str, choose: Callable[[Source], Source], rows: Sequence[int]) -> Case:
    """The case of a source that gives only some rows of another one; the bad row must be among them."""
    origin, path_of, spoil, opened, spoiled = case.origin, case.path_of, case.spoil, case.open, case.open_spoiled

    def spoil_chosen(paths: list[str]) -> Bad:
        assert spoil is not None
        bad = spoil(paths)
        return replace(bad, row=rows.index(bad.row))

    return replace(
        case,
        name=name,
        open=lambda paths: choose(opened(paths)),
        expected={column: [values[row] for row in rows] for column, values in case.expected.items()},
        origin=lambda paths, row: origin(paths, rows[row]),
        path_of=None if path_of is None else lambda paths, row: path_of(paths, rows[row]),
        spoil=spoil_chosen if spoil is not None else None,
        open_spoiled=None if spoiled is None else lambda paths: choose(spoiled(paths)),
        others=lambda: [choose(other) for other in case.others()],
        numbers=tuple(rows),
    )
