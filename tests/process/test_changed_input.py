"""Input that is touched or changed between the runs of a job, or while one reads it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import penstock
from tests.conftest import Penstock, journal_length, read_rows

from .test_kills import predict_arguments, start_predict, wait_for

ROWS = 20_000


@pytest.fixture
def pixels_file(tmp_path: Path, pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> Path:
    path = tmp_path / "pixels.npy"
    np.save(path, pixels)
    return path


@pytest.fixture
def unfinished(light_models: Path, pixels_file: Path, tmp_path: Path) -> Path:
    """The folder of a job of which some parts are written."""
    output = tmp_path / "out"
    process = start_predict(light_models, pixels_file, output, "--devices", "cpu:1")
    wait_for(lambda: journal_length(output) >= 2, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    return output


def test_job_goes_on_after_a_touch_and_is_refused_after_a_change(
    unfinished: Path, light_models: Path, pixels_file: Path, penstock_run: Penstock
) -> None:
    content = pixels_file.read_bytes()
    pixels_file.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
    told = f"the input changed since the job began: {pixels_file}"
    for arguments in (["resume", unfinished], predict_arguments(light_models, pixels_file, unfinished)):
        ran = penstock_run(*arguments)
        assert ran.returncode == 5
        assert told in ran.stderr
        assert "other bytes than those that rows 0 to" in ran.stderr
        assert "hint: put the file back" in ran.stderr
    with pytest.raises(penstock.PenstockError, match="the input changed since the job began"):
        penstock.resume(unfinished)
    pixels_file.write_bytes(content + b"\0")
    ran = penstock_run("resume", unfinished)
    assert ran.returncode == 5
    assert told in ran.stderr
    assert f"received: {len(content) + 1:,} bytes; it had {len(content):,}" in ran.stderr

    pixels_file.write_bytes(content)
    ran = penstock_run("resume", unfinished)
    assert ran.returncode == 0, ran.stderr
    assert "the input was touched since the job began; what was read of it is the same: going on" in ran.stderr
    assert read_rows(unfinished).column("row").to_pylist() == list(range(ROWS))
    ran = penstock_run("resume", unfinished)
    assert "touched" not in ran.stderr, "the new time is noted"

    pixels_file.touch()
    ran = penstock_run(*predict_arguments(light_models, pixels_file, unfinished))
    assert ran.returncode == 0, ran.stderr
    assert "touched" in ran.stderr


def test_array_that_is_rewritten_while_it_is_read_ends_the_job(
    light_models: Path, pixels_file: Path, tmp_path: Path, pixels: np.ndarray[Any, np.dtype[np.uint8]]
) -> None:
    output = tmp_path / "out"
    process = start_predict(light_models, pixels_file, output, "--devices", "cpu:1")
    wait_for(lambda: journal_length(output) >= 1, process)
    with open(pixels_file, "r+b") as file:
        np.save(file, 16 - pixels)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 5, errors
    assert f"the input changed since the job began: {pixels_file}" in errors
    assert 0 < len(read_rows(output)) < ROWS


@pytest.mark.parametrize("happens", ["shrinks", "vanishes"])
def test_array_that_shrinks_or_vanishes_while_it_is_read_ends_the_job(
    light_models: Path, pixels_file: Path, tmp_path: Path, happens: str
) -> None:
    """The file is mapped: to read behind its new end kills a replica, and that is not what the message is about."""
    output = tmp_path / "out"
    process = start_predict(light_models, pixels_file, output, "--devices", "cpu:1")
    wait_for(lambda: journal_length(output) >= 1, process)
    if happens == "shrinks":
        os.truncate(pixels_file, 1000)
    else:
        pixels_file.unlink()
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 5, errors
    assert f"the input changed since the job began: {pixels_file}" in errors
    assert "Traceback" not in errors
    rows = len(read_rows(output))
    assert 0 < rows < ROWS
    if happens == "vanishes":
        assert f"{pixels_file} is gone" in errors
        go_on = f"put the file back; go on with: penstock resume {output}"
        assert f"hint: {rows:,} rows committed; {go_on}" in errors


def test_arrays_that_are_handed_back_are_of_one_state_of_the_file(light_models: Path, pixels_file: Path) -> None:
    blocks = penstock.stream(light_models / "slow_digits.onnx", pixels_file, batch_size=32, threads=1, devices="cpu:1")
    next(blocks)
    pixels_file.touch()
    with pytest.raises(penstock.InputError, match="the input changed since the job began"):
        list(blocks)


def test_photos_that_were_touched_are_told_from_those_that_were_replaced(
    light_models: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(6):
        photo = np.full((32, 32, 3), 40 * number, np.uint8)
        Image.fromarray(photo).save(photos / f"{number}.bmp")
    arguments = ["predict", light_models / "colour.onnx", photos, "--output", tmp_path / "out"]
    assert penstock_run(*arguments).returncode == 0
    (photos / "3.bmp").touch()
    ran = penstock_run(*arguments)
    assert ran.returncode == 0, ran.stderr
    assert "the input was touched since the job began" in ran.stderr
    (photos / "4.bmp").write_bytes((photos / "2.bmp").read_bytes())
    ran = penstock_run(*arguments)
    assert ran.returncode == 5
    assert f"the input changed since the job began: {photos / '4.bmp'}" in ran.stderr
    (photos / "6.bmp").write_bytes(b"BM")
    ran = penstock_run(*arguments)
    assert ran.returncode == 5
    assert f"the input changed since the job began: {photos / '6.bmp'}" in ran.stderr
    assert "received: it was not there then" in ran.stderr


def test_photo_of_another_size_is_named_and_mended_ones_are_for_retry(
    light_models: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    photos, output = tmp_path / "photos", tmp_path / "out"
    photos.mkdir()
    for number in range(20):
        Image.fromarray(np.full((32, 32, 3), number, np.uint8)).save(photos / f"{number:02d}.bmp")
    whole = (photos / "09.bmp").read_bytes()
    (photos / "09.bmp").write_bytes(b"no photo")
    arguments = ["predict", light_models / "colour.onnx", photos, "--output", output]
    assert penstock_run(*arguments).returncode == 3
    (photos / "09.bmp").write_bytes(whole)
    ran = penstock_run(*arguments)
    assert ran.returncode == 5
    assert f"the input changed since the job began: {photos / '09.bmp'}\n" in ran.stderr
    assert "received: other bytes than those that row 9 was predicted from" in ran.stderr
    assert f"hint: where only files of failed rows were mended: penstock retry {output}; else put" in ran.stderr
    (photos / "12.bmp").unlink()
    ran = penstock_run(*arguments)
    assert f"the input changed since the job began: {photos / '12.bmp'}\n" in ran.stderr
    assert "received: it is not there any more" in ran.stderr
