"""One machine of a cluster: the whole local engine, which builds the pieces that the driver hands out.

`Node` is plain Python. A transport puts it into a process of its own on its machine (`ray_transport`), or into threads
of a test; either calls its methods from several threads at once. The driver calls, nodes answer.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace

from penstock.cluster import parcels, preflight
from penstock.cluster.far_log import FarLog
from penstock.cluster.node_job import NodeJob
from penstock.cluster.node_parts import NodePieces
from penstock.cluster.preflight import Findings
from penstock.core import kinds
from penstock.core.records import Device, ModelFile, Timings
from penstock.core.stopping import StopFlag
from penstock.engines.local import LocalEngine
from penstock.engines.span_feed import SpanFeed
from penstock.errors import InputError, OutputError, PenstockError, one_line
from penstock.jobs import output_columns
from penstock.jobs.bring_up import Started
from penstock.jobs.decide import Request, Resumed
from penstock.jobs.reference_check import check_answers
from penstock.jobs.run_context import RunContext
from penstock.jobs.settled import Settled, resumed_from, settled_by
from penstock.jobs.writing import Writer
from penstock.planning import start_by_plan
from penstock.sources.files import unchanged
from penstock.storage.attempts import node_output
from penstock.storage.ledger import OpenParts
from penstock.storage.manifest import Manifest, load_manifest
from penstock.storage.part_builder import PartPiece, StagedPart
from penstock.storage.places import place_of
from penstock.telemetry.meter import Meter


@dataclass(frozen=True)
class Beat:
    """What happened on a node since the beat before.

    Args:
        rows: The rows of every attempt that are predicted.
        timings: The replica, its device and its timings, of every span that was finished.
        lines: Lines that people should see.
        log: What processes wrote, as much of it as fits.
        clock: The time of the node's clock, which its marks in a trace have.
        plan: The plan that it runs with, and why, in words.
        loaders: How many loader processes it has, in words.
        memory_events: Where memory ran out, and what was done about it.
    """

    rows: Mapping[str, int]
    timings: tuple[tuple[int, Device, Timings], ...] = ()
    lines: tuple[str, ...] = ()
    log: bytes = b""
    clock: float = 0.0
    plan: str = ""
    loaders: str | None = None
    memory_events: tuple[str, ...] = ()


@dataclass
class _Run:
    """A running engine: what feeds it, what it builds, and what writes its results."""

    feed: SpanFeed
    pieces: NodePieces
    writer: Writer
    manifest: Manifest
    error: PenstockError | None = None
    thread: threading.Thread | None = None


class _NodeMeter(Meter):
    """A meter whose timings also go to the driver."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node
        self.news: deque[tuple[int, Device, Timings]] = deque()

    def observe(self, number: int, device: Device, timings: Timings) -> None:
        super().observe(number, device, timings)
        self.news.append((number, replace(device, node=self._node), timings))


