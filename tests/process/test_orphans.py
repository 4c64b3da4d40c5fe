"""No process outlives its run: workers, and whatever the user's code started in them, however the run ends."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ENVIRONMENT, journal_length, penstock_command, read_rows
from tests.support.photos import draw_folder
from tests.support.processes import MARK, marked, new_mark, wait_until

FUNCTIONS = """
import os, signal, subprocess, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

POOL = []

def double(value):
    return value * 2

def pooled(block):
    if not POOL:
        POOL.append(ProcessPoolExecutor(1, get_context("fork")))
        subprocess.Popen(["sleep", "3600"])
    assert POOL[0].submit(double, 21).result() == 42
    time.sleep(0.002 * len(block["path"]))
    return {"photo": block["image"]}

def deadly(block):
    for path in block["path"]:
        if int(os.path.basename(path)[:5]) == 13:
            if not os.fork():
                time.sleep(3600)
            os._exit(7)
    return {"photo": block["image"]}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    draw_folder(folder / "photos", 300)
    (folder / "functions.py").write_text(FUNCTIONS)
    return folder


def start(light_models: Path, place: Path, output: Path, mark: str, *more: object) -> subprocess.Popen[str]:
    command = penstock_command(
        "predict", light_models / "colour.onnx", "photos", "--output", output, "--image-size", "32x32",
        "--batch-size", 16, "--part-rows", 32, "--loaders", 2, *more,
    )  # fmt: skip
    return subprocess.Popen(
        command, cwd=place, env=ENVIRONMENT | {MARK: mark}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_children_of_a_loader_do_not_hide_its_death_and_end_with_the_run(
    light_models: Path, place: Path, tmp_path: Path
) -> None:
    mark, output = new_mark(), tmp_path / "out"
    process = start(light_models, place, output, mark, "--preprocess", "functions:pooled")
    wait_until(lambda: journal_length(output) >= 1 or process.poll() is not None)
    loader = next(each for each in marked(mark, "processes.loader") if each.ppid() == process.pid)
    assert loader.children(), "the function has processes of its own"
    loader.kill()
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert read_rows(output).column("row").to_pylist() == list(range(300))
    assert marked(mark) == []


def test_row_whose_loader_ends_and_leaves_a_child_fails_alone(light_models: Path, place: Path, tmp_path: Path) -> None:
    """The child holds whatever it inherited, and lives on."""
    mark, output = new_mark(), tmp_path / "out"
    process = start(light_models, place, output, mark, "--preprocess", "functions:deadly", "--limit", 60)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 3, errors
    assert read_rows(output).column("row").to_pylist() == [row for row in range(60) if row != 13]
    assert "exit code 7" in (output / "_penstock" / "failures.jsonl").read_text()
    assert marked(mark) == []


def test_killed_coordinator_takes_stopped_workers_and_their_children_with_it(
    light_models: Path, place: Path, tmp_path: Path
) -> None:
    mark, output = new_mark(), tmp_path / "out"
    process = start(light_models, place, output, mark, "--preprocess", "functions:pooled")
    wait_until(lambda: journal_length(output) >= 1 or process.poll() is not None)
    workers = [each for each in marked(mark, "pool.processes") if each.ppid() == process.pid]
    assert any(worker.children() for worker in workers)
    for worker in workers:
        worker.send_signal(signal.SIGSTOP)
    process.kill()
    process.communicate()
    wait_until(lambda: not marked(mark), 30)
