"""The fence around unit tests: no sleep, no process, no framework. A test that needs one belongs in another folder."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn

import pytest
from hypothesis import settings

from penstock.models.scan import hdf5

FRAMEWORKS = frozenset(
    {"tensorflow", "keras", "tf_keras", "jax", "torch", "onnxruntime", "ai_edge_litert", "openvino", "tf2onnx"}
)

settings.register_profile("unit", deadline=None, database=None, derandomize=True, max_examples=60)
settings.load_profile("unit")


class FenceBroken(AssertionError):
    """A unit test reached for something that unit tests do without."""


class _NoFramework(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] in FRAMEWORKS:
            raise FenceBroken(f"a unit test imports {fullname}")
        return None


def loaded_frameworks() -> set[str]:
    return {name for name in sys.modules if name.partition(".")[0] in FRAMEWORKS}


@pytest.fixture(autouse=True)
def fence(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def no_sleep(seconds: float) -> NoReturn:
        raise FenceBroken(f"a unit test sleeps for {seconds} s: wait for an event instead")

    def no_process(*arguments: object, **options: object) -> NoReturn:
        raise FenceBroken("a unit test starts a process")

    monkeypatch.setattr(hdf5, "may_fork", lambda: False)
    monkeypatch.setattr(time, "sleep", no_sleep)
    monkeypatch.setattr(subprocess, "Popen", no_process)
    for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp", "system", "popen"):
        monkeypatch.setattr(os, name, no_process)
    before = loaded_frameworks()
    finder = _NoFramework()
    sys.meta_path.insert(0, finder)
    yield
    sys.meta_path.remove(finder)
    appeared = loaded_frameworks() - before
    assert not appeared, f"a unit test loaded a framework: {sorted(appeared)[:3]}"
