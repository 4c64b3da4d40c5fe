"""What every sink needs: files that are on the disk before anybody hears of them, and names that do not clash."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from penstock.core.records import OutputSchema
from penstock.errors import UsageError

ROW = "row"


def fsync_file(path: str) -> None:
    """Wait until the content of a file is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_names(schema: OutputSchema) -> None:
    """Refuse columns that would hide `row` or each other.

    Raises:
        UsageError: Two columns have one name, or one is called `row`.
    """
    if ROW in schema.names:
        raise UsageError(
            "a column is called 'row', which is the name of the row number",
            received=_shown(schema.names),
            hint="rename it: --rename row=NEW",
        )
    check_distinct(schema.names[: schema.num_outputs], schema.names[schema.num_outputs :])


def check_distinct(outputs: Sequence[str], kept: Sequence[str]) -> None:
    """Refuse columns that would hide each other.

    Raises:
        UsageError: Two columns have one name.
    """
    twice = [name for name, count in Counter([*outputs, *kept]).items() if count > 1]
    if twice:
        raise UsageError(
            "two columns would have one name",
            received=f"outputs {_shown(outputs)}; kept {_shown(kept) or 'none'}",
            hint=f"rename one of them: --rename {twice[0]}=NEW (an output comes before a kept column)",
        )


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:12])
