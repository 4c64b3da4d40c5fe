"""Inputs that are damaged, endless or made to do harm, given to the real command: each has its one clear answer."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.conftest import ENVIRONMENT, Penstock, journal_length, penstock_command, read_rows

from .test_kills import wait_for


def test_compressed_arrays_are_read_in_order_stopped_and_gone_on_with(
    light_models: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    """Spans that come a little out of order once began again at the front of the file, each time."""
    rows = np.random.default_rng(7).integers(0, 9, (150_000, 4)).astype(np.float32)
    np.savez_compressed(tmp_path / "rows.npz", x=rows)
    output = tmp_path / "out"
    arguments = [
        "predict", light_models / "double.onnx", tmp_path / "rows.npz", "--output", output, "--devices", "cpu:1",
        "--threads", 1, "--batch-size", 32, "--part-rows", 5_000,
    ]  # fmt: skip
    command = penstock_command(*arguments)
    process = subprocess.Popen(command, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(lambda: journal_length(output) >= 2, process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    ran = penstock_run("resume", output)
    assert ran.returncode == 0, ran.stderr
    table = read_rows(output)
    assert table.column("row").to_pylist() == list(range(len(rows)))
    found = np.stack(table.column("doubled").to_numpy())
    np.testing.assert_array_equal(found, 2 * rows)


def test_pipe_is_refused_and_a_loop_of_links_is_named(
    penstock_run: Penstock, light_models: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    np.save(folder / "rows.npy", np.zeros((3, 4), np.float32))
    os.mkfifo(tmp_path / "rows.csv")
    (folder / "loop").symlink_to("loop")
    for rows, said in (
        (
            tmp_path / "rows.csv",
            f"a pipe cannot be read: .*received: {tmp_path / 'rows.csv'}\n.*hint: write it to a file",
        ),
        (folder, f"a link leads nowhere\nreceived: {folder / 'loop'}: Too many levels of symbolic links"),
    ):
        ran = penstock_run("predict", light_models / "double.onnx", rows, "--output", tmp_path / "out")
        assert ran.returncode == 5
        assert re.search(said, ran.stderr, re.DOTALL), ran.stderr
    assert not (tmp_path / "out").exists()


def test_every_line_behind_an_unclosed_quote_is_a_row(
    penstock_run: Penstock, light_models: Path, tmp_path: Path
) -> None:
    lines = [f"{row},1,2,{'3' if row != 1000 else chr(34) + '3'}" for row in range(3000)]
    table = tmp_path / "rows.csv"
    table.write_text("x0,x1,x2,x3\n" + "\n".join(lines) + "\n", encoding="utf-8")
    output = tmp_path / "out"
    ran = penstock_run("predict", light_models / "double.onnx", table, "--output", output)
    assert ran.returncode == 3, ran.stderr
    assert read_rows(output).column("row").to_pylist() == [row for row in range(3000) if row != 1000]
    (failure,) = map(json.loads, (output / "_penstock" / "failures.jsonl").read_text().splitlines())
    assert failure["row"] == 1000
    assert failure["origin"] == f"{table}, byte {table.read_text().index(lines[1000])}"
    assert failure["reason"] == "a quote opens a field in this line and is never closed"


MEASURED = """
import re
from penstock.cli import main
try:
    main()
finally:
    print(int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) << 10)
"""


def test_bomb_of_gzip_is_refused_soon_and_in_little_memory(light_models: Path, tmp_path: Path) -> None:
    """Four gigabytes of zeros: what is looked at does not depend on how long they are."""
    bomb = tmp_path / "bomb.tfrecord.gz"
    bomb.write_bytes(gzip.compress(bytes(64 << 20), 1) * 64)
    arguments = ["predict", light_models / "double.onnx", bomb, "--output", tmp_path / "out"]
    command = [sys.executable, "-c", MEASURED, *map(str, arguments)]
    ran = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 5, ran.stderr
    looked_at = re.search(r"no length in its first ([\d,]+) bytes has a right checksum", ran.stderr)
    assert looked_at is not None, ran.stderr
    assert int(looked_at[1].replace(",", "")) < 70 << 20
    assert int(ran.stdout) < 600 << 20
