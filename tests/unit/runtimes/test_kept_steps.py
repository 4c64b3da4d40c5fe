"""Compiled steps in the cache: which files are left for a framework to read, and when there is no folder at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.core.records import Device, ModelFile
from penstock.runtimes import kept_steps

CPU = Device("cpu", 0)
GPU = Device("gpu", 0, name="a GPU")
MODEL = ModelFile("keras", "model.keras", "digest", ("jax",))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("JAX_COMPILATION_CACHE_DIR", "TF_XLA_FLAGS", *kept_steps._JAX):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_steps, "_folder", None)
    return tmp_path / "cache"


def jax_folder() -> Path:
    """The folder that JAX is told to use."""
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    kept_steps.keep_jax_steps("jax", MODEL, CPU)
    return Path(os.environ["JAX_COMPILATION_CACHE_DIR"])


def test_what_was_sealed_is_kept_and_everything_else_is_removed() -> None:
    folder = jax_folder()
    (folder / "whole-cache").write_bytes(b"program")
    (folder / "damaged-cache").write_bytes(b"program")
    kept_steps.seal()
    (folder / "damaged-cache").write_bytes(b"progrxm")
    (folder / "foreign-cache").write_bytes(b"program")
    (folder / "link-cache").symlink_to(folder / "whole-cache")
    (folder / "gone-cache.sha256").write_text("00")
    for name in ("foreign-cache", "gone-cache.sha256"):
        os.utime(folder / name, (0, 0))
    assert jax_folder() == folder
    assert sorted(os.listdir(folder)) == ["whole-cache", "whole-cache.sha256"]


def test_a_damaged_file_is_sealed_again_once_it_was_made_anew() -> None:
    folder = jax_folder()
    for content in (b"program", b"program again"):
        (folder / "a-cache").write_bytes(content)
        kept_steps.seal()
        (folder / "a-cache").write_bytes(b"")
        jax_folder()
        assert os.listdir(folder) == []


def test_what_another_process_is_writing_is_neither_removed_nor_signed() -> None:
    folder = jax_folder()
    (folder / "half-cache").write_bytes(b"prog")
    (folder / "other-cache.77.sha256").write_text("00")
    jax_folder()  # another process starts
    (folder / "own-cache").write_bytes(b"program")
    kept_steps.seal()
    names = ["half-cache", "other-cache.77.sha256", "own-cache", "own-cache.sha256"]
    assert sorted(os.listdir(folder)) == names
    os.utime(folder / "half-cache", (0, 0))  # whoever wrote it was killed
    os.utime(folder / "other-cache.77.sha256", (0, 0))
    jax_folder()
    assert sorted(os.listdir(folder)) == names[2:]


def test_models_versions_and_devices_have_folders_of_their_own() -> None:
    keys = {
        kept_steps._key("jax", MODEL, CPU),
        kept_steps._key("stablehlo", MODEL, CPU),
        kept_steps._key("jax", MODEL, GPU),
        kept_steps._key("jax", ModelFile("keras", "model.keras", "another", ("jax",)), CPU),
    }
    assert len(keys) == 4
    assert kept_steps._key("jax", MODEL, CPU) in keys


def test_folder_that_others_may_write_to_is_not_used(cache: Path) -> None:
    (cache / "compiled").mkdir(parents=True)
    (cache / "compiled").chmod(0o777)
    kept_steps.keep_jax_steps("jax", MODEL, CPU)
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ
    kept_steps.seal()  # does nothing, and says nothing


def test_file_in_the_place_of_the_cache_is_no_error(cache: Path) -> None:
    cache.write_text("a file")
    kept_steps.keep_jax_steps("jax", MODEL, CPU)
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_disk_that_is_nearly_full_is_left_to_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_steps, "_LEAST_FREE_BYTES", 1 << 62)
    kept_steps.keep_jax_steps("jax", MODEL, CPU)
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_the_users_own_folder_for_jax_stays(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/elsewhere")
    kept_steps.keep_jax_steps("jax", MODEL, CPU)
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "/elsewhere"
    assert not cache.exists()


def test_tensorflow_keeps_steps_on_gpus_alone(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_max_cluster_size=9")
    kept_steps.keep_tensorflow_steps("tensorflow", MODEL, CPU)
    assert os.environ["TF_XLA_FLAGS"] == "--tf_xla_max_cluster_size=9"
    kept_steps.keep_tensorflow_steps("tensorflow", MODEL, GPU)
    flags = os.environ["TF_XLA_FLAGS"].split()
    assert flags[0] == "--tf_xla_max_cluster_size=9"
    assert flags[1].startswith(f"--tf_xla_persistent_cache_directory={cache}/compiled/")


def test_steps_that_a_framework_fails_with_are_not_kept_again() -> None:
    folder = jax_folder()
    (folder / "a-cache").write_bytes(b"program")
    kept_steps.seal()
    assert kept_steps.give_up("it fails")
    assert not kept_steps.give_up("it fails")
    assert (folder / "unusable").read_text() == "it fails"
    assert not (folder / "a-cache").exists()
    os.environ.pop("JAX_COMPILATION_CACHE_DIR")
    kept_steps.keep_jax_steps("jax", MODEL, CPU)
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_models_that_were_not_started_for_long_leave_when_all_take_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    old = jax_folder()
    (old / "a-cache").write_bytes(b"program")
    kept_steps.seal()
    os.utime(old, (0, 0))
    monkeypatch.setattr(kept_steps, "_MOST_BYTES", 10)
    kept_steps.keep_tensorflow_steps("tensorflow", MODEL, GPU)
    assert not old.exists()
