"""The driver of a cluster of any size, without the cluster: what it costs, what it keeps, and how long the tail is.

What is real: `ClusterState`, the ledger, its journal on a disk, the manifest with its spans. What is simulated: the
clock, the nodes, and the files of the parts, which are named and never written.

    python -m bench.simulated_cluster                     # 10^7 to 10^10 rows on 1,000 nodes; about five minutes
    python -m bench.simulated_cluster --rows 1e8 --nodes 100 --failures 10
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace

from bench.settings import BenchSettings
from bench.table import Bar, Line, amount
from penstock.core import division
from penstock.core.records import OutputSchema, Recipe, Span, TensorSpec
from penstock.engines import cluster_events as events
from penstock.engines.cluster_state import ClusterState
from penstock.storage.journal import Journal, PartRecord
from penstock.storage.ledger import Ledger
from penstock.storage.local_folder import LocalFolder
from penstock.storage.manifest import MANIFEST, Manifest, load_manifest
from penstock.storage.part_builder import PartPiece, StagedPart
from penstock.storage.stored_spans import store

ROWS_A_SPAN = 4096
SPANS_A_PART = 64
_MONTH_S = 30 * 86_400.0
_START_S = 30.0
"""From the order to start a node until it takes pieces."""
_REPLACED_S = 300.0
"""From the loss of a machine until another one joins."""
_RPC_S = 0.002
_GROUP_S = 0.05
"""What is staged within this time is committed together: a driver takes all that waits for it."""


@dataclass(frozen=True)
class Scenario:
    """A job and a cluster.

    Args:
        rows: Of the input.
        nodes: Machines at the start, of 8 GPUs each.
        rows_per_s: Of a node, in the mean; nodes differ by a log-normal factor.
        slow_share: So many of the nodes are ten times slower than that.
        failures: A node fails so many times a month. Half of the failures take the machine, half only the process.
        has_second_attempts: Whether idle nodes build again what slow ones have begun.
        seed: Of the chance.
    """

    rows: int
    nodes: int = 1000
    rows_per_s: float = 8000.0
    slow_share: float = 0.01
    failures: float = 1.0
    has_second_attempts: bool = True
    seed: int = 0


@dataclass
class Figures:
    """What a simulated job cost. Times of the driver are those of its processor."""

    spans: int = 0
    parts: int = 0
    commits: int = 0
    appends: int = 0
    failures: int = 0
    attempts: int = 0
    calls: int = 0
    plan_s: float = 0.0
    """Dividing the input, packing and saving the manifest."""
    decide_s: float = 0.0
    """`ClusterState`."""
    commit_s: float = 0.0
    """The ledger and the journal."""
    job_s: float = 0.0
    """On the clock of the simulation."""
    ideal_s: float = 0.0
    """Without failures, if the rows could be divided as finely as one likes."""
    journal_bytes: int = 0
    manifest_bytes: int = 0
    driver_bytes: int = 0
    """Of resident memory, beyond that of a process that has no job."""
    resume_s: float = 0.0
    resume_bytes: int = 0

    @property
    def us_a_span(self) -> float:
        return 1e6 * (self.plan_s + self.decide_s + self.commit_s) / max(1, self.spans)

    @property
    def bytes_a_span(self) -> float:
        return max(self.driver_bytes, self.resume_bytes) / max(1, self.spans)

    @property
    def tail_s(self) -> float:
        return self.job_s - self.ideal_s


class NamedFolder(LocalFolder):
    """A folder whose parts have names and sizes, and no files: those of its journal, when that was read."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._sizes: dict[str, int] = {}

    def journal(self) -> Journal:
        journal = super().journal()
        self._note(journal.records)
        return journal

    def read_journal(self) -> tuple[list[PartRecord], list[str]]:
        records, problems = super().read_journal()
        self._note(records)
        return records, problems

    def _note(self, records: Sequence[PartRecord]) -> None:
        self._sizes = {name: size for record in records for name, size in record.files.items()}

    def confirm(self, parts: Sequence[StagedPart]) -> list[dict[str, int]]:
        return [part.record.all_files for part in parts]

    def sizes(self, folder: str = "") -> dict[str, int]:
        return super().sizes(folder) if folder else self._sizes


def spans_of(rows: int) -> Iterator[Span]:
    """As a folder of Parquet files of 64 spans would be divided."""
    for index, start in enumerate(range(0, rows, ROWS_A_SPAN)):
        file, place = divmod(index, SPANS_A_PART)
        count = min(ROWS_A_SPAN, rows - start)
        yield Span(index, start, count, (file, 0, place * ROWS_A_SPAN, count))


