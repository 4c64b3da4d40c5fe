"""Predictions to object storage: a real server, real runs, real kills."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import penstock
from tests.conftest import ENVIRONMENT, Penstock, penstock_command, read_rows, summary_of
from tests.support import s3_server

ROWS = 20_000
OPTIONS = ("--threads", 1, "--batch-size", 32, "--part-rows", 1000, "--devices", "cpu:1")
BUCKET = "predictions"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A server whose address every process of these tests finds in its environment."""
    with s3_server.start_s3_server() as endpoint, pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.environment(endpoint).items():
            patch.setitem(ENVIRONMENT, name, value)
            patch.setenv(name, value)
        yield endpoint


@pytest.fixture(scope="module")
def store(endpoint: str) -> Any:
    store = s3_server.filesystem(endpoint)
    store.mkdir(BUCKET)
    return store


@pytest.fixture
def url(store: Any, request: pytest.FixtureRequest) -> str:
    """A prefix of its own for each test."""
    return f"s3://{BUCKET}/{request.node.name.replace('[', '-').replace(']', '')}"


@pytest.fixture(scope="module")
def local(
    light_models: Path, digits: Path, penstock_run: Penstock, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    """The parts of the same job in a local folder."""
    output = tmp_path_factory.mktemp("local") / "out"
    ran = penstock_run("predict", light_models / "slow_digits.onnx", digits, "--output", output, *OPTIONS)
    assert ran.returncode == 0, ran.stderr
    assert read_rows(output)["row"].to_pylist() == list(range(ROWS))
    return {path.name: path.read_bytes() for path in output.glob("*.parquet")}


def predict(light_models: Path, digits: Path, url: str, *more: object) -> tuple[object, ...]:
    return ("predict", light_models / "slow_digits.onnx", digits, "--output", url, *OPTIONS, *more)


def parts_in(store: Any, url: str) -> dict[str, bytes]:
    return {path.rpartition("/")[2]: store.cat_file(path) for path in store.ls(url) if path.endswith(".parquet")}


def journal_in(store: Any, url: str) -> list[str]:
    return sorted(store.find(url + "/_penstock/journal"))


def rows_in(store: Any, url: str) -> list[int]:
    tables = [pq.read_table(io.BytesIO(content)) for _, content in sorted(parts_in(store, url).items())]
    rows: list[int] = pa.concat_tables(tables)["row"].to_pylist()
    return rows


def start(light_models: Path, digits: Path, url: str) -> subprocess.Popen[str]:
    command = penstock_command(*predict(light_models, digits, url))
    return subprocess.Popen(command, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def killed(light_models: Path, digits: Path, store: Any, url: str) -> int:
    """A run that was killed after some parts; returns how many."""
    process = start(light_models, digits, url)
    wait_for(lambda: len(journal_in(store, url)) >= 3, process)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    psutil.wait_procs(children, timeout=20)
    return len(journal_in(store, url))


@pytest.mark.slow
def test_finished_run_equals_the_local_one(
    light_models: Path, digits: Path, store: Any, url: str, local: dict[str, bytes], penstock_run: Penstock
) -> None:
    ran = penstock_run(*predict(light_models, digits, url))
    assert ran.returncode == 0, ran.stderr
    assert parts_in(store, url) == local
    beside = {name.rpartition("/")[2] for name in store.find(url + "/_penstock", maxdepth=1)}
    assert beside == {"manifest.json", "failures.jsonl", "log.txt"}, "and no lock"

    again = penstock_run(*predict(light_models, digits, url, "--json"))
    assert again.returncode == 0, again.stderr
    assert summary_of(again)["rows_before"] == ROWS

    status = penstock_run("status", url, "--json")
    assert status.returncode == 0, status.stderr
    found = json.loads(status.stdout)
    assert (found["state"], found["rows"], found["committed"]) == ("finished", ROWS, ROWS)

    pandas = pytest.importorskip("pandas")
    assert sorted(pandas.read_parquet(url + "/")["row"]) == list(range(ROWS))


def test_killed_run_is_resumed_and_every_row_is_there_once(
    light_models: Path, digits: Path, store: Any, url: str, local: dict[str, bytes], penstock_run: Penstock
) -> None:
    there = killed(light_models, digits, store, url)
    assert 3 <= there < 20
    assert store.exists(url + "/_penstock/lock"), "a kill leaves the lock"
    status = json.loads(penstock_run("status", url, "--json").stdout)
    assert status["state"] == "unfinished"

    ran = penstock_run("resume", url, "--json")
    assert ran.returncode == 0, ran.stderr
    assert summary_of(ran)["rows_before"] == 1000 * there
    assert rows_in(store, url) == list(range(ROWS))
    assert parts_in(store, url) == local
    assert len(journal_in(store, url)) == 20


@pytest.mark.slow
def test_part_that_was_uploaded_and_not_recorded_is_replaced(
    light_models: Path, digits: Path, store: Any, url: str, local: dict[str, bytes], penstock_run: Penstock
) -> None:
    there = killed(light_models, digits, store, url)
    store.pipe_file(f"{url}/part-{there:08d}.parquet", b"uploaded by a run that was killed then")
    store.pipe_file(f"{url}/part-00000019_0007.parquet", b"what no run will write again")
    store.pipe_file(f"{url}/_penstock/failures/{there:08d}.jsonl", b'{"row": 1}\n')
    store.pipe_file(f"{url}/_penstock/journal/{there + 1:08d}", b"beyond a gap")
    ran = penstock_run("resume", url)
    assert ran.returncode == 0, ran.stderr
    assert parts_in(store, url) == local
    assert store.cat_file(url + "/_penstock/failures.jsonl") == b""
    assert len(journal_in(store, url)) == 20


@pytest.mark.slow
def test_second_run_is_refused_while_the_first_is_alive(
    light_models: Path, digits: Path, store: Any, url: str, penstock_run: Penstock
) -> None:
    process = start(light_models, digits, url)
    wait_for(lambda: store.exists(url + "/_penstock/lock"), process)
    os.kill(process.pid, signal.SIGSTOP)  # alive, and in no hurry
    try:
        lock = store.cat_file(url + "/_penstock/lock")
        ran = penstock_run(*predict(light_models, digits, url))
        assert ran.returncode == 7, ran.stderr
        assert f"process {process.pid}" in ran.stderr
        assert store.cat_file(url + "/_penstock/lock") == lock, "it was not waited for, and not taken away"
        assert penstock_run(*predict(light_models, digits, url, "--overwrite")).returncode == 7
    finally:
        os.kill(process.pid, signal.SIGCONT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert rows_in(store, url) == list(range(ROWS))


@pytest.mark.slow
def test_interrupt_commits_what_is_in_flight_and_frees_the_lock(
    light_models: Path, digits: Path, store: Any, url: str, penstock_run: Penstock
) -> None:
    process = start(light_models, digits, url)
    wait_for(lambda: len(journal_in(store, url)) >= 2, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert f"penstock resume {url}" in errors
    assert not store.exists(url + "/_penstock/lock")
    assert penstock_run("resume", url).returncode == 0
    assert rows_in(store, url) == list(range(ROWS))


@pytest.mark.slow
def test_overwrite_removes_the_job_and_nothing_else(
    light_models: Path, digits: Path, store: Any, url: str, penstock_run: Penstock
) -> None:
    assert penstock_run(*predict(light_models, digits, url, "--format", "jsonl")).returncode == 0
    store.pipe_file(url + "/notes.txt", b"mine")
    other = penstock_run(*predict(light_models, digits, url))
    assert other.returncode == 7
    assert "holds another job" in other.stderr
    ran = penstock_run(*predict(light_models, digits, url, "--overwrite"))
    assert ran.returncode == 0, ran.stderr
    assert rows_in(store, url) == list(range(ROWS))
    names = [path.rpartition("/")[2] for path in store.ls(url)]
    assert not [name for name in names if name.endswith(".jsonl")]
    assert store.cat_file(url + "/notes.txt") == b"mine"


@pytest.mark.slow
def test_photos_are_retried_verified_repaired_and_appended_to(
    light_models: Path, store: Any, url: str, penstock_run: Penstock, tmp_path: Path
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()

    def draw(*shades: int) -> None:
        for shade in shades:
            Image.fromarray(np.full((32, 32, 3), shade, np.uint8)).save(photos / f"{shade:03d}.png")

    def answer(code: int, command: str, *more: object) -> Any:
        ran = penstock_run(command, url, *more, "--json")
        assert ran.returncode == code, ran.stderr
        return json.loads(ran.stdout)

    draw(*range(0, 100, 5))
    (photos / "015.png").write_bytes(b"no photo")
    (photos / "040.png").write_bytes(b"no photo either")
    wanted: dict[str, Any] = {"batch_size": 4, "part_rows": 8, "threads": 1, "devices": "cpu:1", "progress": False}
    model = light_models / "colour.onnx"
    assert penstock.predict(model, photos, output=url, max_failures=1.0, **wanted).failed == 2
    draw(15)
    retried = answer(3, "retry")
    assert (retried["rows"], retried["failed"]) == (19, 1)
    draw(40)
    assert answer(0, "retry")["failed"] == 0
    assert answer(0, "verify")["is_whole"]
    assert penstock.predict(model, photos, output=url, max_failures=1.0, **wanted).rows_before == 20
    once = penstock.predict(model, photos, output=tmp_path / "once", **wanted)
    assert once.rows == 20
    whole = {path.name: path.read_bytes() for path in (tmp_path / "once").glob("*.parquet")}

    def found() -> dict[str, bytes]:
        return {re.sub("_[0-9]{4}", "", name): content for name, content in parts_in(store, url).items()}

    assert found() == whole
    damaged = sorted(parts_in(store, url))[1]
    store.pipe_file(f"{url}/{damaged}", whole[sorted(whole)[1]][:-1] + b"x")
    assert [each["name"] for each in answer(7, "verify")["problems"]] == [damaged]
    assert answer(0, "resume", "--verify")["rows_before"] == 12
    assert found() == whole
    draw(12, 98)
    appended = penstock.predict(model, photos, output=url, append=True, max_failures=1.0, **wanted)
    assert (appended.rows, appended.rows_before) == (22, 20)
    assert rows_in(store, url) == list(range(22))
    status = answer(0, "status")
    assert (status["state"], status["committed"], status["run"]) == ("finished", 22, None)


@pytest.mark.parametrize("command", [penstock.status, penstock.verify, penstock.retry])
def test_url_without_a_job_is_told(command: Callable[[str], Any], store: Any, url: str) -> None:
    for absent in (url, "s3://no-such-bucket/out"):
        with pytest.raises(penstock.OutputError, match="holds no job") as caught:
            command(absent)
        assert caught.value.received == f"{absent}: it does not exist"


def test_prefix_that_holds_something_else_is_refused(
    light_models: Path, digits: Path, store: Any, url: str, penstock_run: Penstock
) -> None:
    store.pipe_file(url + "/notes.txt", b"mine")
    ran = penstock_run(*predict(light_models, digits, url, "--overwrite"))
    assert ran.returncode == 7
    assert "notes.txt" in ran.stderr
    assert store.find(url) == [f"{url.removeprefix('s3://')}/notes.txt"]


def test_dry_run_writes_nothing(light_models: Path, digits: Path, store: Any, url: str, penstock_run: Penstock) -> None:
    ran = penstock_run(*predict(light_models, digits, url, "--dry-run"))
    assert ran.returncode == 0, ran.stderr
    assert url in ran.stdout
    assert store.find(url) == []


def test_bucket_that_does_not_exist_is_told_before_the_model_is_loaded(
    light_models: Path, digits: Path, store: Any, penstock_run: Penstock
) -> None:
    ran = penstock_run(*predict(light_models, digits, "s3://no-such-bucket/out"))
    assert ran.returncode == 7
    assert "the bucket of the output does not exist" in ran.stderr
    assert "s3://no-such-bucket/out" in ran.stderr
    assert "loading" not in ran.stderr


def test_missing_credentials_are_told(
    light_models: Path, digits: Path, url: str, penstock_run: Penstock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delitem(ENVIRONMENT, name)
    monkeypatch.setitem(ENVIRONMENT, "HOME", str(tmp_path))
    ran = penstock_run(*predict(light_models, digits, url))
    assert ran.returncode == 7
    assert "there are no credentials for the output" in ran.stderr


def test_job_that_never_began_leaves_no_object(
    digits: Path, store: Any, url: str, penstock_run: Penstock, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("def build():\n    raise RuntimeError('no model')\n", encoding="utf-8")
    ran = penstock_run("predict", "broken:build", digits, "--output", url, "--runtime", "jax", cwd=tmp_path)
    assert ran.returncode == 6, ran.stderr
    assert store.find(url) == []


@pytest.mark.slow
def test_parts_of_several_files_are_written_as_they_are_locally(
    light_models: Path, digits: Path, store: Any, url: str, penstock_run: Penstock, tmp_path: Path
) -> None:
    options = ("--threads", 1, "--part-rows", 8000, "--devices", "cpu:1", "--format", "npy")
    for output in (url, tmp_path / "out"):
        ran = penstock_run("predict", light_models / "slow_digits.onnx", digits, "--output", output, *options)
        assert ran.returncode == 0, ran.stderr
    written = {str(path.relative_to(tmp_path / "out")): path.read_bytes() for path in (tmp_path / "out").rglob("part*")}
    root = url.removeprefix("s3://") + "/"
    found = {path.removeprefix(root): store.cat_file(path) for path in store.find(url) if "/part-" in path}
    assert found == written
