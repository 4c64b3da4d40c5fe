"""What every place of an output promises: a folder, a real S3-speaking server, a store in memory."""

from __future__ import annotations

import http.client
import json
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

from penstock.core.protocols import Merges
from penstock.core.records import Result
from penstock.core.retrying import wait_after
from penstock.errors import OutputError, UsageError
from penstock.storage.ledger import committed_records, is_finished, part_files, remove_job
from penstock.storage.manifest import is_fresh, load_manifest
from penstock.storage.part_builder import StagedPart
from penstock.storage.places import Place, place_of
from penstock.storage.remote_prefix import RemotePrefix
from penstock.storage.retried import stage_retried
from penstock.storage.verifying import find_problems
from tests.support import flaky_proxy, s3_server
from tests.unit.storage.test_ledger import FAILED, SINKS, SPANS, Run, manifest_of, result_of

BUCKET = "bucket"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server.start_s3_server() as endpoint, pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.environment(endpoint).items():
            patch.setenv(name, value)
        s3_server.filesystem(endpoint).mkdir(BUCKET)
        yield endpoint


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return str(request.node.name).replace("[", "-").replace("]", "").replace(" ", "-")


@pytest.fixture(params=["folder", "s3", "memory"])
def output(request: pytest.FixtureRequest, endpoint: str, tmp_path: Path, name: str) -> str:
    MemoryFileSystem.store.clear()
    return str(tmp_path / "out") if request.param == "folder" else f"{request.param}://{BUCKET}/{name}"


@pytest.fixture
def place(output: str) -> Iterator[Place]:
    """An empty place that this test has locked."""
    place = place_of(output)
    with place.lock():
        yield place


def run(place: Place, sink: str, stop: int | None = None) -> None:
    with closing(Run(place, sink)) as running:
        running.accept(*(span for span in running.ledger.pending if stop is None or span.index < stop))
        if stop is None:
            running.finish()


def everything(place: Place, sink: str) -> dict[str, bytes]:
    """The parts and the failures of a job."""
    names = [*part_files(place, manifest_of(sink=sink)), "_penstock/failures.jsonl"]
    return {name: place.read(name) or b"" for name in names}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """The same job in a local folder, in every format."""
    found = {}
    for sink in SINKS:
        place = place_of(str(tmp_path_factory.mktemp("expected") / sink))
        with place.lock():
            run(place, sink)
        found[sink] = everything(place, sink)
    return found


@pytest.mark.parametrize("sink", SINKS)
def test_job_has_the_same_bytes_wherever_it_is_written(
    place: Place, sink: str, expected: dict[str, dict[str, bytes]]
) -> None:
    run(place, sink, stop=3)
    run(place, sink)
    assert everything(place, sink) == expected[sink]
    assert is_finished(manifest_of(sink=sink), committed_records(place, manifest_of(sink=sink)))


BUILD = """
import json, pickle, sys
from penstock.storage.part_builder import PartBuilder
from tests.unit.storage.test_ledger import SINKS, SPANS, manifest_of, result_of

piece = pickle.loads(bytes.fromhex(sys.argv[1]))
builder = PartBuilder(piece, SINKS["jsonl"], manifest_of().schema, sys.argv[2])
for span in reversed(SPANS[piece.first_span : piece.stop_span]):
    builder.add(result_of(span))
print(json.dumps(builder.finish().as_json()))
"""


def test_part_that_another_process_built_is_committed(place: Place, expected: dict[str, dict[str, bytes]]) -> None:
    with closing(Run(place, "jsonl")) as running:
        piece = running.ledger.pending_pieces()[0]
        command = [sys.executable, "-c", BUILD, pickle.dumps(piece).hex(), running.ledger.staging]
        built = subprocess.run(command, capture_output=True, check=True, cwd=Path(__file__).parents[2])
        running.accept(*SPANS[2:])
        assert running.ledger.commit(StagedPart.from_json(json.loads(built.stdout)))
        running.finish()
    assert everything(place, "jsonl") == expected["jsonl"]


@pytest.mark.parametrize("sink", SINKS)
def test_removed_job_leaves_a_fresh_place(place: Place, sink: str) -> None:
    manifest_of(sink=sink).save(place)
    run(place, sink)
    assert load_manifest(place) == manifest_of(sink=sink)
    remove_job(place, manifest_of(sink=sink))
    assert is_fresh(place)
    assert place.children() == ["_penstock"]


