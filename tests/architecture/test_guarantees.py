"""Every test that the guarantees name exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_test_in_the_fault_matrix_exists() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    paths = list((ROOT / "tests").rglob("test_*.py"))
    everything = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    files = set(re.findall(r"\b(test_\w+\.py)\b", text))
    names = set(re.findall(r"\b(test_\w+)\b(?!\.py)", text))
    assert len(names) > 50
    assert files <= {path.name for path in paths}
    assert {name for name in names if f"def {name}(" not in everything} == set()
