"""A job on a cluster of threads: the driver and the nodes are real, only what lies between them is not."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.cluster.node import Node
from penstock.commands.folder_job import make_task
from penstock.commands.on_cluster import ClusterRun
from penstock.commands.to_folder import run as run_job
from penstock.options.records import make_options
from penstock.storage.ledger import committed_records
from penstock.storage.manifest import load_manifest
from penstock.storage.places import place_of
from penstock.telemetry.summary import Summary
from tests.support import light_models
from tests.support.processes import wait_until
from tests.support.thread_cluster import Shown, ThreadCluster

OPTIONS: dict[str, Any] = {"devices": "cpu:1", "threads": 1, "batch_size": 64, "part_rows": 128, "plan": "off"}
ROWS = 4000


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    light_models.write(folder)
    np.save(folder / "x.npy", np.arange(ROWS * 4, dtype=np.float32).reshape(ROWS, 4))
    pixels = np.random.default_rng(1).integers(0, 17, (ROWS, 64)).astype(np.float32)
    np.save(folder / "pixels.npy", pixels)
    return folder


@pytest.fixture(scope="module")
def undisturbed(inputs: Path) -> dict[str, bytes]:
    penstock.predict(
        str(inputs / "slow_digits.onnx"), str(inputs / "pixels.npy"), output=str(inputs / "out"), **OPTIONS
    )
    return parts_of(inputs / "out")


@pytest.fixture
def cluster() -> Iterator[ThreadCluster]:
    made = ThreadCluster("a", "b", "c")
    yield made
    made.join()


def parts_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("part-*"))}


def predict(inputs: Path, output: Path, cluster: ThreadCluster, shown: Shown | None = None, **options: Any) -> Summary:
    given = make_options(OPTIONS | options)
    task = make_task(str(inputs / "slow_digits.onnx"), str(inputs / "pixels.npy"), str(output), given)
    return run_job(task, shown or Shown(), time.perf_counter(), partial(ClusterRun, connect=lambda: cluster))


def once_committed(output: Path, parts: int, then: Callable[[], object]) -> threading.Thread:
    """Do something when so many parts are committed."""

    def wait() -> None:
        wait_until(lambda: len(list(output.glob("part-*"))) >= parts)
        then()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_job_on_three_nodes_is_the_job_of_one_machine(
    inputs: Path, undisturbed: dict[str, bytes], cluster: ThreadCluster, tmp_path: Path
) -> None:
    shown = Shown()
    summary = predict(inputs, tmp_path / "out", cluster, shown)
    assert (summary.rows, summary.failed, summary.parts) == (ROWS, 0, 32)
    assert parts_of(tmp_path / "out") == undisturbed
    assert set(summary.devices) <= {"a/cpu:0", "b/cpu:0", "c/cpu:0"}
    place = place_of(str(tmp_path / "out"))
    manifest = load_manifest(place)
    assert manifest is not None
    (kind,) = manifest.kinds
    assert {record.kind for record in committed_records(place, manifest)} == {kind}
    assert sorted(path.name for path in (tmp_path / "out" / "_penstock").iterdir()) == [
        "failures.jsonl", "journal", "lock", "log.txt", "manifest.json",
    ]  # fmt: skip


def test_killed_node_loses_no_row(
    inputs: Path, undisturbed: dict[str, bytes], cluster: ThreadCluster, tmp_path: Path
) -> None:
    shown = Shown()
    killing = once_committed(tmp_path / "out", 3, lambda: cluster.kill(*cluster.lives_of("a")))
    summary = predict(inputs, tmp_path / "out", cluster, shown)
    killing.join()
    assert summary.rows == ROWS
    assert parts_of(tmp_path / "out") == undisturbed
    assert any(line.startswith("node a was killed; ") for line in shown.lines), shown.lines


def test_node_that_leaves_gives_its_work_back_and_one_that_joins_takes_some(
    inputs: Path, undisturbed: dict[str, bytes], cluster: ThreadCluster, tmp_path: Path
) -> None:
    del cluster.machines["c"]
    has_joined = threading.Event()

    def change(name: str) -> None:
        if name == "d":
            has_joined.set()
        elif name in cluster.machines and len(list((tmp_path / "out").glob("part-*"))) >= 2:
            cluster.machines.pop("a", None)
            cluster.machines["d"] = None
            has_joined.wait()

    cluster.before_build = change
    predict(inputs, tmp_path / "out", cluster)
    assert parts_of(tmp_path / "out") == undisturbed
    assert {name for _, name in cluster.started} == {"a", "b", "d"}


def test_stopped_run_commits_what_is_in_flight(inputs: Path, cluster: ThreadCluster, tmp_path: Path) -> None:
    output, shown, signals = tmp_path / "out", Shown(), [signal.SIGINT]

    def interrupt(name: str) -> None:
        if len(list(output.glob("part-*"))) >= 3 and signals:
            os.kill(os.getpid(), signals.pop())

    cluster.before_build = interrupt
    with pytest.raises(penstock.Interrupted, match="rows committed"):
        predict(inputs, output, cluster, shown)
    assert not [line for line in shown.lines if "given out again" in line]


def test_what_a_cluster_began_one_machine_goes_on_with_and_back(
    inputs: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    """Stopped on one machine, gone on with on a cluster that loses its driver, finished on one machine."""
    output = tmp_path / "out"
    is_cut = threading.Event()

    class Cut(Exception):
        """The end of a driver."""

    class Ends(ThreadCluster):
        def names(self) -> list[str]:
            if len(list(output.glob("part-*"))) >= 12:
                is_cut.set()
                raise Cut
            return list(self.machines)

    cluster = Ends("a", "b")
    cluster.before_build = lambda name: len(list(output.glob("part-*"))) < 12 or is_cut.wait()
    with pytest.raises(Cut):
        predict(inputs, output, cluster)
    cluster.join()
    begun = len(parts_of(output))
    assert begun >= 12
    summary = penstock.resume(str(output))
    assert isinstance(summary, Summary)
    assert summary.rows == ROWS
    assert summary.rows_before >= 12 * 128
    assert parts_of(output) == undisturbed


def test_job_of_one_machine_is_finished_on_a_cluster(
    inputs: Path, undisturbed: dict[str, bytes], cluster: ThreadCluster, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    penstock.predict(str(inputs / "slow_digits.onnx"), str(inputs / "pixels.npy"), output=str(output), **OPTIONS)
    for number in (3, 8, 9):
        (output / f"part-{number:08d}.parquet").unlink()
    opened_at: list[float] = []

    class Opened(Node):
        def open(self, *arguments: Any) -> None:
            super().open(*arguments)
            opened_at.append(time.perf_counter())

    cluster.make_node = Opened
    task = make_task(str(inputs / "slow_digits.onnx"), str(inputs / "pixels.npy"), str(output), make_options(OPTIONS))
    began = time.perf_counter()
    summary = run_job(task, Shown(), began, partial(ClusterRun, connect=lambda: cluster))
    assert summary.rows == ROWS
    assert parts_of(output) == undisturbed
    assert began + summary.start_seconds >= opened_at[0], "nodes that start do not predict"
    assert summary.rows_per_s == pytest.approx(3 * 128 / summary.run_seconds), "what was there before is not counted"


def test_summary_trace_and_check_know_the_nodes(inputs: Path, cluster: ThreadCluster, tmp_path: Path) -> None:
    shown, seen = Shown(), set[str]()

    def meet(name: str) -> None:
        seen.add(name)
        wait_until(lambda: len(seen) == 3)

    cluster.before_build = meet
    trace = tmp_path / "trace.json"
    summary = predict(inputs, tmp_path / "out", cluster, shown, check=True, trace=str(trace))
    assert set(summary.devices) == {"a/cpu:0", "b/cpu:0", "c/cpu:0"}
    assert summary.where["computing"] > 0
    assert {line.partition(": checked: ")[0] for line in shown.lines if ": checked: " in line} == {"a", "b", "c"}
    events = json.loads(trace.read_text())
    processes = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {name.partition(" on ")[2] for name in processes if name.startswith("replica ")} == set(summary.devices)
    last = max(event["ts"] for event in events if event["ph"] == "X")
    assert min(event["ts"] for event in events if event["ph"] == "X") >= 0
    assert last <= summary.seconds * 1e6


def test_live_models_and_rows_of_this_process_are_refused(inputs: Path, tmp_path: Path, cluster: ThreadCluster) -> None:
    task = make_task(
        str(inputs / "double.onnx"), np.zeros((4, 4), np.float32), str(tmp_path / "out"), make_options(OPTIONS)
    )
    with pytest.raises(penstock.InputError, match="cannot be read on other machines"):
        run_job(task, Shown(), 0.0, partial(ClusterRun, connect=lambda: cluster))
    assert cluster.started == []
    assert not (tmp_path / "out").exists()