class Node:
    """See above.

    Args:
        name: The name of its machine, as people use it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._stop = StopFlag()
        self._lines: deque[str] = deque()
        self._started: Started | None = None
        self._run: _Run | None = None
        self._lock = threading.Lock()
        self._log = FarLog()
        self._meter = _NodeMeter(name)
        self._arrivals = parcels.Arrivals()
        self._model: ModelFile | None = None
        """The model of the job, where it is on this machine."""

    def look(self) -> dict[str, str]:
        """The versions that must be those of the driver: this is called before anything else is sent."""
        return preflight.base_versions()

    def check(self, job: NodeJob) -> Findings:
        """Whether everything that a job needs is on this machine."""
        findings = preflight.check(job, self.name)
        self._model = findings.model
        return findings

    def receive(self, digest: str, piece: bytes, is_last: bool, folder: str = parcels.PARCELS) -> None:
        """Take the next piece of a parcel; see `parcels`."""
        self._arrivals.receive(digest, piece, is_last=is_last, folder=folder)

    def converted_step(self) -> tuple[str, list[bytes]] | None:
        """The step that this node has converted for the job that it settled; see `parcels`."""
        return None if self._started is None else parcels.converted_step(self._started)

    def has_step(self, name: str) -> bool:
        """Whether a converted step is here."""
        return parcels.has_step(name)

    def settle(self, job: NodeJob, resumed: Resumed | None = None) -> Settled:
        """Find the plan for a job on this machine, and bring the job up.

        `resumed` is what the manifest fixes, where files are appended to a job.
        """
        return settled_by(self._bring_up(job, resumed, None))

    def open(self, job: NodeJob, run_name: str, kind: str = "") -> None:
        """Take the job as its manifest says, for a run of this name; `build` may be called from now on."""
        place = place_of(job.output)
        manifest = load_manifest(place)
        if manifest is None:
            raise OutputError(
                f"node {self.name} does not see the output of the driver",
                received=place.address(),
                hint="an output on a cluster is a folder that all nodes share, or a URL",
            )
        if self._started is not None and self._started.recipe != manifest.kind(kind).recipe:
            self._started.close()
            self._started = None
        started = self._started or self._bring_up(job, resumed_from(manifest, kind), manifest)
        pieces = NodePieces(manifest.schema, node_output(job.output, run_name, job.mark))
        parts = OpenParts(pieces, kinds.sink(job.options.format), lambda record: None, self._meter.step)
        feed = SpanFeed()
        writer = Writer(parts, self._meter, unchanged.Digester(started.source, started.job.columns), feed.end)
        self._run = run = _Run(feed, pieces, writer, manifest)
        run.thread = threading.Thread(target=self._work, args=(started, run), name=f"node {self.name}", daemon=True)
        run.thread.start()

    def build(self, attempt: str, piece: PartPiece) -> StagedPart | None:
        """Build a piece; returns when it is written, whole or as far as a stop allowed. None where nothing was written.

        Raises:
            PenstockError: The engine cannot go on.
        """
        return self._begin(self._running(), attempt, piece).result()

    def withdraw(self, attempt: str) -> None:
        """Give an attempt up; its `build` returns None."""
        with self._lock:
            self._withdraw(self._running(), attempt)

    def beat(self) -> Beat:
        """What happened since the last call."""
        news = self._meter.news
        timings = tuple(news.popleft() for _ in range(len(news)))
        lines = tuple(self._lines.popleft() for _ in range(len(self._lines)))
        rows = self._run.pieces.rows() if self._run is not None else {}
        beat = Beat(rows, timings, lines, self._log.news(), time.perf_counter())
        started = self._started
        if started is None or self._run is None:
            return beat
        return replace(
            beat,
            plan=started.plan_in_words,
            loaders=started.engine.loaders(),
            memory_events=started.memory_events(),
        )

    def stop(self, signal_number: int) -> None:
        """Begin no more spans, and stage what is there."""
        self._stop.signal_number = signal_number

    def close(self) -> None:
        """End all processes. May be called twice."""
        if self._run is not None and self._run.thread is not None:
            self._stop.signal_number = self._stop.signal_number or 15
            self._run.feed.end()
            self._run.thread.join()
            self._run.pieces.close()
        if self._started is not None:
            self._started.close()
            self._started = None
        self._log.close()
        self._arrivals.close()

    def _bring_up(self, job: NodeJob, resumed: Resumed | None, manifest: Manifest | None) -> Started:
        context = RunContext(self._log.file, self._stop, self._lines.append, job.is_verbose, self._meter)
        started = start_by_plan.start(self._model or job.model, Request(job.source, job.options, resumed), context)
        try:
            if job.options.check:
                self._lines.append(check_answers(self._model or job.model, started, context))
            if manifest is None:
                described = (*output_columns.describe_source(started.source), *output_columns.describe_feeding(started))
                self._lines.extend(described)
            output_columns.start_finisher(started, self._meter, None if manifest is None else manifest.schema)
        except BaseException:
            started.close()
            raise
        self._started = started
        return started

    def _running(self) -> _Run:
        if self._run is None:
            raise RuntimeError("the node was not opened")
        if self._run.error is not None:
            raise self._run.error
        return self._run

    def _begin(self, run: _Run, attempt: str, piece: PartPiece) -> Future[StagedPart | None]:
        with self._lock:
            before = run.pieces.of_part(piece.part)
            if before is not None:
                self._withdraw(run, before)  # the call that withdraws it is still on its way
            staged = run.pieces.add(attempt, piece)
            if self._stop.is_raised:
                run.pieces.remove(attempt)
                return staged
            try:
                run.feed.add(run.manifest.spans[piece.first_span : piece.stop_span])
            except ValueError:
                run.pieces.remove(attempt)  # the feed was ended
            return staged

    def _withdraw(self, run: _Run, attempt: str) -> None:
        """The caller holds the lock, so that results of a later attempt come after what is dropped here."""
        piece = run.pieces.remove(attempt)
        if piece is not None and piece.stop_span is not None:
            run.feed.withdraw(piece.first_span, piece.stop_span)
            run.writer.drop(piece.part, lambda: run.pieces.drop_files(attempt))

    def _work(self, started: Started, run: _Run) -> None:
        """Predict and write whatever comes, until a stop or an error."""
        assert isinstance(started.engine, LocalEngine)
        try:
            with (
                contextlib.closing(started.engine.run_fed(run.feed)) as results,
                contextlib.closing(output_columns.finished(started, results)) as finished,
                contextlib.closing(run.writer) as writer,
            ):
                for result in finished:
                    run.pieces.count(result)
                    writer.put(result)
                run.feed.end()
                writer.finish()
        except InputError as error:
            run.error = unchanged.find_changed(started.source.fragments()) or error
        except PenstockError as error:
            run.error = error
        except Exception as error:
            run.error = PenstockError(f"node {self.name} failed", received=one_line(error))
        finally:
            run.feed.end()
            run.pieces.end(run.error)
