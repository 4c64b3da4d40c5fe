"""The cache folder: it is cleared but for what a running job needs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock import private_cache
from penstock.planning.store import forget_conversion
from penstock.private_cache import in_use


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    for name in ("plans", "converted/used", "converted/unused", "compiled/step"):
        (tmp_path / "cache" / name).mkdir(parents=True)
    (tmp_path / "cache" / "plans" / "plan.json").write_text("{}")
    (tmp_path / "cache" / "converted" / "used" / "model.onnx").write_text("network")
    return tmp_path / "cache"


def test_clearing_leaves_what_a_running_job_needs_and_removes_it_afterwards(cache: Path) -> None:
    used = cache / "converted" / "used"
    with in_use(str(used)), in_use(str(used / "model.onnx")):
        private_cache.clear()
        assert os.listdir(cache) == ["converted"]
        assert os.listdir(cache / "converted") == ["used"]
        assert (used / "model.onnx").read_text() == "network"
    private_cache.clear()
    assert os.listdir(cache) == []
    assert "nothing is kept" in private_cache.in_words()


def test_a_conversion_that_does_not_run_here_stays_where_another_job_runs_it(cache: Path) -> None:
    used, unused = cache / "converted" / "used", cache / "converted" / "unused"
    with in_use(str(used)):
        forget_conversion(str(used))
        forget_conversion(str(unused))
        assert os.listdir(cache / "converted") == ["used"]
    forget_conversion(str(used))
    assert os.listdir(cache / "converted") == []


def test_clearing_follows_no_link_out_of_the_cache(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (cache / "converted" / "link").symlink_to(tmp_path / "mine")
    private_cache.clear()
    assert (tmp_path / "mine").exists()
    assert os.listdir(cache) == []


@pytest.mark.parametrize("path", ["", "model.keras", "s3://bucket/model.keras", "/nowhere/model.keras"])
def test_models_outside_the_cache_need_no_lock(path: str, cache: Path) -> None:
    with in_use(path), in_use(str(cache)), in_use(str(cache / "converted")), in_use(str(cache / "converted" / "gone")):
        private_cache.clear()
    assert os.listdir(cache) == []
