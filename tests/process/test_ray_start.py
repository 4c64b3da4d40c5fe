"""Ray clusters that are started here, that are there already, that refuse, and that are not there."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import penstock
from tests.support import light_models
from tests.support.processes import MARK, marked, new_mark, wait_until

pytest.importorskip("ray", reason="Ray is not installed: pip install penstock[ray]")

OPTIONS: dict[str, Any] = {"devices": "cpu:1", "threads": 1, "batch_size": 64, "part_rows": 128, "plan": "off"}
FLAGS = [text for name, value in OPTIONS.items() for text in (f"--{name.replace('_', '-')}", str(value))]
ROWS = 4000
TOKEN = "0123456789abcdef" * 4
STEPS = """
import os
import time

def check(row):
    is_broken = os.path.exists(os.path.join(os.path.dirname(__file__), "broken"))
    if is_broken and int(next(iter(row.values())).sum()) % 50 == 0:
        raise ValueError("broken")
    return row

def wait(row):
    while os.path.exists(os.path.join(os.path.dirname(__file__), "held")):
        time.sleep(0.05)
    return row
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    light_models.write(folder)
    pixels = np.random.default_rng(1).integers(0, 17, (ROWS, 64)).astype(np.float32)
    np.save(folder / "pixels.npy", pixels)
    model, data = str(folder / "slow_digits.onnx"), str(folder / "pixels.npy")
    penstock.predict(model, data, output=str(folder / "out"), **OPTIONS)
    return folder


def parts_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("part-*"))}


def command(inputs: Path, output: Path, *flags: str) -> list[str]:
    files = [str(inputs / "slow_digits.onnx"), str(inputs / "pixels.npy")]
    called = [sys.executable, "-m", "penstock", "predict", *files, "-o", str(output), *FLAGS]
    return [*called, "--json", "--engine", "ray", *flags]


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return kept | changes