def manifest_of(rows: int) -> Manifest:
    spans = store(spans_of(rows))
    schema = OutputSchema((TensorSpec("y", "float32", (10,)),), 1)
    return Manifest(
        request={"format": "parquet", "data": ["rows"]},
        model_digest="0" * 64,
        fingerprint="0" * 64,
        fragments=(),
        recipe=Recipe("jax", "gpu", 512, 1),
        bindings=(),
        schema=schema,
        spans=spans,
        parts=tuple(division.divide_into_parts(spans, ROWS_A_SPAN * SPANS_A_PART)),
    )


def record_of(piece: PartPiece, rows: int) -> PartRecord:
    """What a node would say of a part that it built: 64 MB of Parquet, and a digest of the bytes behind each span."""
    assert piece.stop_span is not None
    name = f"{piece.name}.parquet"
    digests = {str(span): f"{hash((span, 1)) & 0xFFFFFFFF:08x}" for span in range(piece.first_span, piece.stop_span)}
    return PartRecord(
        piece.part,
        piece.cut,
        piece.first_span,
        piece.stop_span,
        rows,
        0,
        {name: 40 * rows},
        0,
        digests=digests,
        checksums={name: f"{piece.part:08x}"},
        written_at=1_800_000_000.123,
    )


def rows_of(manifest: Manifest, piece: PartPiece) -> int:
    assert piece.stop_span is not None
    return manifest.spans[piece.stop_span - 1].stop - manifest.spans[piece.first_span].start


@dataclass
class _SimulatedNode:
    """One life of a node: it builds its attempts one after another, at one speed."""

    name: str
    rows_per_s: float
    queue: list[tuple[str, PartPiece, int]] = field(default_factory=list)
    begun_at: float = 0.0
    is_ready: bool = False


