"""The fence of conftest.py holds."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time

import pytest

from .conftest import FRAMEWORKS, FenceBroken


def test_unit_tests_cannot_sleep() -> None:
    with pytest.raises(FenceBroken, match="sleeps for 0 s"):
        time.sleep(0)


def test_unit_tests_cannot_start_processes() -> None:
    with pytest.raises(FenceBroken, match="starts a process"):
        subprocess.run([sys.executable, "--version"], check=False)
    with pytest.raises(FenceBroken, match="starts a process"):
        os.fork()


@pytest.mark.parametrize("framework", sorted(FRAMEWORKS))
def test_unit_tests_cannot_import_frameworks(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, framework, raising=False)
    with pytest.raises(FenceBroken, match=f"imports {framework}"):
        importlib.import_module(framework)