@pytest.mark.parametrize("sink", SINKS)
def test_failed_rows_are_put_into_their_parts(place: Place, sink: str, tmp_path: Path) -> None:
    run(place, sink)
    manifest, writer = manifest_of(sink=sink), SINKS[sink]
    assert isinstance(writer, Merges)
    left = frozenset({12, 17})
    with closing(Run(place, sink)) as running:
        for part, spans in enumerate((SPANS[:2], SPANS[2:3], SPANS[3:4], SPANS[4:])):
            results = [only_failed(result_of(span, left)) for span in spans]
            retried = [result for result in results if result.span.rows]
            running.ledger.replace(stage_retried(place, manifest, running.ledger, writer, part, retried))
        running.finish()
    assert find_problems(place, manifest)[0] == []
    records = committed_records(place, manifest)
    assert is_finished(manifest, records)
    assert (sum(record.rows for record in records), sum(record.failed for record in records)) == (33, 2)
    other = place_of(str(tmp_path / "at once"))
    with other.lock(), closing(Run(other, sink)) as running:
        for span in SPANS:
            running.parts.accept(result_of(span, left))
        running.finish()
    at_once = everything(other, sink).items()
    assert {name.replace("_0001", ""): content for name, content in everything(place, sink).items()} == dict(at_once)


def only_failed(result: Result) -> Result:
    """Of a result the rows that had failed in the first run."""
    rows = np.array([row for row in range(result.span.start, result.span.stop) if row in FAILED], np.int64)
    keep = np.isin(result.row_numbers(), rows)
    span = replace(result.span, rows=len(rows), numbers=tuple((int(row), 1) for row in rows))
    return replace(result, span=span, columns={name: column[keep] for name, column in result.columns.items()})


def test_job_is_removed_from_a_remote_store_that_has_real_folders(tmp_path: Path) -> None:
    place = RemotePrefix(f"file://{tmp_path}/out")
    with place.lock():
        manifest_of(sink="parquet").save(place)
        run(place, "parquet")
        remove_job(place, manifest_of(sink="parquet"))
        assert is_fresh(place)
        assert not list(tmp_path.rglob("part-*"))


def test_place_is_absent_until_it_is_locked(output: str) -> None:
    assert place_of(output).children() is None
    assert place_of(output).read_journal()[0] == []
    assert place_of(output).sizes("y") == {}
    assert place_of(output).holder() is None
    place = place_of(output)
    with place.lock():
        assert place_of(output).holder() is not None
        assert time.time() - 3600 < place_of(output).held_since() < time.time() + 1
        with place.log():
            pass
        place.leave_no_trace(existed=False)
    assert place_of(output).children() is None


def test_content_is_written_read_listed_and_removed(place: Place) -> None:
    place.write("_penstock/x", b"one")
    place.write("_penstock/x", b"three")
    assert place.read("_penstock/x") == b"three"
    assert place.read("_penstock/y") is None
    assert {name: size for name, size in place.sizes("_penstock").items() if "lock" not in name} == {"_penstock/x": 5}
    place.remove(["_penstock/x", "_penstock/y"])
    assert place.read("_penstock/x") is None


def test_address_names_the_place_as_a_person_would(place: Place, output: str) -> None:
    assert place.address() == output
    assert place.address("_penstock/x") == f"{output}/_penstock/x"


def test_address_of_a_folder_may_be_a_url(tmp_path: Path) -> None:
    place = place_of(f"file://{tmp_path}/out")
    with place.lock():
        run(place, "jsonl")
    assert (tmp_path / "out" / "part-00000000.jsonl").exists()


@pytest.mark.parametrize("url", ["https://example.org/out", "nothing-of-that-kind://x/y", "s3://"])
def test_url_that_cannot_be_written_to_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        place_of(url)
    assert url in (caught.value.received or "")


def test_prefix_may_hold_what_patterns_are_made_of(endpoint: str, expected: dict[str, dict[str, bytes]]) -> None:
    place = place_of(f"s3://{BUCKET}/runs/[a-z]*? {{1}} #ä%41")
    with place.lock():
        run(place, "npy")
        assert everything(place, "npy") == expected["npy"]
        remove_job(place, manifest_of(sink="npy"))
        assert part_files(place, manifest_of(sink="npy")) == []


def test_empty_object_that_tools_put_for_a_folder_is_no_obstacle(endpoint: str) -> None:
    # s3fs itself strips the slash, so it is put as the console of a provider would.
    address = http.client.HTTPConnection(endpoint.removeprefix("http://"))
    with closing(address):
        address.request("PUT", f"/{BUCKET}/made-by-hand/", b"")
        assert address.getresponse().status == 200
    place = place_of(f"s3://{BUCKET}/made-by-hand/")
    assert is_fresh(place)
    with place.lock():
        run(place, "jsonl")


