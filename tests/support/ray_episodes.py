"""A job on a real Ray cluster that faults hit one after the other, compared with one that nothing disturbed.

An episode is one output, in a folder or on object storage. Each fault hits when so many parts are committed. A driver
that was killed or stopped is followed by another, on the cluster or on this machine alone. Machines that were killed
or cut off come back while the job runs. At the end the files are those of the undisturbed run, byte for byte (after a
stop, which cuts parts: its rows and failures), and nothing changes any more when late nodes have ended. What a driver
that was stopped has said to be committed is what the next one begins with, and is never built again.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

import penstock
from penstock.storage.journal import PartRecord, rows_in
from penstock.storage.places import place_of
from tests.support import chaos_jobs, s3_server
from tests.support.flaky_proxy import start_flaky_proxy
from tests.support.processes import wait_until
from tests.support.ray_cluster import RayCluster, RayNode, ray_cluster

ROWS, PART_ROWS = 40_000, 800
BUCKET = "cluster"
SINKS = ("parquet", "jsonl", "npy")
_EVERY = 25
"""One of so many requests to the object storage fails."""
HANG_S = 5
"""So long the driver waits for a node that does not answer."""
_HEALTH_S = 6.0
"""After so long Ray gives up a node that was cut off (see `ray_cluster`)."""
_DONE = 3
"""Some rows of the job fail."""
_WAS_DONE = 0
"""The driver before had finished the job when it was killed."""
_WORKERS = ("replica", "loader", "finisher")

MUST = ("node killed", "node cut off", "driver killed")
"""What every episode of the harness has."""
OTHERS = (
    *("actor killed", "worker killed", "actor frozen", "node cut off for a moment"),
    *("driver stopped", "driver killed", "node killed", "node cut off"),
)


@dataclass(frozen=True)
class ClusterJob:
    """One output of the job, and how it is made: rows whose function takes a while, and some of which fail."""

    inputs: Path
    output: str
    sink: str
    store: Any
    """The fsspec file system of the output."""

    def predict(self, *flags: str) -> list[str]:
        arguments = ["predict", str(self.inputs / "digits.onnx"), str(self.inputs / "rows.parquet"), "-o", self.output]
        arguments += ["--format", self.sink, "--part-rows", str(PART_ROWS), "--hang-timeout", str(HANG_S)]
        arguments += [
            "--runtime",
            "onnx",
            "--devices",
            "cpu:1",
            "--threads",
            "1",
            "--batch-size",
            "50",
            "--plan",
            "off",
        ]
        arguments += ["--preprocess-row", "tests.support.chaos_functions:dim", "--loaders", "1"]
        return [*arguments, *flags]

    def resume(self, *flags: str) -> list[str]:
        return ["resume", self.output, *flags]

    def num_parts(self) -> int:
        """Of those that are there, under their final names."""
        try:
            files = self.store.find(self.output)
        except FileNotFoundError:
            return 0
        return sum("/part-" in path and "/_penstock/" not in path for path in files)

    def files(self) -> dict[str, bytes]:
        return chaos_jobs.promised(chaos_jobs.all_files(self.store, self.output))


def on(cluster: RayCluster, *, is_client: bool = False) -> list[str]:
    """The flags with which a command runs on a cluster, as a part of it or as a client of its head."""
    return ["--engine", "ray", "--address", cluster.client_address if is_client else cluster.address]


class Driver:
    """A command in a process of its own."""

    def __init__(self, arguments: Sequence[str], environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "penstock", *arguments, "--json"]
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._read: list[tuple[str, str]] = []
        self._reader = threading.Thread(target=lambda: self._read.append(self.process.communicate()), daemon=True)
        self._reader.start()

    def wait_for(self, job: ClusterJob, parts: int) -> bool:
        """Until so many parts are there, or the command has ended; whether it still runs."""
        while self.process.poll() is None and job.num_parts() < parts:
            time.sleep(0.05)
        return self.process.poll() is None

    def end(self, number: signal.Signals | None = None, seconds: float = 300.0) -> tuple[int, str, str]:
        """Signal it; returns its exit code, and what it wrote."""
        if number is not None:
            self.process.send_signal(number)
        self._reader.join(seconds)
        if self._reader.is_alive():
            self.process.send_signal(signal.SIGUSR1)  # it writes where its threads are
            time.sleep(1)
            self.process.kill()
            self._reader.join()
            raise AssertionError(f"the driver hangs: {self._read[0][1]}")
        printed, said = self._read[0]
        assert "Traceback" not in said, said
        return self.process.returncode, printed, said

    def summary(self) -> dict[str, Any]:
        code, printed, said = self.end()
        assert code in (_DONE, _WAS_DONE), f"{code}: {said}"
        found: dict[str, Any] = json.loads(printed)
        return found


@dataclass
class Undisturbed:
    """What the job writes on this machine alone."""

    files: dict[str, bytes]
    content: chaos_jobs.Content

    @classmethod
    def run(cls, job: ClusterJob) -> Undisturbed:
        penstock_run = [sys.executable, "-m", "penstock", *job.predict("--quiet", "--loaders", "4")]
        ran = subprocess.run(penstock_run, capture_output=True, text=True)
        assert ran.returncode == _DONE, ran.stderr
        files = job.files()
        return cls(files, chaos_jobs.read(files, job.sink))

    def check(self, job: ClusterJob, *, is_cut: bool = False) -> None:
        """Compare an output with it: file by file, or, where a stop has cut parts, row by row."""
        files = job.files()
        differing = sorted(n for n in files.keys() | self.files.keys() if files.get(n) != self.files.get(n))
        assert is_cut or not differing, f"files differ: {differing}"
        content = chaos_jobs.read(files, job.sink)
        rows, expected = (table.column("row").to_pylist() for table in (content.table, self.content.table))
        doubled, lost = len(rows) - len(set(rows)), len(set(expected) - set(rows))
        assert (lost, doubled) == (0, 0), f"{lost} rows lost, {doubled} doubled"
        assert content.table.equals(self.content.table), "rows differ"
        assert content.failures == self.content.failures, "failures differ"
        problems = penstock.verify(job.output)["problems"]
        assert not problems, f"verify: {problems}"


@dataclass
class Episode:
    """See above.

    Args:
        faults: In their order.
        chance: Decides when they hit, and what.
        ways_on: How the job goes on after its driver has ended, in turn; by chance where nothing is given.
    """

    cluster: RayCluster
    job: ClusterJob
    faults: Sequence[str]
    chance: random.Random
    ways_on: Sequence[str] = ()
    history: list[str] = field(default_factory=list)
    hits: list[str] = field(default_factory=list)
    """The faults that hit: a job may be finished before the last ones."""
    said: list[str] = field(default_factory=list)
    """What each driver wrote to standard error."""
    _begun: int = 0
    """So many parts were there when the driver was started."""
    _committed: list[PartRecord] = field(default_factory=list)
    """What was committed when a driver was stopped last."""
    _returns: list[threading.Thread] = field(default_factory=list)
    _starting: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> dict[str, Any]:
        """Run the job to its end; returns the summary of the last command."""
        num_parts = ROWS // PART_ROWS
        moments = sorted(self.chance.sample(range(1, num_parts * 9 // 10), len(self.faults)))
        driver = self._start(self.job.predict(*on(self.cluster)))
        try:
            for fault, moment in zip(self.faults, moments, strict=True):
                if fault == "driver stopped":
                    moment = max(moment, self._begun + 1)  # one that listens
                if not driver.wait_for(self.job, moment):
                    break
                self.history.append(f"{fault} at {moment}")
                if fault.startswith("driver"):
                    self.hits.append(fault)
                    driver = self._end_driver(driver, fault)
                elif self._hit(fault):
                    self.hits.append(fault)
            summary = driver.summary()
            # Of a job that was finished before, failed rows are not among them.
            before = summary["rows_before"] + (0 if summary["run_seconds"] else summary["failed"])
            assert before >= rows_in(self._committed), f"{before} of {rows_in(self._committed)} rows were kept"
            return summary
        finally:
            if driver.process.poll() is None:
                driver.end(signal.SIGKILL)
            self.said.append(driver.end()[2])
            for thread in self._returns:
                thread.join()
            self.heal()

    def check(self, undisturbed: Undisturbed) -> None:
        """Compare what is there with what an undisturbed run wrote; once more when no late node is left."""
        again = set(map(_commit_of, self._committed)) - set(map(_commit_of, self._records()))
        assert not again, f"committed before a stop, and built again: {sorted(again)}"
        is_cut = "driver stopped" in self.faults
        undisturbed.check(self.job, is_cut=is_cut)
        wait_until(lambda: not any(node.actors() for node in self.cluster.nodes))
        undisturbed.check(self.job, is_cut=is_cut)

    def heal(self) -> None:
        """Have all machines in the cluster again."""
        for node in self.cluster.nodes[1:]:
            self._bring_up(node)

    def _start(self, arguments: list[str]) -> Driver:
        self._begun = self.job.num_parts()
        return Driver(arguments, self.cluster.environment)

    def _end_driver(self, driver: Driver, fault: str) -> Driver:
        if fault == "driver killed":
            self.said.append(driver.end(signal.SIGKILL)[2])
        else:
            number = self.chance.choice([signal.SIGTERM, signal.SIGINT])
            code, _, said = driver.end(number)
            assert code in (128 + number, _DONE), f"{code}: {said}"
            self.said.append(said)
            self._committed = self._records()
            words = f"stopped with {rows_in(self._committed):,} of {ROWS:,} rows committed"
            assert code == _DONE or words in said, f"{words}, not {said}"
        ways = {
            "predict on the cluster": self.job.predict(*on(self.cluster)),
            "resume on the cluster": self.job.resume(*on(self.cluster)),
            "resume as a client": self.job.resume(*on(self.cluster, is_client=True)),
            "resume here": self.job.resume(),
        }
        name = self.ways_on[len(self.said) - 1] if self.ways_on else self.chance.choice(list(ways))
        self.history.append(name)
        return self._start(ways[name])

    def _records(self) -> list[PartRecord]:
        return place_of(self.job.output).read_journal()[0]

    def _hit(self, fault: str) -> bool:
        """Have a fault hit a node; whether there was one. Machines that were not hit before come first.

        The head has the state of the cluster, and is spared where a machine is to go.
        """
        there = [node for node in self.cluster.nodes[1:] if node.raylets()]
        if not fault.startswith("node"):
            there = [node for node in self.cluster.nodes if node.actors()]
        fresh = [node for node in there if node.address not in self.history]
        if not there:
            return False
        node = self.chance.choice(fresh or there)
        self.history.append(node.address)
        if fault.startswith("node"):
            self._hit_machine(fault, node)
            return True
        return self._hit_worker(fault, node)

    def _hit_machine(self, fault: str, node: RayNode) -> None:
        if fault == "node killed":
            with self._starting:  # not while Ray is started there: that would fail
                self.cluster.kill_node(node)
            self._later(0.0, lambda: self._bring_up(node))
        elif fault == "node cut off":
            self.cluster.cut_off(node)
            self._later(_HEALTH_S + self.chance.uniform(0, 4), lambda: self._bring_back(node))
        else:
            self.cluster.cut_off(node)
            self._later(self.chance.uniform(0.1, 2.0), lambda: self.cluster.reconnect(node))

    def _hit_worker(self, fault: str, node: RayNode) -> bool:
        if fault == "actor frozen":
            self.cluster.freeze(node)
            self._later(HANG_S * self.chance.uniform(0.2, 2.0), lambda: self.cluster.thaw(node))
            return True
        try:
            hit = node.actors()
            if fault == "worker killed":
                hit = [each for actor in hit for each in actor.children() if _is_worker(each)]
            if hit:
                self.chance.choice(hit).kill()
        except psutil.NoSuchProcess:
            return False  # it ended meanwhile
        return bool(hit)

    def _later(self, seconds: float, then: Callable[[], object]) -> None:
        def wait() -> None:
            time.sleep(seconds)
            then()

        self._returns.append(threading.Thread(target=wait))
        self._returns[-1].start()

    def _bring_up(self, node: RayNode) -> None:
        with self._starting:  # one by one: see `RayCluster.start`
            if not node.raylets():
                self.cluster.restart_node(node)

    def _bring_back(self, node: RayNode) -> None:
        """Its raylet may live on where Ray has not given it up yet."""
        before = node.raylets()
        self.cluster.reconnect(node)
        psutil.wait_procs(before, timeout=20)
        self._bring_up(node)


def _commit_of(record: PartRecord) -> tuple[int, int, int, int, float]:
    return record.part, record.cut, record.first_span, record.stop_span, record.written_at


def _is_worker(process: psutil.Process) -> bool:
    try:
        return any(f".{role}" in word for role in _WORKERS for word in process.cmdline())
    except psutil.Error:
        return False


def by_seed(cluster: RayCluster, job: ClusterJob, seed: int) -> Episode:
    """The faults that all episodes have and two others, in an order and at moments that the seed decides."""
    chance = random.Random(seed)
    faults = [*MUST, *chance.choices(OTHERS, k=2)]
    chance.shuffle(faults)
    return Episode(cluster, job, faults, chance)


@contextmanager
def cluster_with_store(nodes: int = 3) -> Iterator[tuple[RayCluster, Any]]:
    """A cluster, and object storage on its network; what is asked of it from there gets a 503 or worse now and then."""
    with (
        ray_cluster(nodes=0) as cluster,
        s3_server.start_s3_server(cluster.host) as endpoint,
        start_flaky_proxy(endpoint, every=_EVERY, host=cluster.host) as proxy,
        mock.patch.dict(os.environ, s3_server.environment(endpoint)),
    ):
        store = s3_server.filesystem(endpoint)
        store.mkdir(BUCKET)
        cluster.environment |= s3_server.environment(proxy.endpoint)
        cluster.start(nodes)
        yield cluster, store


def run_seeds(seeds: Sequence[int], work: Path) -> int:
    """Run an episode for each seed, with all formats, on disk and on object storage in turn; returns the exit code."""
    inputs, disk = work / "inputs", LocalFileSystem()
    chaos_jobs.write_inputs(inputs, tensorflow=False, num_rows=ROWS)
    undisturbed = {sink: Undisturbed.run(ClusterJob(inputs, str(work / f"out-{sink}"), sink, disk)) for sink in SINKS}
    episodes: list[Episode] = []
    broken: list[str] = []
    with cluster_with_store() as (cluster, store):
        for number, seed in enumerate(seeds):
            sink, is_remote = SINKS[number // 2 % len(SINKS)], bool(number % 2)
            output = f"s3://{BUCKET}/{seed}" if is_remote else str(work / f"seed-{seed}")
            job = ClusterJob(inputs, output, sink, store if is_remote else disk)
            episode = by_seed(cluster, job, seed)
            episodes.append(episode)
            began = time.monotonic()
            try:
                episode.run()
                episode.check(undisturbed[sink])
                outcome = "the same bytes"
            except Exception as error:  # what nobody thought of: the other seeds are run all the same
                outcome = f"BROKEN: {type(error).__name__}: {error}"
                broken.append("\n".join([f"seed {seed}: {outcome}", *episode.said]))
            what = f"{sink} {'on object storage' if is_remote else 'on disk'}: {'; '.join(episode.history)}"
            print(f"seed {seed}, {time.monotonic() - began:.0f} s, {what}: {outcome}", flush=True)
            if not episode.job.output.startswith("s3:"):
                shutil.rmtree(output, ignore_errors=True)
    print(f"{len(episodes)} seeds, {len(broken)} broken; faults: {counted(episodes)}", *broken, sep="\n", flush=True)
    return 1 if broken else 0


def counted(episodes: Sequence[Episode]) -> str:
    """How often each fault hit."""
    faults = Counter(fault for each in episodes for fault in each.hits)
    return ", ".join(f"{name} {count}" for name, count in sorted(faults.items()))
