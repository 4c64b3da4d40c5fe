"""What every sink needs: files that are on the disk before anybody hears of them, and names that do not clash."""

from __future__ import annotations

import os
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
    outputs, kept = schema.names[: schema.num_outputs], schema.names[schema.num_outputs :]
    if ROW in schema.names:
        kind = "an output of the model" if ROW in outputs else "a kept column"
        raise UsageError(
            f"{kind} is called 'row', which is the name of the row number",
            received=_shown(schema.names),
            hint="rename it: --rename row=NEW",
        )
    clash = sorted(set(outputs) & set(kept))
    if clash:
        raise UsageError(
            "an output of the model and a kept column have one name",
            received=f"outputs {_shown(outputs)}; kept {_shown(kept)}",
            hint=f"rename the output: --rename {clash[0]}=NEW",
        )


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:12])
