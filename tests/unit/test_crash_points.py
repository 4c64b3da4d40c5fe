"""Crash points: every named one is visited somewhere, and nothing else is."""

from __future__ import annotations

import re
from pathlib import Path

import penstock
from penstock.crash_points import POINTS

_VISIT = re.compile(r'crash_point\("(\w+)"\)')


def test_every_crash_point_is_a_step_of_storage() -> None:
    sources = Path(penstock.__file__).parent.rglob("*.py")
    visited = {name for path in sources for name in _VISIT.findall(path.read_text(encoding="utf-8"))}
    assert visited == set(POINTS)
