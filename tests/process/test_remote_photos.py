"""Photos on object storage, predictions on object storage: killed, resumed, every row once and in order."""

from __future__ import annotations

import io
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import ENVIRONMENT, Penstock, penstock_command, read_rows
from tests.support import s3_server
from tests.support.photos import draw_folder

PHOTOS = 128
PART_ROWS = 8
OPTIONS = ("--threads", 1, "--batch-size", 8, "--part-rows", PART_ROWS)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server with a bucket of photos, one of them broken."""
    folder = tmp_path_factory.mktemp("photos")
    draw_folder(folder, PHOTOS)
    (folder / "00101.jpg").write_bytes(b"no photo")
    with s3_server.start_s3_server() as endpoint, pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.environment(endpoint).items():
            patch.setitem(ENVIRONMENT, name, value)
        store = s3_server.filesystem(endpoint)
        store.mkdir("bucket")
        store.put(str(folder), "bucket/photos/", recursive=True)
        yield store


def committed(store: Any, prefix: str) -> int:
    return len(store.find(f"{prefix}/_penstock/journal"))


def rows_in(store: Any, prefix: str) -> pa.Table:
    names = sorted(path for path in store.ls(prefix) if path.endswith(".parquet"))
    return pa.concat_tables([pq.read_table(io.BytesIO(store.cat_file(name))) for name in names])


@pytest.mark.slow
def test_killed_run_from_s3_to_s3_is_resumed_and_loses_nothing(
    light_models: Path, store: Any, penstock_run: Penstock, tmp_path: Path
) -> None:
    prefix = "bucket/predictions"
    arguments = ("predict", light_models / "colour.onnx", "s3://bucket/photos", "--output", f"s3://{prefix}", *OPTIONS)
    process = subprocess.Popen(
        penstock_command(*arguments), env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 120
    while committed(store, prefix) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    assert psutil.wait_procs(children, timeout=20)[1] == []
    before = committed(store, prefix)
    assert 2 <= before < PHOTOS / PART_ROWS

    ran = penstock_run("resume", f"s3://{prefix}")
    assert ran.returncode == 3, ran.stderr
    assert "resuming" in ran.stderr
    table = rows_in(store, prefix)
    assert table.column("row").to_pylist() == [row for row in range(PHOTOS) if row != 101]
    assert b"00101.jpg" in store.cat_file(f"{prefix}/_penstock/failures.jsonl")

    whole = tmp_path / "local"
    ran = penstock_run("predict", light_models / "colour.onnx", "s3://bucket/photos", "--output", whole, *OPTIONS)
    assert ran.returncode == 3, ran.stderr
    assert read_rows(whole).equals(table)