def descendants_of(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def test_local_cluster_serves_the_loopback_address_alone_starts_no_helpers_and_leaves_nothing_running(
    inputs: Path, tmp_path: Path
) -> None:
    run = subprocess.Popen(
        command(inputs, tmp_path / "out"), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    seen: dict[int, psutil.Process] = {}
    served: set[str] = set()
    commands: set[str] = set()
    while run.poll() is None:
        for process in descendants_of(run.pid):
            seen[process.pid] = process
            try:
                commands.add(" ".join(process.cmdline()))
                sockets = process.net_connections("inet")
            except psutil.Error:
                continue
            served |= {each.laddr.ip.removeprefix("::ffff:") for each in sockets if each.status == psutil.CONN_LISTEN}
        time.sleep(0.2)
    printed, said = run.communicate()
    assert run.returncode == 0, said.decode()
    assert json.loads(printed)["rows"] == ROWS
    assert parts_of(tmp_path / "out") == parts_of(inputs / "out")
    assert served == {"127.0.0.1"}, served
    helpers = ("/monitor.py", "/log_monitor.py", "/dashboard.py")
    assert [command for command in commands if any(name in command.split(" --")[0] for name in helpers)] == []
    _, alive = psutil.wait_procs(list(seen.values()), timeout=20)
    assert alive == []


@pytest.mark.slow
def test_failed_rows_of_a_job_on_ray_are_counted_by_node_and_retried_without_a_cluster(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their lines in `failures.jsonl` are those of a job on one machine, and so are the parts after a retry."""
    (tmp_path / "steps_on_ray.py").write_text(STEPS)
    (tmp_path / "broken").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    here, there = tmp_path / "here", tmp_path / "there"
    flags = ["--preprocess-row", "steps_on_ray:check", "--max-failures", "0.5", "--limit", "600"]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        command(inputs, there, *flags), env=environment(PYTHONPATH=path), capture_output=True, text=True
    )
    assert ran.returncode == 3, ran.stderr
    summary = json.loads(ran.stdout)
    assert summary["failed_on"] == {"127.0.0.1": summary["failed"]}
    told = subprocess.run([sys.executable, "-m", "penstock", "status", str(there)], capture_output=True, text=True)
    assert f" {summary['failed']} failed ({summary['failed']} on 127.0.0.1), model " in told.stdout

    failing: dict[str, Any] = {"preprocess_row": "steps_on_ray:check", "max_failures": 0.5, "limit": 600}
    model, data = str(inputs / "slow_digits.onnx"), str(inputs / "pixels.npy")
    penstock.predict(model, data, output=str(here), **OPTIONS, **failing)
    failures = [(folder / "_penstock" / "failures.jsonl").read_bytes() for folder in (here, there)]
    assert len(failures[0].splitlines()) == summary["failed"] > 0
    assert failures[0] == failures[1]

    (tmp_path / "broken").unlink()
    for folder in (here, there):
        retried = penstock.retry(str(folder))
        assert (retried.rows, retried.failed, retried.failed_on) == (600, 0, {})
    assert parts_of(there) == parts_of(here)
    assert penstock.verify(str(there))["is_whole"]


@pytest.fixture
def held(inputs: Path, tmp_path: Path) -> Iterator[Held]:
    held = Held(inputs, tmp_path)
    yield held
    for process in marked(held.mark):
        process.kill()


class Held:
    """A job on a local cluster, whose rows wait while a file is there."""

    def __init__(self, inputs: Path, folder: Path) -> None:
        (folder / "steps_held.py").write_text(STEPS)
        self.mark, self.output, self.file = new_mark(), folder / "out", folder / "held"
        self._command = command(inputs, self.output, "--preprocess-row", "steps_held:wait")
        path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
        self._environment = environment(PYTHONPATH=path) | {MARK: self.mark}

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(self._command, env=self._environment, stderr=subprocess.PIPE, text=True)

    def processes(self, name: str) -> list[psutil.Process]:
        return marked(self.mark, name)

    def cluster_folder(self) -> Path:
        wait_until(lambda: self.processes("/raylet/raylet"))
        words = " ".join(self.processes("/raylet/raylet")[0].cmdline())
        return Path(re.findall(r"/tmp/penstock-ray-[^/]+", words)[0])


@pytest.mark.slow
def test_job_whose_head_is_gone_says_so_and_goes_on(held: Held, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself would end the driver after a minute, with code 1 and without a word."""
    monkeypatch.syspath_prepend(str(held.file.parent))
    run = held.start()
    wait_until(lambda: len(parts_of(held.output)) >= 2)
    held.file.touch()
    folder = held.cluster_folder()
    assert folder.stat().st_mode & 0o077 == 0
    (head,) = held.processes("gcs_server")
    head.kill()
    said = run.communicate()[1]
    assert run.returncode == 8, said
    assert "error: the Ray cluster cannot be reached any more" in said
    assert "its head has not answered for 30 s" in said
    assert f"penstock resume {held.output} --engine ray" in said
    wait_until(lambda: not held.processes(""))
    assert not folder.exists()
    held.file.unlink()
    assert penstock.resume(str(held.output)).rows == ROWS
    assert parts_of(held.output) == parts_of(inputs / "out")


@pytest.mark.slow
def test_next_local_cluster_removes_the_folder_of_one_whose_driver_was_killed(held: Held, inputs: Path) -> None:
    held.file.touch()
    run = held.start()
    folder = held.cluster_folder()
    run.kill()
    run.communicate()
    wait_until(lambda: not held.processes(""), seconds=300)
    assert folder.exists()
    held.file.unlink()
    run = held.start()
    said = run.communicate()[1]
    assert run.returncode == 0, said
    assert not folder.exists()
    assert parts_of(held.output) == parts_of(inputs / "out")


OF_SPARE = """
from penstock.cluster.connection import connect
from penstock.cluster.ray_transport import RayTransport
from penstock.cluster.transport import NodeGone

transport = RayTransport(*connect("local", print), {})
assert list(transport.names()) == ["127.0.0.1"]
transport.start(0, "127.0.0.2")
assert not transport.is_there(0)
error = transport.call(0, "look").exception()
assert isinstance(error, NodeGone) and error.has_left, error
transport.kill(0)
transport.start(1, "127.0.0.1")
assert "penstock" in transport.call(1, "look").result()
transport.close()
"""


def test_machine_that_left_before_it_was_started_is_gone() -> None:
    ran = subprocess.run([sys.executable, "-c", OF_SPARE], env=environment(), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_ctrl_c_or_a_closed_terminal_commits_what_is_in_flight_on_a_local_cluster(
    number: signal.Signals, inputs: Path, tmp_path: Path
) -> None:
    """It reaches all processes that the terminal has started, Ray's among them."""
    (tmp_path / "rows.py").write_text("import time\n\ndef slowly(row):\n    time.sleep(0.01)\n    return row\n")
    asked = [*command(inputs, tmp_path / "out"), "--part-rows", "1000", "--preprocess-row", "rows:slowly"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    run = subprocess.Popen(asked, env=environment(), cwd=tmp_path, start_new_session=True, **pipes)
    wait_until(lambda: any((tmp_path / "out").glob("part-*")) or run.poll() is not None)
    assert run.poll() is None, run.communicate()[1]
    started = descendants_of(run.pid)
    os.killpg(run.pid, number)
    _, said = run.communicate()
    assert run.returncode == 128 + number, said
    assert "given out again" not in said
    committed = re.search(r"stopped with ([\d,]+) of 4,000 rows committed", said)
    assert committed is not None, said
    assert int(committed[1].replace(",", "")) > 1000, said
    assert f"go on with: penstock resume {tmp_path / 'out'} --engine ray\n" in said
    assert penstock.status(tmp_path / "out")["hint"] == f"penstock resume {tmp_path / 'out'} --engine ray"
    assert psutil.wait_procs(started, timeout=20)[1] == []


@pytest.mark.slow
def test_local_cluster_that_cannot_be_started_as_ray_was_imported_before_says_what_to_do() -> None:
    """Ray has read by then that it asks for no token."""
    script = "import ray; from penstock.cluster.connection import connect; connect('local', print)"
    ran = subprocess.run([sys.executable, "-c", script], env=environment(), capture_output=True, text=True)
    assert "DeviceError: a local Ray cluster cannot be started\n" in ran.stderr
    assert "hint: where ray was imported before" in ran.stderr


def test_no_cluster_at_the_address_is_told_at_once(inputs: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    for asked in (address, f"ray://{address}"):
        ran = subprocess.run(
            command(inputs, tmp_path / "out", "--address", asked), env=environment(), capture_output=True, text=True
        )
        assert ran.returncode == 8, ran.stderr
        assert "error: no Ray cluster answers at the address" in ran.stderr
        assert asked in ran.stderr
    assert not (tmp_path / "out").exists()


@pytest.fixture
def head() -> Iterator[str]:
    """A head with a token, at a port that Ray chooses."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    ray = [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]
    started = environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN, RAY_USAGE_STATS_ENABLED="0")
    flags = [
        "--head",
        "--block",
        "--port=0",
        "--node-ip-address=127.0.0.1",
        "--num-cpus=1",
        f"--temp-dir={folder}",
    ]
    process = subprocess.Popen(
        [*ray, "start", *flags, "--include-dashboard=false", "--disable-usage-stats"],
        env=started,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    told = Path(folder, "ray_current_cluster")
    wait_until(lambda: (told.exists() and bool(told.read_text())) or process.poll() is not None)
    yield f"127.0.0.1:{told.read_text().strip().rpartition(':')[2]}"
    children = descendants_of(process.pid)
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    _, alive = psutil.wait_procs(children, timeout=20)
    for each in alive:
        each.kill()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_cluster_with_a_token_answers_those_who_have_it(inputs: Path, tmp_path: Path, head: str) -> None:
    asked = command(inputs, tmp_path / "out", "--address", head)
    other = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 64}
    for wrong, asks in (({}, "a token, and none was sent"), (other, "another token")):
        ran = subprocess.run(asked, env=environment(**wrong), capture_output=True, text=True)
        assert ran.returncode == 8, ran.stderr
        assert f"error: the Ray cluster asks for {asks}\n" in ran.stderr
        assert "in RAY_AUTH_TOKEN or ~/.ray/auth_token" in ran.stderr
        assert len(re.findall("InvalidAuthToken", ran.stderr)) <= 1, ran.stderr  # a line of Ray for each try
        assert not (tmp_path / "out").exists()
    right = environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN)
    ran = subprocess.run(asked, env=right, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert parts_of(tmp_path / "out") == parts_of(inputs / "out")