class Simulation:
    """See the module.

    Events that come from nodes and from the clock wait in a heap by their time.
    """

    def __init__(self, scenario: Scenario, place: NamedFolder, manifest: Manifest, figures: Figures) -> None:
        self._scenario = scenario
        self._chance = random.Random(scenario.seed)
        self._figures = figures
        self._ledger = Ledger(place, manifest)
        place.open_attempts("run")
        self._state = ClusterState(self._ledger.pending_pieces(), lambda piece: rows_of(manifest, piece), "run")
        if not scenario.has_second_attempts:
            self._state._attempts.second_attempts = list  # type: ignore[method-assign,assignment]
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._now = 0.0
        self._speeds: dict[str, float] = {}
        self._nodes: dict[int, _SimulatedNode] = {}
        self._staged: list[events.Commit] = []
        self._num_machines = 0

    def run(self) -> None:
        with closing(self._ledger):
            for _ in range(self._scenario.nodes):
                self._join()
            self._every(1.0, lambda: self._send(events.Tick(self._now)))
            self._every(max(1.0, 0.005 * self._scenario.nodes), self._beat)
            while not self._state.is_finished:
                self._now, _, happens = heapq.heappop(self._waiting)
                happens()
            self._state.check()
            self._figures.job_s = self._now
            self._ledger.finish()

    def _after(self, seconds: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._waiting, (self._now + seconds, next(self._order), happens))

    def _every(self, seconds: float, happens: Callable[[], None]) -> None:
        def again() -> None:
            happens()
            self._after(seconds, again)

        self._after(seconds, again)

    def _join(self) -> None:
        name = f"10.{self._num_machines >> 16 & 255}.{self._num_machines >> 8 & 255}.{self._num_machines & 255}"
        self._num_machines += 1
        is_slow = self._chance.random() < self._scenario.slow_share
        factor = self._chance.lognormvariate(0.0, 0.2) / (10 if is_slow else 1)
        self._speeds[name] = self._scenario.rows_per_s * factor
        self._send(events.NodeJoined(name))

    def _send(self, event: events.Event) -> None:
        began = time.process_time()
        commands = self._state.handle(event)
        self._figures.decide_s += time.process_time() - began
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: events.Command) -> None:
        match command:
            case events.StartNode(node=number, name=name):
                self._start(number, name)
            case events.Settle(node=number, kind=kind):
                self._after(_START_S, lambda: self._send(events.KindSettled(number, kind)))
            case events.Open(node=number):
                self._after(_RPC_S, lambda: self._open(number))
            case events.Build(node=number, attempt=attempt, piece=piece):
                self._figures.attempts += 1
                self._figures.calls += 1
                self._build(number, attempt, piece)
            case events.Withdraw(node=number, attempt=attempt):
                self._withdraw(number, attempt)
            case events.EndNode(node=number):
                self._nodes.pop(number, None)
            case events.Commit():
                if not self._staged:
                    self._after(_GROUP_S, self._commit)
                self._staged.append(command)
            case events.Raise(error=error):
                raise error

    def _start(self, number: int, name: str) -> None:
        self._nodes[number] = _SimulatedNode(name, self._speeds[name])
        self._after(_START_S, lambda: self._send(events.NodeUp(number, "gpu")))
        lives_s = self._chance.expovariate(self._scenario.failures / _MONTH_S) if self._scenario.failures else 1e18
        self._after(lives_s, lambda: self._fail(number))

    def _open(self, number: int) -> None:
        if number in self._nodes:
            self._nodes[number].is_ready = True
            self._send(events.NodeReady(number))

    def _fail(self, number: int) -> None:
        if number not in self._nodes:
            return
        self._figures.failures += 1
        is_gone = self._chance.random() < 0.5
        how = "left the cluster" if is_gone else "was killed"
        notices_s = 14.0 if is_gone else _RPC_S
        self._nodes[number].queue.clear()
        self._after(notices_s, lambda: self._send(events.NodeLost(number, how, is_gone)))
        if is_gone:
            self._after(_REPLACED_S, self._join)

    def _build(self, number: int, attempt: str, piece: PartPiece) -> None:
        node = self._nodes[number]
        node.queue.append((attempt, piece, self._rows_of(piece)))
        if len(node.queue) == 1:
            self._begin(number)

    def _rows_of(self, piece: PartPiece) -> int:
        """As a node knows them, which has read the manifest itself."""
        assert piece.stop_span is not None
        return min(self._scenario.rows, piece.stop_span * ROWS_A_SPAN) - piece.first_span * ROWS_A_SPAN

    def _begin(self, number: int) -> None:
        node = self._nodes[number]
        node.begun_at = self._now
        attempt, _, rows = node.queue[0]
        self._after(rows / node.rows_per_s, lambda: self._finish(number, attempt))

    def _finish(self, number: int, attempt: str) -> None:
        node = self._nodes.get(number)
        if node is None or not node.queue or node.queue[0][0] != attempt:
            return  # it failed, or the attempt was withdrawn
        _, piece, rows = node.queue.pop(0)
        if node.queue:
            self._begin(number)
        staged = StagedPart(record_of(piece, rows), {}, attempt)
        self._send(events.PieceStaged(number, attempt, staged))

    def _withdraw(self, number: int, attempt: str) -> None:
        self._figures.calls += 1
        node = self._nodes.get(number)
        if node is None:
            return
        is_running = bool(node.queue) and node.queue[0][0] == attempt
        node.queue = [each for each in node.queue if each[0] != attempt]
        if is_running and node.queue:
            self._begin(number)

    def _beat(self) -> None:
        for number, node in list(self._nodes.items()):
            if not node.is_ready:
                continue
            self._figures.calls += 1
            done = {attempt: 0 for attempt, _, _ in node.queue}
            if node.queue:
                attempt, _, rows = node.queue[0]
                done[attempt] = min(rows, int((self._now - node.begun_at) * node.rows_per_s))
            self._send(events.NodeBeat(number, done))

    def _commit(self) -> None:
        staged, self._staged = self._staged, []
        began = time.process_time()
        outcomes = self._ledger.commit_delivered([command.staged for command in staged])
        self._figures.commit_s += time.process_time() - began
        self._figures.appends += 1
        self._figures.commits += sum(outcome is True for outcome in outcomes)
        for command, outcome in zip(staged, outcomes, strict=True):
            self._send(events.PieceCommitted(command.attempt, outcome is True))

    def ideal_s(self) -> float:
        """The rows over the speed of all machines of the start, from when they are ready."""
        speeds = itertools.islice(self._speeds.values(), self._scenario.nodes)
        return 2 * _START_S + self._scenario.rows / sum(speeds)


def simulate(scenario: Scenario, folder: str) -> Figures:
    """Run a job to its end in a folder, which then holds its manifest and its journal."""
    figures = Figures()
    empty_bytes = _resident_bytes()
    os.makedirs(os.path.join(folder, "_penstock"))
    place = NamedFolder(folder)
    began = time.process_time()
    manifest = manifest_of(scenario.rows)
    manifest.save(place)
    figures.plan_s = time.process_time() - began
    figures.spans, figures.parts = len(manifest.spans), len(manifest.parts)
    simulation = Simulation(scenario, place, manifest, figures)
    simulation.run()
    figures.driver_bytes = _resident_bytes() - empty_bytes
    figures.ideal_s = simulation.ideal_s()
    figures.journal_bytes = os.path.getsize(os.path.join(folder, "_penstock", "journal"))
    figures.manifest_bytes = os.path.getsize(os.path.join(folder, MANIFEST))
    return figures


