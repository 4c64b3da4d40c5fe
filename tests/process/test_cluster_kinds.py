"""Kinds of machines: each has its recipe in the manifest, and what it built is built again by it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.cluster.node import Node
from penstock.cluster.node_job import NodeJob
from penstock.cluster.preflight import Findings
from penstock.commands.folder_job import make_task
from penstock.commands.on_cluster import ClusterRun
from penstock.commands.to_folder import run as run_job
from penstock.engines import cluster_state
from penstock.jobs.settled import Settled
from penstock.options.records import make_options
from penstock.storage.ledger import committed_records
from penstock.storage.manifest import Manifest, load_manifest
from penstock.storage.places import place_of
from tests.support import light_models
from tests.support.processes import wait_until
from tests.support.thread_cluster import Shown, ThreadCluster

ROWS = 1280
OTHER = "cpu of another make, 4 cores"
OPTIONS: dict[str, Any] = {"devices": "cpu:1", "threads": 1, "batch_size": 64, "part_rows": 128, "plan": "off"}
STEPS = """
import os

def check(row):
    if next(iter(row.values()))[0] % 512 == 0 and os.path.exists(os.path.join(os.path.dirname(__file__), "broken")):
        raise ValueError("broken")
    return row
"""


class OtherKind(Node):
    """A machine of another kind, which runs batches of half the size."""

    def check(self, job: NodeJob) -> Findings:
        return replace(super().check(job), kind=OTHER)

    def settle(self, job: NodeJob, resumed: Any = None) -> Settled:
        return super().settle(replace(job, options=replace(job.options, batch_size=32)), resumed)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    light_models.write(folder)
    np.save(folder / "x.npy", np.arange(ROWS * 4, dtype=np.float32).reshape(ROWS, 4))
    (folder / "steps_of_kinds.py").write_text(STEPS)
    return folder


@pytest.fixture
def steps(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(str(inputs))
    return "steps_of_kinds:check"


@pytest.fixture
def cluster() -> Iterator[ThreadCluster]:
    """A machine of this kind and one of another. Each waits until the other has built a part."""
    made = mixed_cluster("a", "o")
    yield made
    made.join()


def mixed_cluster(*names: str) -> ThreadCluster:
    made = ThreadCluster(*names)
    made.make_node = lambda name: (OtherKind if name == "o" else Node)(name)
    return made


def predict(inputs: Path, output: Path, cluster: ThreadCluster, shown: Shown | None = None, **options: Any) -> Any:
    task = make_task(str(inputs / "double.onnx"), str(inputs / "x.npy"), str(output), make_options(OPTIONS | options))
    return run_job(task, shown or Shown(), time.perf_counter(), partial(ClusterRun, connect=lambda: cluster))


def manifest_of(output: Path) -> Manifest:
    manifest = load_manifest(place_of(str(output)))
    assert manifest is not None
    return manifest


def kinds_of(output: Path) -> dict[int, str]:
    """The kind that built each part."""
    manifest = manifest_of(output)
    records = committed_records(place_of(str(output)), manifest)
    return {record.part: record.kind or manifest.first_kind for record in records}


def parts_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("part-*"))}


def damage(output: Path) -> dict[int, str]:
    """Remove a part of each kind."""
    kinds = kinds_of(output)
    removed = {kind: part for part, kind in kinds.items()}
    for part in removed.values():
        (output / f"part-{part:08d}.parquet").unlink()
    return kinds


def of_both(inputs: Path, output: Path, cluster: ThreadCluster, **options: Any) -> str:
    """A job that both kinds have built; returns the name of the first."""
    seen: set[str] = set()

    def meet(name: str) -> None:
        seen.add(name)
        wait_until(lambda: len(seen) == 2)

    cluster.before_build = meet
    predict(inputs, output, cluster, **options)
    kinds = manifest_of(output).kinds
    assert {kind.recipe.batch_size for kind in kinds.values()} == {64, 32}
    assert set(kinds_of(output).values()) == set(kinds)
    return next(name for name in kinds if name != OTHER)


def test_spans_are_as_large_as_the_kind_with_the_largest_batches_takes_them(inputs: Path, tmp_path: Path) -> None:
    has_settled = threading.Event()

    class Large(OtherKind):
        """A machine that takes larger batches, and is the last to say so."""

        def settle(self, job: NodeJob, resumed: Any = None) -> Settled:
            has_settled.wait()
            return Node.settle(self, replace(job, options=replace(job.options, batch_size=128)), resumed)

    class Small(Node):
        def settle(self, job: NodeJob, resumed: Any = None) -> Settled:
            try:
                return super().settle(job, resumed)
            finally:
                has_settled.set()

    cluster = ThreadCluster("small", "large")
    cluster.make_node = lambda name: {"small": Small, "large": Large}[name](name)
    predict(inputs, tmp_path / "out", cluster)
    cluster.join()
    manifest = manifest_of(tmp_path / "out")
    assert {span.rows for span in manifest.spans} == {128}
    assert sorted(kind.recipe.batch_size for kind in manifest.kinds.values()) == [64, 128]


def test_damaged_parts_are_built_again_by_the_kind_that_built_them(
    inputs: Path, cluster: ThreadCluster, tmp_path: Path
) -> None:
    of_both(inputs, tmp_path / "out", cluster)
    before, parts = damage(tmp_path / "out"), parts_of(tmp_path / "out")
    again = mixed_cluster("a", "o")
    summary = predict(inputs, tmp_path / "out", again)
    again.join()
    assert summary.rows == ROWS
    assert kinds_of(tmp_path / "out") == before
    assert parts.items() < parts_of(tmp_path / "out").items()


def test_part_of_a_kind_that_is_not_there_is_refused_with_its_name(
    inputs: Path, cluster: ThreadCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = of_both(inputs, tmp_path / "out", cluster)
    before = damage(tmp_path / "out")
    monkeypatch.setattr(cluster_state, "_PATIENCE_S", 1.0)
    without = mixed_cluster("a")
    with pytest.raises(penstock.DeviceError, match=f"no {OTHER}, which built part"):
        predict(inputs, tmp_path / "out", without)
    without.join()
    mended = {part: kind for part, kind in before.items() if kind == own}
    assert mended.items() <= kinds_of(tmp_path / "out").items()


def test_one_machine_builds_parts_of_a_cluster_again_by_their_recipes(
    inputs: Path, cluster: ThreadCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    of_both(inputs, tmp_path / "out", cluster)
    before = damage(tmp_path / "out")
    summary = penstock.resume(str(tmp_path / "out"))
    assert isinstance(summary, penstock.Summary)
    assert summary.rows == ROWS
    assert kinds_of(tmp_path / "out") == before
    assert f"1 part of {OTHER}: built again by its recipe" in capfd.readouterr().err
    assert penstock.verify(str(tmp_path / "out"))["is_whole"]


def test_failed_rows_of_a_cluster_are_retried_by_the_recipes_of_their_parts(
    inputs: Path, cluster: ThreadCluster, tmp_path: Path, steps: str
) -> None:
    (inputs / "broken").touch()
    of_both(inputs, tmp_path / "out", cluster, preprocess_row=steps, max_failures=1.0)
    (inputs / "broken").unlink()
    before = kinds_of(tmp_path / "out")
    told = penstock.status(str(tmp_path / "out"))
    assert told["failed_on"].keys() == {"a", "o"}
    assert sum(told["failed_on"].values()) == told["failed"] == ROWS // 128
    summary = penstock.retry(str(tmp_path / "out"))
    assert (summary.rows, summary.failed, summary.failed_on) == (ROWS, 0, {})
    assert kinds_of(tmp_path / "out") == before


def test_job_of_one_machine_has_its_kind_and_another_kind_adds_its_own(inputs: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    penstock.predict(str(inputs / "double.onnx"), str(inputs / "x.npy"), output=str(output), **OPTIONS)
    (own,) = manifest_of(output).kinds
    assert own == manifest_of(output).first_kind
    assert {record.kind for record in committed_records(place_of(str(output)), manifest_of(output))} == {""}
