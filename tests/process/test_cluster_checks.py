"""Checks before work: what does not fit on a node is one table, before the first row."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import penstock
from penstock.cluster import parcels
from penstock.cluster.node import Node
from penstock.cluster.node_job import NodeJob
from penstock.cluster.preflight import Findings, check
from penstock.commands import on_cluster
from penstock.commands.folder_job import make_task
from penstock.commands.on_cluster import ClusterRun, node_job
from penstock.commands.to_folder import run as run_job
from penstock.models.digest import of_module, parts_of_module
from penstock.options.records import make_options
from penstock.storage.places import place_of
from tests.support import light_models
from tests.support.converted_steps import write_step
from tests.support.processes import wait_until
from tests.support.thread_cluster import Shown, ThreadCluster

OPTIONS: dict[str, Any] = {"devices": "cpu:1", "threads": 1, "batch_size": 64, "part_rows": 128, "plan": "off"}


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    light_models.write(tmp_path)
    np.save(tmp_path / "x.npy", np.arange(2000, dtype=np.float32).reshape(500, 4))
    return tmp_path


@pytest.fixture
def job(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeJob]:
    """A job as a node gets it, while the driver holds the lock of the output."""
    (inputs / "modules").mkdir()
    (inputs / "modules" / "steps_of_the_user.py").write_text("def double(block):\n    return block\n")
    monkeypatch.syspath_prepend(str(inputs / "modules"))
    options = make_options(OPTIONS | {"preprocess": "steps_of_the_user:double"})
    task = make_task(str(inputs / "double.onnx"), str(inputs / "x.npy"), str(inputs / "out"), options)
    place = place_of(str(inputs / "out"))
    with place.lock():
        yield replace(node_job(task), mark=place.mark())


def test_node_that_has_all_fits(job: NodeJob, inputs: Path) -> None:
    findings = check(job, "a")
    assert findings.misfits == ()
    assert findings.kind.startswith("cpu ")
    assert list(findings.versions) == ["onnxruntime"]
    assert sorted(path.name for path in (inputs / "out" / "_penstock").iterdir()) == ["lock"]


def _other_model(inputs: Path) -> None:
    (inputs / "double.onnx").write_bytes((inputs / "slow_digits.onnx").read_bytes())


@pytest.mark.parametrize(
    ("what", "change", "error", "found"),
    [
        ("output", lambda i: (i / "out" / "_penstock" / "lock").unlink(), penstock.OutputError, "not the same folder"),
        ("output", lambda i: (i / "out").rename(i / "moved"), penstock.OutputError, "not the same folder"),
        ("input", lambda i: (i / "x.npy").unlink(), penstock.InputError, "x.npy: No such file or directory"),
        ("input", lambda i: np.save(i / "x.npy", np.zeros(8)), penstock.InputError, "bytes; it had"),
        ("model", lambda i: (i / "double.onnx").unlink(), penstock.ModelError, "no such model"),
        ("model", _other_model, penstock.ModelError, "other content"),
        (
            "module steps_of_the_user",
            lambda i: (i / "modules" / "steps_of_the_user.py").write_text(""),
            penstock.UsageError,
            "other content",
        ),
    ],
)
def test_what_a_node_does_not_have_is_told(
    job: NodeJob, inputs: Path, what: str, change: Callable[[Path], object], error: type[Exception], found: str
) -> None:
    change(inputs)
    (misfit,) = check(job, "a").misfits
    assert (misfit.what, misfit.error) == (what, error)
    assert found in misfit.found


def test_framework_and_devices_that_are_not_there_are_told(job: NodeJob) -> None:
    findings = check(replace(job, model=replace(job.model, runtimes=("openvino",))), "a")
    if "openvino" not in findings.versions:
        assert findings.misfits[0].what == "framework"
        assert "openvino is not installed" in findings.misfits[0].found
    converting = replace(job.model, kind="keras", runtimes=("tensorflow",))
    findings = check(replace(job, model=converting, options=replace(job.options, runtime="onnx")), "a")
    assert (findings.misfits, list(findings.versions)) == ((), ["onnxruntime"])
    gpu = make_options({"devices": "gpu:7"}).devices
    findings = check(replace(job, options=replace(job.options, devices=gpu)), "a")
    assert findings.misfits[0].what == "devices"
    assert findings.kind == ""


class FarAway(Node):
    """A node that has neither the model nor the modules."""

    def check(self, job: NodeJob) -> Findings:
        model = replace(job.model, location=job.model.location.replace("double", "nowhere/double"))
        return super().check(replace(job, model=model))

    def settle(self, job: NodeJob, resumed: Any = None) -> Any:
        assert self._model is not None
        assert "/parcels/" in self._model.location
        return super().settle(job, resumed)

    def receive(self, digest: str, piece: bytes, is_last: bool, folder: str = parcels.PARCELS) -> None:
        self.received.append(digest)
        super().receive(digest, piece, is_last, folder)

    received: ClassVar[list[str]] = []


def test_model_that_a_node_does_not_have_is_sent_once_and_kept_there(
    inputs: Path, cluster: ThreadCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(inputs / "cache"))
    monkeypatch.setattr(parcels, "PIECE_BYTES", 512)
    monkeypatch.setattr(FarAway, "received", [])
    for name in "bcd":
        del cluster.machines[name]
    cluster.make_node = FarAway
    assert predict(inputs, cluster).rows == 500
    assert len(FarAway.received) > 1
    (digest,) = set(FarAway.received)
    kept = inputs / "cache" / "parcels" / digest / "double.onnx"
    assert kept.read_bytes() == (inputs / "double.onnx").read_bytes()
    FarAway.received.clear()
    again = ThreadCluster("a")
    again.make_node = FarAway
    assert predict(inputs, again, output="again").rows == 500
    again.join()
    assert FarAway.received == []
    kept.write_bytes(b"altered")
    with contextlib.closing(FarAway("a")) as node:
        (misfit,) = node.check(job_of(inputs)).misfits
    assert (misfit.what, misfit.parcel) == ("model", digest)


class Converts(Node):
    """A node that would have converted the model, in a cache of its own."""

    held: ClassVar[list[tuple[str, bool]]] = []

    def converted_step(self) -> tuple[str, list[bytes]] | None:
        folder = Path(os.environ["PENSTOCK_CACHE"]) / "made" / "digest-of-a-step"
        folder.mkdir(parents=True)
        write_step(folder, b"a step")
        return folder.name, parcels.pack({".": str(folder)}, bytes)

    def open(self, job: NodeJob, run_name: str, kind: str = "") -> None:
        self.held.append((self.name, parcels.has_step("digest-of-a-step")))
        super().open(job, run_name, kind)


def test_step_that_one_node_of_a_kind_has_converted_is_sent_to_the_others(
    inputs: Path, cluster: ThreadCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(inputs / "cache"))
    monkeypatch.setattr(Converts, "held", [])
    cluster.make_node = Converts
    assert predict(inputs, cluster).rows == 500
    assert sorted(name for name, _ in Converts.held) == ["a", "b", "c", "d"]
    assert sum(is_held for _, is_held in Converts.held) >= 3  # the one that settled has its own
    assert parcels.has_step("digest-of-a-step")


def test_module_that_a_node_does_not_have_is_sent_with_what_it_imports(
    job: NodeJob, inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(inputs / "cache"))
    (inputs / "modules" / "steps_of_the_user.py").write_text("import more_steps_of_the_user\n")
    (inputs / "modules" / "more_steps_of_the_user.py").touch()
    digest = of_module("steps_of_the_user")
    assert digest is not None
    job = replace(job, modules={"steps_of_the_user": digest})
    packed = parcels.pack(parts_of_module("steps_of_the_user"), bytes)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(inputs / "modules")])
    importlib.invalidate_caches()
    (misfit,) = check(job, "a").misfits
    assert (misfit.what, misfit.found, misfit.parcel) == ("module steps_of_the_user", "not found", digest)
    arrivals = parcels.Arrivals()
    for number, piece in enumerate(packed):
        arrivals.receive(digest, piece, is_last=number == len(packed) - 1)
    assert check(job, "a").misfits == ()
    sent = {"steps_of_the_user.py", "more_steps_of_the_user.py"}
    assert set(os.listdir(inputs / "cache" / "parcels" / digest)) == sent


def test_modules_of_all_functions_of_a_job_are_compared(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(inputs))
    functions = {"preprocess": "before", "postprocess": "behind"}
    for name in functions.values():
        (inputs / f"{name}.py").write_text("def same(block):\n    return block\n")
    options = make_options(OPTIONS | {option: f"{name}:same" for option, name in functions.items()})
    task = make_task(str(inputs / "double.onnx"), str(inputs / "x.npy"), str(inputs / "out"), options)
    assert list(node_job(task).modules) == ["before", "behind"]


class OtherDisk(Node):
    """A node on which the path of the output is a folder of its own disk."""

    def check(self, job: NodeJob) -> Findings:
        return super().check(replace(job, output=job.output + "-of-its-own"))


def job_of(inputs: Path) -> NodeJob:
    task = make_task(str(inputs / "double.onnx"), str(inputs / "x.npy"), str(inputs / "out"), make_options(OPTIONS))
    return replace(node_job(task), mark=place_of(str(inputs / "out")).mark())


class OtherPython(Node):
    def look(self) -> dict[str, str]:
        return super().look() | {"Python": "3.9"}


class OtherFramework(Node):
    def check(self, job: NodeJob) -> Findings:
        return replace(super().check(job), versions={"onnxruntime": "1.0"})


def predict(inputs: Path, cluster: ThreadCluster, shown: Shown | None = None, output: str = "out") -> Any:
    task = make_task(str(inputs / "double.onnx"), str(inputs / "x.npy"), str(inputs / output), make_options(OPTIONS))
    return run_job(task, shown or Shown(), time.perf_counter(), partial(ClusterRun, connect=lambda: cluster))


@pytest.fixture
def cluster() -> Iterator[ThreadCluster]:
    made = ThreadCluster("a", "b", "c", "d")
    yield made
    made.join()


def test_one_table_of_what_does_not_fit_ends_the_job_before_the_first_row(inputs: Path, cluster: ThreadCluster) -> None:
    kinds: dict[str, type[Node]] = {"b": OtherPython, "c": OtherDisk, "d": OtherFramework}
    cluster.make_node = lambda name: kinds.get(name, Node)(name)
    with pytest.raises(penstock.PenstockError) as told:
        predict(inputs, cluster)
    lines = str(told.value).splitlines()
    assert lines[0] == "3 of 4 nodes do not fit the job"
    rows = {line.split()[0]: line.split()[1:] for line in lines[3:6]}
    assert rows["b"] == ["Python", "3.9", f"{sys.version_info.major}.{sys.version_info.minor}"]
    assert rows["c"][:5] == ["output", "not", "the", "same", "folder,"]
    assert rows["d"][:2] == ["onnxruntime", "1.0"]
    assert told.value.exit_code in (7, 8)
    assert not (inputs / "out").exists()
    assert not (inputs / "out-of-its-own").exists()


def test_cluster_without_a_node_that_fits_is_refused(
    inputs: Path, cluster: ThreadCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_cluster, "_FIRST_NODE_S", 0.0)
    cluster.machines.clear()
    with pytest.raises(penstock.DeviceError, match="one machine without a GPU"):
        predict(inputs, cluster)
    assert not (inputs / "out").exists()


def test_node_that_joins_later_and_does_not_fit_is_left_out_with_a_line(inputs: Path, cluster: ThreadCluster) -> None:
    for name in "bcd":
        del cluster.machines[name]
    cluster.make_node = lambda name: (OtherDisk if name == "b" else Node)(name)
    shown = Shown()

    def join(name: str) -> None:
        cluster.machines["b"] = None
        wait_until(lambda: any(line.startswith("node b is left out: output: ") for line in shown.lines))

    cluster.before_build = join
    summary = predict(inputs, cluster, shown)
    assert summary.rows == 500
