"""Names of test cases that are the same in every process: workers that share a run compare them."""

from __future__ import annotations

import re


def told(value: object) -> str:
    """A value as it shows itself, without the address that it has in this process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
