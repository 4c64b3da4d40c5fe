"""Functions as a user writes them, importable by name."""

from __future__ import annotations

from typing import Any


def double(columns: dict[str, Any]) -> dict[str, Any]:
    return {"y": columns["x"] * 2}


not_a_function = 5
