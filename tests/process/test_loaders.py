"""Loader processes: killed, hung, replaced; nothing is lost, and nothing is left behind."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import ENVIRONMENT, Penstock, penstock_command, read_rows, run_penstock, summary_of
from tests.support.photos import assert_colours, draw_folder

FUNCTIONS = """
import os, signal, time
import numpy as np

def number(path):
    return int(os.path.basename(path)[:5])

def slow(block):
    time.sleep(0.002 * len(block["path"]))
    return {"photo": block["image"]}

def faulty(block):
    for path in block["path"]:
        match number(path):
            case 7: raise KeyError("seven")
            case 11: os._exit(5)
            case 13: os.kill(os.getpid(), signal.SIGSEGV)
            case 17: time.sleep(10_000)
    print("a word to the log")
    return {"photo": block["image"]}

def misshapen(row):
    image = row["image"]
    return {"photo": image[:9] if number(row["path"]) == 21 else image}

def short(block):
    return {"photo": block["image"][1:]} if 23 in map(number, block["path"]) else {"photo": block["image"]}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photos and a module of the user's functions."""
    folder = tmp_path_factory.mktemp("place")
    draw_folder(folder / "photos", 400)
    (folder / "functions.py").write_text(FUNCTIONS)
    return folder


def job(light_models: Path, output: Path, *more: object) -> list[object]:
    return [
        "predict", light_models / "colour.onnx", "photos", "--output", output, "--image-size", "32x32",
        "--batch-size", 16, "--part-rows", 32, "--json", *more,
    ]  # fmt: skip


def command(light_models: Path, output: Path, *more: object) -> list[str]:
    return penstock_command(*job(light_models, output, *more))


def children_of(process: subprocess.Popen[str], module: str) -> list[psutil.Process]:
    try:
        return [child for child in psutil.Process(process.pid).children(recursive=True) if module in child.cmdline()]
    except psutil.NoSuchProcess:
        return []  # it ended while we looked


def failures_in(output: Path) -> dict[int, dict[str, str]]:
    lines = (output / "_penstock" / "failures.jsonl").read_text().splitlines()
    return {found["row"]: found for found in map(json.loads, lines)}


def test_user_function_that_raises_exits_crashes_or_hangs_fails_its_row_alone(
    light_models: Path, place: Path, tmp_path: Path
) -> None:
    more = ["--preprocess", "functions:faulty", "--row-timeout", 4, "--limit", 60]
    ran = run_penstock(*job(light_models, tmp_path / "out", *more), cwd=place)
    assert ran.returncode == 3, ran.stderr
    assert (summary_of(ran)["rows"], summary_of(ran)["failed"]) == (56, 4)
    failures = failures_in(tmp_path / "out")
    assert {row: failure["error"] for row, failure in failures.items()} == {
        7: "KeyError", 11: "LoaderDied", 13: "LoaderDied", 17: "TimeoutError",
    }  # fmt: skip
    assert "exit code 5" in failures[11]["reason"]
    assert "SIGSEGV" in failures[13]["reason"]
    assert "4 s" in failures[17]["reason"]
    assert all(failure["stage"] == "preprocess" for failure in failures.values())
    assert failures[17]["origin"].endswith("00017.jpg")
    assert read_rows(tmp_path / "out").column("row").to_pylist() == [n for n in range(60) if n not in (7, 11, 13, 17)]
    assert "a word to the log" in (tmp_path / "out" / "_penstock" / "log.txt").read_text()


@pytest.mark.parametrize(
    ("options", "row", "words"),
    [
        (["--preprocess-row", "functions:misshapen"], 21, "uint8[9, 32, 3], not uint8[32, 32, 3]"),
        (["--preprocess", "functions:short"], 23, "rows, not 1"),
    ],
)
def test_wrong_answers_of_the_user_function_fail_their_row_alone(
    light_models: Path, place: Path, tmp_path: Path, options: list[str], row: int, words: str
) -> None:
    ran = run_penstock(*job(light_models, tmp_path / "out", "--limit", 60, *options), cwd=place)
    assert ran.returncode == 3, ran.stderr
    failures = failures_in(tmp_path / "out")
    assert list(failures) == [row]
    assert words in failures[row]["reason"]


def test_killed_loaders_lose_no_row_and_fail_none(light_models: Path, place: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    process = subprocess.Popen(
        command(light_models, output, "--preprocess", "functions:slow", "--loaders", 2),
        cwd=place, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    generator = random.Random(1)
    kills = 0
    while process.poll() is None:
        time.sleep(generator.uniform(0.05, 0.4))
        loaders = (
            children_of(process, "penstock.pool.processes.loader") if process.poll() is None and output.exists() else []
        )
        if loaders and kills < 6:
            generator.choice(loaders).kill()
            kills += 1
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    assert kills >= 3
    assert json.loads(out)["rows"] == 400
    assert read_rows(output).column("row").to_pylist() == list(range(400))
    assert_colours(read_rows(output))


def test_killed_replicas_that_loaders_feed_lose_no_row(light_models: Path, place: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    process = subprocess.Popen(
        command(light_models, output, "--preprocess", "functions:slow", "--loaders", 2, "--devices", "cpu:2"),
        cwd=place, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    kills = 0
    while process.poll() is None:
        time.sleep(0.1)
        children = (
            children_of(process, "penstock.pool.processes.replica")
            if (output / "_penstock" / "journal").exists()
            else []
        )
        if len(children) == 2 and kills < 2 and (output / "_penstock" / "journal").stat().st_size:
            children[kills].kill()
            kills += 1
            time.sleep(1.0)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert kills
    assert read_rows(output).column("row").to_pylist() == list(range(400))
    assert_colours(read_rows(output))


def test_killed_coordinator_leaves_no_loader_and_no_shared_memory(
    light_models: Path, place: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    before = set(os.listdir("/dev/shm"))
    output = tmp_path / "out"
    process = subprocess.Popen(
        command(light_models, output, "--preprocess", "functions:slow", "--loaders", 2),
        cwd=place, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    journal = output / "_penstock" / "journal"
    deadline = time.monotonic() + 120
    while not (journal.exists() and journal.stat().st_size):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    children = psutil.Process(process.pid).children(recursive=True)
    assert any("penstock.pool.processes.loader" in child.cmdline() for child in children)
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert alive == []
    assert set(os.listdir("/dev/shm")) <= before
    ran = penstock_run("resume", output, cwd=place)
    assert ran.returncode == 0, ran.stderr
    assert read_rows(output).column("row").to_pylist() == list(range(400))


def test_same_bits_from_one_loader_and_three(light_models: Path, place: Path, tmp_path: Path) -> None:
    for loaders in (1, 3):
        arguments = job(light_models, tmp_path / str(loaders), "--loaders", loaders, "--threads", 1)
        ran = run_penstock(*arguments, cwd=place)
        assert ran.returncode == 0, ran.stderr
        assert summary_of(ran)["loaders"] == str(loaders)
    assert read_rows(tmp_path / "1").equals(read_rows(tmp_path / "3"))
