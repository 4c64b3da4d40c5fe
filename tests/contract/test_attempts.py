"""What nodes of a cluster deliver: one attempt becomes a part, and what others write harms nothing."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

from penstock.errors import OutputError
from penstock.storage.attempts import NodeOutput, node_output
from penstock.storage.ledger import NotAsWritten, committed_records, is_finished
from penstock.storage.part_builder import PartBuilder, PartPiece, StagedPart
from penstock.storage.places import Place, place_of
from penstock.storage.verifying import find_problems
from tests.contract.test_places import (  # noqa: F401 - fixtures
    BUCKET,
    behind,
    endpoint,
    everything,
    expected,
    name,
    output,
    place,
)
from tests.support import s3_server
from tests.support.processes import wait_until
from tests.unit.storage.test_ledger import FAILED, SINKS, SPANS, Run, manifest_of, result_of

RUN = "0123abcd"
OTHER_ANSWERS = frozenset({*FAILED, 0, 10, 20, 21})
"""Other rows fail: what another kind of node, or one that ran out of memory, would write."""


@pytest.fixture
def node(place: Place, output: str) -> Iterator[NodeOutput]:  # noqa: F811
    with closing(node_output(output, RUN, place.mark())) as node:
        yield node


class Cluster(Run):
    """The driver of a run on a cluster: nodes build, it commits."""

    def __init__(self, place: Place, sink: str) -> None:  # noqa: F811
        super().__init__(place, sink)
        place.open_attempts(RUN)
        self.sink = sink

    def staged(
        self, node: NodeOutput, attempt: str, piece: PartPiece, failed: frozenset[int] = frozenset(FAILED)
    ) -> StagedPart:
        """What a node has written for an attempt, before it delivers it."""
        builder = PartBuilder(piece, SINKS[self.sink], manifest_of(sink=self.sink).schema, node.begin(attempt))
        for span in reversed(SPANS[piece.first_span : piece.stop_span]):
            builder.add(result_of(span, failed))
        staged = builder.finish()
        assert staged is not None
        return staged

    def deliver(
        self, node: NodeOutput, attempt: str, piece: PartPiece, failed: frozenset[int] = frozenset(FAILED)
    ) -> StagedPart:
        delivered = node.deliver(attempt, self.staged(node, attempt, piece, failed))
        return StagedPart.from_json(json.loads(json.dumps(delivered.as_json())))

    def commit_rest(self, node: NodeOutput) -> None:
        for piece in self.ledger.pending_pieces():
            assert self.ledger.commit(self.deliver(node, f"{RUN}-9-{piece.part}", piece))
        self.finish()


def assert_whole(place: Place, sink: str) -> None:  # noqa: F811
    manifest = manifest_of(sink=sink)
    assert is_finished(manifest, committed_records(place, manifest))
    assert find_problems(place, manifest)[0] == []


@pytest.mark.parametrize("sink", SINKS)
def test_parts_that_nodes_deliver_are_those_of_one_machine(
    place: Place,  # noqa: F811
    node: NodeOutput,
    sink: str,
    expected: dict[str, dict[str, bytes]],  # noqa: F811
) -> None:
    with closing(Cluster(place, sink)) as cluster:
        cluster.commit_rest(node)
    assert everything(place, sink) == expected[sink]
    assert_whole(place, sink)


@pytest.mark.parametrize("sink", SINKS)
def test_piece_that_two_nodes_build_is_committed_once(
    place: Place,  # noqa: F811
    node: NodeOutput,
    sink: str,
    expected: dict[str, dict[str, bytes]],  # noqa: F811
) -> None:
    with closing(Cluster(place, sink)) as cluster:
        piece = cluster.ledger.pending_pieces()[0]
        first, second = (cluster.deliver(node, f"{RUN}-{number}-0", piece) for number in (0, 1))
        assert second.record.files == first.record.files
        assert cluster.ledger.commit(second)
        assert not cluster.ledger.commit(first)
        place.drop_attempt(RUN, first.attempt)
        cluster.commit_rest(node)
    assert everything(place, sink) == expected[sink]
    assert_whole(place, sink)


@pytest.mark.parametrize("is_first_committed", [True, False])
@pytest.mark.parametrize("sink", ["npy", "jsonl"])
def test_attempts_with_other_bytes_do_not_mix(
    place: Place,  # noqa: F811
    node: NodeOutput,
    sink: str,
    is_first_committed: bool,
) -> None:
    with closing(Cluster(place, sink)) as cluster:
        piece = cluster.ledger.pending_pieces()[0]
        one = cluster.deliver(node, f"{RUN}-0-0", piece)
        other = cluster.deliver(node, f"{RUN}-1-0", piece, OTHER_ANSWERS)
        winner, loser = (one, other) if is_first_committed else (other, one)
        assert cluster.ledger.commit(winner)
        late = cluster.deliver(node, f"{RUN}-2-0", piece, OTHER_ANSWERS if is_first_committed else frozenset(FAILED))
        assert not cluster.ledger.commit(loser)
        assert not cluster.ledger.commit(late)
        cluster.commit_rest(node)
    assert_whole(place, sink)
    records = committed_records(place, manifest_of(sink=sink))
    assert records[0] == winner.record


@pytest.mark.parametrize("is_same", [True, False])
def test_attempt_that_stopped_after_any_of_its_files_is_adopted_or_left_aside(is_same: bool) -> None:
    """A part of three files and its failures in a store: one attempt has created any of them, another delivers."""
    for created in itertools.product([False, True], repeat=4):
        MemoryFileSystem.store.clear()
        place = place_of(f"memory://{BUCKET}/mixed")  # noqa: F811
        with (
            closing(node_output(place.address(), RUN, place.mark())) as node,
            closing(node_output(place.address(), RUN, place.mark())) as late,
            closing(Cluster(place, "npy")) as cluster,
        ):
            piece = cluster.ledger.pending_pieces()[0]
            stalled = cluster.staged(late, f"{RUN}-0-0", piece, frozenset(FAILED) if is_same else OTHER_ANSWERS)
            for (path, target), is_created in zip(stalled.paths.items(), created, strict=True):
                if is_created:
                    MemoryFileSystem().pipe_file(place.address(target), Path(path).read_bytes())
            delivered = cluster.deliver(node, f"{RUN}-1-0", piece)
            assert delivered.record.cut == (1 if any(created) and not is_same else 0)
            assert cluster.ledger.commit(delivered)
            late.deliver(f"{RUN}-0-0", stalled)
            cluster.commit_rest(node)
        assert_whole(place, "npy")
    MemoryFileSystem.store.clear()


def test_parts_that_come_together_are_committed_together_and_each_is_judged_alone(
    place: Place,  # noqa: F811
    node: NodeOutput,
    output: str,  # noqa: F811
) -> None:
    with closing(Cluster(place, "jsonl")) as cluster:
        pieces = cluster.ledger.pending_pieces()
        parts = [cluster.deliver(node, f"{RUN}-0-{piece.part}", piece) for piece in pieces]
        again = cluster.deliver(node, f"{RUN}-1-0", pieces[0])
        torn = next(iter(parts[1].paths))
        place.write(torn, b"torn") if output.startswith(("s3:", "memory:")) else os.truncate(f"{output}/{torn}", 3)
        outcomes = cluster.ledger.commit_delivered([*parts, again])
        assert isinstance(outcomes[1], NotAsWritten)
        assert [outcome for place, outcome in enumerate(outcomes) if place != 1] == [True, True, True, False]
        assert output.startswith("/") or len(place.sizes("_penstock/journal")) == 1
        assert [piece.part for piece in cluster.ledger.pending_pieces()] == [1]
        cluster.commit_rest(node)
    assert_whole(place, "jsonl")


def test_of_two_attempts_that_come_together_the_one_that_is_whole_is_committed(
    place: Place,  # noqa: F811
    node: NodeOutput,
    output: str,  # noqa: F811
) -> None:
    """The node of the first is given up, and its files with it, before the two are committed."""
    with closing(Cluster(place, "jsonl")) as cluster:
        piece = cluster.ledger.pending_pieces()[0]
        lost = cluster.deliver(node, f"{RUN}-0-0", piece, OTHER_ANSWERS)
        kept, again = (cluster.deliver(node, f"{RUN}-{number}-0", piece) for number in (1, 2))
        place.remove(lost.paths)
        outcomes = cluster.ledger.commit_delivered([lost, kept, again])
        assert isinstance(outcomes[0], NotAsWritten)
        assert outcomes[1:] == [True, False]
        assert cluster.ledger.records == [kept.record]
        cluster.commit_rest(node)
    assert_whole(place, "jsonl")


def test_late_node_writes_nothing_into_the_output(place: Place, node: NodeOutput, output: str) -> None:  # noqa: F811
    with closing(Cluster(place, "jsonl")) as cluster:
        piece = cluster.ledger.pending_pieces()[0]
        late = cluster.staged(node, f"{RUN}-0-0", piece)
        place.drop_attempt(RUN, f"{RUN}-0-0")
        cluster.commit_rest(node)
    before = everything(place, "jsonl")
    if not output.startswith(("s3:", "memory:")):
        assert not any(map(os.path.exists, late.paths))
        with pytest.raises(OutputError):
            node.begin(f"{RUN}-0-1")
    assert everything(place, "jsonl") == before
    assert_whole(place, "jsonl")


@pytest.mark.parametrize("is_taken_over", [True, False])
def test_late_node_creates_nothing_in_a_store_once_its_run_is_over(
    endpoint: str,  # noqa: F811
    name: str,  # noqa: F811
    is_taken_over: bool,
) -> None:
    place = place_of(f"s3://{BUCKET}/{name}")  # noqa: F811
    with ExitStack() as held:
        with place.lock():
            node = held.enter_context(closing(node_output(place.address(), RUN, place.mark())))
            with closing(Cluster(place, "jsonl")) as cluster:
                late = cluster.staged(node, f"{RUN}-0-0", cluster.ledger.pending_pieces()[0], OTHER_ANSWERS)
                cluster.commit_rest(node)
        before = everything(place, "jsonl")
        if is_taken_over:
            held.enter_context(place.lock())
        with pytest.raises(OutputError, match="is over"):
            node.deliver(f"{RUN}-0-0", late)
        assert everything(place, "jsonl") == before


def test_late_node_that_still_writes_does_not_keep_the_next_run_from_beginning(tmp_path: Path) -> None:
    """What it makes while its folder is removed keeps the folder there."""
    place = place_of(str(tmp_path / "out"))  # noqa: F811
    attempt = tmp_path / "out" / "_penstock" / "staging" / RUN / "attempt"
    writing = "import itertools, os, sys\nos.chdir(sys.argv[1])\nfor n in itertools.count(): open(str(n), 'w').close()"
    for _ in range(20):
        attempt.mkdir(parents=True, exist_ok=True)
        with subprocess.Popen([sys.executable, "-c", writing, str(attempt)], stderr=subprocess.DEVNULL) as late:
            try:
                wait_until(lambda: any(attempt.iterdir()))
                assert os.path.isdir(place.staging())
            finally:
                late.kill()


def test_part_that_is_not_as_it_was_written_is_not_committed_and_can_be_built_again(
    place: Place,  # noqa: F811
    node: NodeOutput,
    output: str,  # noqa: F811
    expected: dict[str, dict[str, bytes]],  # noqa: F811
) -> None:
    with closing(Cluster(place, "jsonl")) as cluster:
        piece = cluster.ledger.pending_pieces()[0]
        delivered = cluster.deliver(node, f"{RUN}-0-0", piece)
        torn = next(iter(delivered.paths))
        if output.startswith(("s3:", "memory:")):
            place.write(torn, b"torn")
        else:
            os.truncate(os.path.join(output, torn), 3)
        with pytest.raises(NotAsWritten):
            cluster.ledger.commit(delivered)
        gone = StagedPart(delivered.record, {"_penstock/staging/none": "part-00000000.jsonl"}, "none")
        assert not output.startswith("/") or place.sizes("") == {}
        if output.startswith("/"):
            with pytest.raises(NotAsWritten):
                cluster.ledger.commit(gone)
        cluster.commit_rest(node)
    assert_whole(place, "jsonl")
    if output.startswith("/"):
        assert everything(place, "jsonl") == expected["jsonl"]


def test_parts_are_delivered_to_a_store_that_answers_503(
    endpoint: str,  # noqa: F811
    name: str,  # noqa: F811
    expected: dict[str, dict[str, bytes]],  # noqa: F811
) -> None:
    with behind(endpoint, every=4) as proxy:
        place = place_of(f"s3://{BUCKET}/{name}")
        with (
            place.lock(),
            closing(Cluster(place, "npy")) as cluster,
            closing(node_output(place.address(), RUN, place.mark())) as node,
        ):
            cluster.commit_rest(node)
        assert proxy.faults > 10
    assert everything(place_of(f"s3://{BUCKET}/{name}"), "npy") == expected["npy"]


def test_object_says_which_attempt_made_it_and_its_checksum(endpoint: str, name: str) -> None:  # noqa: F811
    place = place_of(f"s3://{BUCKET}/{name}")  # noqa: F811
    with (
        place.lock(),
        closing(Cluster(place, "jsonl")) as cluster,
        closing(node_output(place.address(), RUN, place.mark())) as node,
    ):
        piece = cluster.ledger.pending_pieces()[0]
        delivered = cluster.deliver(node, f"{RUN}-0-0", piece)
        metadata = s3_server.filesystem(endpoint).metadata(f"{BUCKET}/{name}/part-00000000.jsonl")
        assert metadata["penstock-attempt"] == f"{RUN}-0-0"
        assert metadata["penstock-crc32c"] == delivered.record.checksums["part-00000000.jsonl"]


UPLOAD = """
import os, signal, sys
from penstock.storage.objects import Objects