def resume(folder: str) -> tuple[float, int]:
    """What opening a job costs that was ended half way: seconds, and bytes of resident memory."""
    empty_bytes, began = _resident_bytes(), time.perf_counter()
    place = NamedFolder(folder)
    manifest = load_manifest(place)
    assert manifest is not None
    ledger = Ledger(place, manifest)
    pieces = len(ledger.pending_pieces())
    seconds, used = time.perf_counter() - began, _resident_bytes() - empty_bytes
    ledger.close()
    assert pieces > 0
    return seconds, used


def _cut_journal(folder: str) -> None:
    """Leave the first half of a journal, as a driver that was killed would."""
    path = os.path.join(folder, "_penstock", "journal")
    with open(path, "rb") as file:
        lines = file.readlines()
    with open(path, "wb") as file:
        file.writelines(lines[: len(lines) // 2])


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def measured(scenario: Scenario) -> Figures:
    """A job, each of its two runs in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="penstock-simulated-") as folder:
        command = [sys.executable, "-m", "bench.simulated_cluster", "--inside", folder]
        asked = json.dumps(asdict(scenario))
        figures = Figures(**json.loads(_output([*command, "simulate", asked])))
        _cut_journal(os.path.join(folder, "out"))
        seconds, used = json.loads(_output([*command, "resume", asked]))
        return replace(figures, resume_s=seconds, resume_bytes=used)


def _output(command: Sequence[str]) -> bytes:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def bounded(settings: BenchSettings) -> list[Line]:
    """Run T: a job of 10^10 rows at scale 1.0, beside one of a tenth of them."""
    rows = int(1e10 * settings.sizes.scale)
    whole, tenth = measured(Scenario(rows)), measured(Scenario(rows // 10))
    job = f"driver of 1,000 nodes, {rows:.0e} rows, {ROWS_A_SPAN:,} in a span"
    amounts = {
        ("time a span", "µs", 50): (whole.us_a_span, tenth.us_a_span),
        ("memory a span", "B", 200): (whole.bytes_a_span, tenth.bytes_a_span),
        ("resuming half of it", "s", 60): (whole.resume_s, tenth.resume_s),
    }
    return [
        amount("T", f"{job}: {what}", unit, pair, Bar(limit, is_at_most=True, unit=unit), figures=asdict(whole))
        for (what, unit, limit), pair in amounts.items()
    ]


_HEAD = (
    "| rows | nodes | spans | driver µs a span | of it plan, decide, commit | B a span | journal B a span "
    "| manifest MB | resume s | job s | beyond the ideal s | attempts a part | failures | calls/s |\n|" + "---|" * 14
)


def line(scenario: Scenario, figures: Figures) -> str:
    each = [1e6 * seconds / figures.spans for seconds in (figures.plan_s, figures.decide_s, figures.commit_s)]
    fields = [
        f"{scenario.rows:.0e}",
        f"{scenario.nodes:,}",
        f"{figures.spans:,}",
        f"{figures.us_a_span:.1f}",
        ", ".join(f"{us:.1f}" for us in each),
        f"{figures.bytes_a_span:.0f}",
        f"{figures.journal_bytes / figures.spans:.0f}",
        f"{figures.manifest_bytes / 1e6:.2f}",
        f"{figures.resume_s:.1f}",
        f"{figures.job_s:,.0f}",
        f"{figures.tail_s:.0f}",
        f"{figures.attempts / figures.parts:.3f}",
        f"{figures.failures}",
        f"{figures.calls / figures.job_s:.0f}",
    ]
    return "| " + " | ".join(fields) + " |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, nargs="*", default=[1e7, 1e8, 1e9, 1e10])
    parser.add_argument("--nodes", type=int, nargs="*", default=[1000])
    parser.add_argument("--failures", type=float, default=1.0, help="of a node in a month")
    parser.add_argument("--slow", type=float, default=0.01, help="share of nodes that are ten times slower")
    parser.add_argument("--no-second-attempts", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inside", nargs=3, metavar=("FOLDER", "WHAT", "SCENARIO"), help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.inside is not None:
        folder, what, scenario = asked.inside
        output = os.path.join(folder, "out")
        found = resume(output) if what == "resume" else asdict(simulate(Scenario(**json.loads(scenario)), output))
        print(json.dumps(found))
        return
    print(_HEAD, flush=True)
    for rows, nodes in itertools.product(asked.rows, asked.nodes):
        scenario = Scenario(
            int(rows),
            nodes,
            slow_share=asked.slow,
            failures=asked.failures,
            has_second_attempts=not asked.no_second_attempts,
            seed=asked.seed,
        )
        print(line(scenario, measured(scenario)), flush=True)


if __name__ == "__main__":
    main()
