"""What the loading of a span tells, so that a row that hangs or kills its process can be named and left out."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.records import RowFailure


class Watch:
    """Told of every row, or call of the user's function, before work on it begins. This one listens to nothing.

    `is_careful` asks for single rows instead of blocks: a process died in this span before. `poisoned` are rows
    that killed or hung a loader: they are left out.
    """

    is_careful: bool = False
    poisoned: Mapping[int, RowFailure] = {}

    def begin(self, first_row: int, rows: int) -> None:
        """Work on these rows begins."""

    def end(self) -> None:
        """Nothing is under way."""


UNWATCHED = Watch()
