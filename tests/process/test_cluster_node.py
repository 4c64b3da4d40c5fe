"""A node of a cluster: the local engine that is fed pieces, and writes them for a driver."""

from __future__ import annotations

import contextlib
import gc
import inspect
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.cluster.node import Node
from penstock.cluster.node_job import NodeJob
from penstock.commands.folder_job import make_task
from penstock.core.records import ModelFile
from penstock.options.records import make_options
from penstock.storage.ledger import Ledger
from penstock.storage.manifest import load_manifest
from penstock.storage.part_builder import PartPiece
from penstock.storage.places import place_of
from tests.support import light_models

OPTIONS: dict[str, Any] = {"devices": "cpu:1", "threads": 1, "batch_size": 64, "part_rows": 128, "plan": "off"}
ROWS = 1000


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    light_models.write(folder)
    np.save(folder / "x.npy", np.arange(ROWS * 4, dtype=np.float32).reshape(ROWS, 4))
    return folder


@pytest.fixture(scope="module")
def undisturbed(inputs: Path) -> Path:
    penstock.predict(str(inputs / "double.onnx"), str(inputs / "x.npy"), output=str(inputs / "out"), **OPTIONS)
    return inputs / "out"


@pytest.fixture
def output(undisturbed: Path, tmp_path: Path) -> Path:
    """The same job, without a part."""
    (tmp_path / "out" / "_penstock").mkdir(parents=True)
    shutil.copy(undisturbed / "_penstock" / "manifest.json", tmp_path / "out" / "_penstock")
    return tmp_path / "out"


@pytest.fixture
def job(inputs: Path, output: Path) -> NodeJob:
    task = make_task(str(inputs / "double.onnx"), str(inputs / "x.npy"), str(output), make_options(OPTIONS))
    assert isinstance(task.model, ModelFile)
    return NodeJob(task.model, task.source, task.options, str(output))


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node("here")
    yield made
    made.close()


def parts_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("part-*"))}


def ledger_of(output: Path) -> Ledger:
    place = place_of(str(output))
    manifest = load_manifest(place)
    assert manifest is not None
    ledger = Ledger(place, manifest)
    place.open_attempts("run")
    return ledger


def test_pieces_that_a_node_builds_are_the_parts_of_a_local_run(
    job: NodeJob, node: Node, output: Path, undisturbed: Path
) -> None:
    ledger = ledger_of(output)
    node.open(job, "run")
    pieces = ledger.pending_pieces()
    assert len(pieces) == 8
    with ThreadPoolExecutor(3) as calls:
        staged = calls.map(lambda piece: node.build(f"attempt-{piece.part}", piece), reversed(pieces))
    for each in staged:
        assert each is not None
        assert ledger.commit(each)
    assert ledger.pending_pieces() == []
    ledger.close()
    assert parts_of(output) == parts_of(undisturbed)
    beat = node.beat()
    assert sum(timings.rows for _, _, timings in beat.timings) == ROWS
    assert {str(device) for _, device, _ in beat.timings} == {"here/cpu:0"}
    assert beat.rows == {}


def test_withdrawn_attempt_gives_nothing_and_its_piece_can_be_built_again(
    job: NodeJob, node: Node, output: Path, undisturbed: Path
) -> None:
    ledger = ledger_of(output)
    node.open(job, "run")
    pieces = ledger.pending_pieces()
    with ThreadPoolExecutor(8) as calls:
        first = [calls.submit(node.build, f"first-{piece.part}", piece) for piece in pieces]
        for piece in pieces:
            calls.submit(node.withdraw, f"first-{piece.part}")
        again = [calls.submit(node.build, f"again-{piece.part}", piece) for piece in pieces]
        for future in again:
            staged = future.result()
            assert staged is not None
            ledger.commit(staged)
    assert all(future.done() for future in first)
    ledger.close()
    assert parts_of(output) == parts_of(undisturbed)


def test_stop_stages_what_is_there(job: NodeJob, node: Node, output: Path) -> None:
    ledger = ledger_of(output)
    node.open(job, "run")
    pieces = ledger.pending_pieces()
    with ThreadPoolExecutor(8) as calls:
        builds = [calls.submit(node.build, f"attempt-{piece.part}", piece) for piece in pieces]
        builds[0].result()
        node.stop(15)
        staged = [each for each in (build.result() for build in builds) if each is not None]
    assert staged
    for each in staged:
        assert ledger.commit(each)
    assert sum(record.rows for record in ledger.records) == sum(each.record.rows for each in staged)
    assert node.build("late", pieces[0]) is None
    ledger.close()


def test_piece_that_cannot_be_written_fails_though_nothing_follows_it(job: NodeJob, node: Node, output: Path) -> None:
    ledger = ledger_of(output)
    node.open(job, "run")
    shutil.rmtree(output / "_penstock" / "staging" / "run")
    with ThreadPoolExecutor(1) as calls:
        build = calls.submit(node.build, "attempt", ledger.pending_pieces()[0])
        with contextlib.closing(node), pytest.raises(penstock.OutputError, match="cannot be written"):
            build.result(timeout=60)
    ledger.close()


def test_engine_of_a_node_that_cannot_write_is_ended_with_it(job: NodeJob, node: Node, output: Path) -> None:
    """What collects garbage later would close descriptors twice, and the second time somebody else's."""
    ledger = ledger_of(output)
    node.open(job, "run")
    shutil.rmtree(output / "_penstock" / "staging" / "run")
    with ThreadPoolExecutor(8) as calls:
        builds = [calls.submit(node.build, f"attempt {piece.part}", piece) for piece in ledger.pending_pieces()]
        with contextlib.closing(node), pytest.raises(penstock.OutputError, match="cannot be written"):
            [build.result(timeout=60) for build in builds]
    runs = [each for each in gc.get_objects() if inspect.isgenerator(each) and each.__name__ == "run_fed"]
    assert [run for run in runs if run.gi_frame is not None] == []
    ledger.close()


def test_node_settles_what_a_local_run_does(job: NodeJob, node: Node, output: Path) -> None:
    manifest = load_manifest(place_of(str(output)))
    assert manifest is not None
    settled = node.settle(job)
    assert (settled.recipe, settled.bindings, settled.schema) == (manifest.recipe, manifest.bindings, manifest.schema)
    assert tuple(settled.source.divide(*settled.division)) == tuple(manifest.spans)
    place_of(str(output)).open_attempts("run")
    node.open(job, "run")
    assert node.build("one", PartPiece(0, 0, 0, 1)) is not None


def test_node_that_does_not_see_the_output_says_so(job: NodeJob, node: Node, output: Path) -> None:
    shutil.rmtree(output)
    with pytest.raises(penstock.OutputError, match="does not see the output"):
        node.open(job, "run")