objects = Objects(sys.argv[1])
call = objects._store._call_s3

def end_before(method, *arguments, **options):
    if method == "complete_multipart_upload":
        os.kill(os.getpid(), signal.SIGKILL)
    return call(method, *arguments, **options)

objects._store._call_s3 = end_before
objects.upload(sys.argv[2], sys.argv[3], only_new=True)
"""


@pytest.mark.parametrize("is_next_run", [True, False])
def test_upload_in_pieces_of_a_node_that_was_killed_is_dropped(
    endpoint: str,  # noqa: F811
    name: str,  # noqa: F811
    is_next_run: bool,
    tmp_path: Path,
) -> None:
    """By the run that it was built for, when that ends, or by the next one, when it begins."""
    place = place_of(f"s3://{BUCKET}/{name}")  # noqa: F811
    large = tmp_path / "large"
    large.touch()
    os.truncate(large, 100 << 20)  # s3fs sends larger ones in pieces

    def upload(target: str) -> None:
        ran = subprocess.run([sys.executable, "-c", UPLOAD, place.address(), str(large), target])
        assert ran.returncode == -signal.SIGKILL

    def unfinished() -> list[str]:
        found = s3_server.filesystem(endpoint).list_multipart_uploads(BUCKET)
        return [each["Key"] for each in found if each["Key"].startswith(f"{name}/")]

    with place.lock():
        node = node_output(place.address(), RUN, place.mark())
        with closing(node), closing(Cluster(place, "jsonl")) as cluster:
            upload("part-00000000.jsonl")
            upload("somebody's.jsonl")
            assert len(unfinished()) == 2
            if not is_next_run:
                cluster.commit_rest(node)
        if is_next_run:
            Cluster(place, "jsonl").close()
    assert unfinished() == [f"{name}/somebody's.jsonl"]