class LossyHandler(flaky_proxy._Handler):
    """Does what it is asked to and says nothing, every third time."""

    asked = 0

    def do_PUT(self) -> None:
        type(self).asked += 1
        if type(self).asked % 3:
            self.do_GET()
            return
        self._pass_on(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        self.close_connection = True


class ForbiddingHandler(flaky_proxy._Handler):
    """Everybody may look, nobody may write."""

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer(403, {}, b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>")


class PlainHandler(flaky_proxy._Handler):
    """An older store, which does not write on a condition."""

    def do_PUT(self) -> None:
        if not {"If-Match", "If-None-Match"} & set(self.headers):
            self.do_GET()
            return
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer(501, {}, b"<Error><Code>NotImplemented</Code><Message>not implemented</Message></Error>")


class LeavingHandler(flaky_proxy._Handler):
    """Answers until it is gone; then every connection is closed."""

    is_gone = False

    def do_GET(self) -> None:
        if self.is_gone:
            self.close_connection = True
        else:
            super().do_GET()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET


@contextmanager
def behind(endpoint: str, handler: type[Any] | None = None, *, every: int = 1 << 30) -> Iterator[Any]:
    """The server behind a proxy, for the file systems that are made meanwhile."""
    with flaky_proxy.start_flaky_proxy(endpoint, every) as proxy, pytest.MonkeyPatch.context() as patch:
        if handler is not None:
            proxy.RequestHandlerClass = handler
        patch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy


def test_faults_of_the_store_are_survived(endpoint: str, name: str, expected: dict[str, dict[str, bytes]]) -> None:
    with behind(endpoint, every=4) as proxy:
        place = place_of(f"s3://{BUCKET}/{name}")
        with place.lock():
            run(place, "npy")
            assert everything(place, "npy") == expected["npy"]
        assert proxy.faults > 10


def test_writes_whose_answer_was_lost_are_known_as_our_own(
    endpoint: str, name: str, expected: dict[str, dict[str, bytes]]
) -> None:
    with behind(endpoint, LossyHandler):
        place = place_of(f"s3://{BUCKET}/{name}")
        with place.lock():
            run(place, "jsonl", stop=3)
            run(place, "jsonl")
            assert everything(place, "jsonl") == expected["jsonl"]
        assert LossyHandler.asked > 10
    assert place_of(f"s3://{BUCKET}/{name}").holder() is None


def test_store_without_conditional_writes_is_written_to_after_looking(
    endpoint: str, name: str, expected: dict[str, dict[str, bytes]]
) -> None:
    with behind(endpoint, PlainHandler):
        place = place_of(f"s3://{BUCKET}/{name}")
        with place.lock():
            with pytest.raises(OutputError, match="locked by a run that is alive"), place_of(place.address()).lock():
                pass
            run(place, "jsonl", stop=3)
            place.write(f"part-{2:08d}.jsonl", b"left by a run that was killed")
            run(place, "jsonl")
            assert everything(place, "jsonl") == expected["jsonl"]
        assert place.holder() is None


def test_missing_permission_is_told_when_the_lock_is_taken(endpoint: str, name: str) -> None:
    with behind(endpoint, ForbiddingHandler):
        place = place_of(f"s3://{BUCKET}/{name}")
        assert is_fresh(place)
        with pytest.raises(OutputError, match="there is no permission to write to the output") as caught, place.lock():
            pass
    assert f"s3://{BUCKET}/{name}" in (caught.value.received or "")


def test_server_that_is_not_there_is_told_in_seconds(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free.getsockname()[1]}")
    waits: list[float] = []

    def noted(attempt: int) -> float:
        waits.append(wait_after(attempt))
        return waits[-1]

    monkeypatch.setattr("penstock.core.retrying.wait_after", noted)
    place = place_of(f"s3://{BUCKET}/away")
    with pytest.raises(OutputError, match="the output cannot be reached") as caught:
        is_fresh(place)
    assert sum(waits) < 30
    assert f"s3://{BUCKET}/away" in (caught.value.received or "")


def test_store_that_goes_away_ends_the_run_and_keeps_what_is_committed(
    endpoint: str, name: str, expected: dict[str, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.core.retrying.LONGEST_WAIT_S", 0.2)
    url = f"s3://{BUCKET}/{name}"
    with behind(endpoint, LeavingHandler):
        place = place_of(url)
        with place.lock(), closing(Run(place, "jsonl")) as running:
            running.accept(*SPANS[:2])
            monkeypatch.setattr(LeavingHandler, "is_gone", True)
            with pytest.raises(OutputError, match="the output cannot be reached") as caught:
                running.accept(SPANS[2])
    assert url in (caught.value.received or "")
    assert "what is committed stays" in (caught.value.hint or "")
    again = place_of(url)
    assert again.read("_penstock/lock") is not None, "a lock that could not be removed stays"
    run(again, "jsonl")
    assert everything(again, "jsonl") == expected["jsonl"]
