"""The few ways in which storage touches a disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.storage.disk import fsync_folder, internal, make_folders, write_whole


def test_internal_paths_lie_in_penstocks_own_folder() -> None:
    assert internal("out") == "out/_penstock"
    assert internal("out", "staging", "x") == "out/_penstock/staging/x"


def test_whole_file_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(str(path), b"one")
    write_whole(str(path), b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["file"]


def test_content_is_on_the_disk_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        steps.append("fsync folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "fsync file")
        real_fsync(descriptor)

    def replace(source: str, target: str) -> None:
        steps.append("rename")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    write_whole(str(tmp_path / "file"), b"content")
    assert steps == ["fsync file", "rename", "fsync folder"]


def test_folders_are_made_with_their_parents(tmp_path: Path) -> None:
    make_folders(str(tmp_path / "a" / "b" / "c"))
    assert (tmp_path / "a" / "b" / "c").is_dir()
    make_folders(str(tmp_path / "a" / "b" / "c"))


def test_folder_may_be_given_relative_to_where_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_folders(os.path.join("out", "_penstock"))
    assert (tmp_path / "out" / "_penstock").is_dir()


def test_every_new_folder_is_made_durable_in_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    make_folders(str(tmp_path / "a" / "b"))
    assert synced == [str(tmp_path), str(tmp_path / "a")]


def test_fsync_of_a_folder_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        fsync_folder(str(tmp_path))
    assert len(os.listdir("/proc/self/fd")) == before
