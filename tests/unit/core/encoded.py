"""A small real column of encoded rows, and a watch that remembers, for the tests of what is decoded late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from penstock.core.deferred import Announce, BadRows, Deferred
from penstock.core.records import Array, RowFailure, Watch


class Letters(Deferred):
    """Rows of bytes that decode to their codes. What begins with `!` is broken; `decoded` counts the work."""

    def __init__(self, rows: Sequence[bytes], decoded: list[bytes] | None = None) -> None:
        self._rows = list(rows)
        self.decoded: list[bytes] = [] if decoded is None else decoded

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: slice) -> Letters:
        return Letters(self._rows[rows], self.decoded)

    def raw(self) -> pa.Array:
        return pa.array(self._rows, pa.large_binary())

    def sizes(self) -> Array:
        return np.array([[-1 if row.startswith(b"!") else len(row)] for row in self._rows], np.int64).reshape(-1, 1)

    def fill(self, out: Array, announce: Announce) -> BadRows:
        bad = BadRows()
        for position, row in enumerate(self._rows):
            announce(position)
            self.decoded.append(row)
            out[position] = 0
            if row.startswith(b"!"):
                bad.blame(position, OSError(f"broken: {row.decode()}"))
                continue
            out[position, : len(row)] = np.frombuffer(row, np.uint8)
        return bad


class Diary(Watch):
    """Notes every row that work began on."""

    def __init__(self, *, is_careful: bool = False, poisoned: Mapping[int, RowFailure] | None = None) -> None:
        self.is_careful = is_careful
        self.poisoned = poisoned or {}
        self.begun: list[tuple[int, int]] = []
        self.ends = 0

    def begin(self, first_row: int, rows: int) -> None:
        self.begun.append((first_row, rows))

    def end(self) -> None:
        self.ends += 1


def poisoned(*rows: int) -> dict[int, RowFailure]:
    return {row: RowFailure(row, "", "load", "LoaderDied", f"row {row} kills") for row in rows}
