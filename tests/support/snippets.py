"""The blocks of code in a page of the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks_of(page: Path, language: str, section: str | None = None) -> Iterator[tuple[int, str]]:
    """Blocks of a language in order, each with the number of lines in front of its code; of one section, or of all."""
    text = page.read_text(encoding="utf-8")
    first, last = 0, len(text)
    if section is not None:
        first = text.index(f"\n## {section}\n")
        following = text.find("\n## ", first + 1)
        last = following if following >= 0 else last
    for found in _BLOCK.finditer(text):
        if found[1] == language and first <= found.start() < last:
            yield text.count("\n", 0, found.start(2)), found[2]
