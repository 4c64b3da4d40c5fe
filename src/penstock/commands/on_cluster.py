"""A job that writes to a folder, on a cluster: nodes predict and write, and this process commits."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.cluster.connection import connect
from penstock.cluster.driver import Driver, Surroundings
from penstock.cluster.node import Beat
from penstock.cluster.node_job import NodeJob
from penstock.cluster.parcels import can_be_sent
from penstock.cluster.preflight import modules_of, remove_checks
from penstock.cluster.ray_transport import RayTransport
from penstock.cluster.transport import Transport
from penstock.commands import appending
from penstock.commands.folder_job import FolderJob, not_elsewhere
from penstock.commands.to_folder import MakeRun, Run, make_manifest
from penstock.core.protocols import ShowLine
from penstock.core.records import ModelFile
from penstock.core.state import VARIABLES
from penstock.engines.cluster_state import ClusterState
from penstock.errors import DeviceError, ModelError, OutputError, PenstockError, UsageError, WorkersDied
from penstock.jobs import output_columns
from penstock.jobs.bring_up import timeouts_of
from penstock.jobs.settled import Settled, resumed_from
from penstock.jobs.writing import FailureLimit
from penstock.models.digest import parts_of_module
from penstock.options.records import RAY, ClusterOptions, PredictOptions
from penstock.storage.disk import output_errors
from penstock.storage.journal import rows_in
from penstock.storage.ledger import Ledger, NotAsWritten, remove_job
from penstock.storage.local_folder import LocalFolder
from penstock.storage.manifest import Manifest
from penstock.storage.part_builder import PartPiece, StagedPart
from penstock.storage.places import place_of
from penstock.telemetry.summary import Summary

_FIRST_NODE_S = 10.0
_NAMED = 4


def runner_of(options: PredictOptions) -> MakeRun | None:
    """Makes the run of a job whose engine is a cluster; None for this machine."""
    cluster = options.cluster
    if cluster.engine != RAY:
        return None

    def make(*around: Any) -> Run:
        run = ClusterRun(*around)
        run.most_nodes = cluster.max_nodes
        run.connect = lambda: _connect(cluster, run.progress.note)
        return run

    return make


def check_local(options: PredictOptions) -> None:
    """Refuse a cluster for a call without an output: the nodes of a cluster must write what they predict.

    Raises:
        UsageError: The engine is a cluster.
    """
    if options.cluster.engine == RAY:
        raise UsageError(
            "the nodes of a cluster write what they predict",
            received="engine=ray, no output",
            hint="evaluate MODEL INPUT --label COLUMN --output FOLDER: one that all nodes share, or a URL",
        )


def _connect(cluster: ClusterOptions, show: ShowLine) -> Transport:
    ray, disconnect = connect(cluster.address, show)
    return RayTransport(ray, disconnect, cluster.resources)


def node_job(task: FolderJob) -> NodeJob:
    """Everything that nodes need of a job.

    Raises:
        UsageError: The job cannot run on other machines.
    """
    if not isinstance(task.model, ModelFile):
        raise UsageError(
            "a model of this process cannot run on other machines",
            received="a live model with engine='ray'",
            hint="save it, and give its path",
        )
    if not task.source.traits.is_resumable or not task.source.paths:
        raise not_elsewhere("rows of this process, or a stream,")
    modules = modules_of(task.model, task.options)
    place = place_of(task.output)
    output = place.path if isinstance(place, LocalFolder) else task.output
    return NodeJob(task.model, task.source, task.options, output, task.is_verbose, modules=modules)


@dataclass
class ClusterRun(Run):
    """One execution on the nodes of a cluster. `connect` gives the cluster, once everything else was checked."""

    connect: Callable[[], Transport] | None = None
    most_nodes: int | None = None
    _name: str = field(default_factory=lambda: secrets.token_hex(8))
    _old: Manifest | None = None
    """The manifest of the job in the folder, which is replaced when this job begins."""
    _manifest: Manifest | None = None
    _is_append: bool = False
    _ledger: Ledger | None = None
    _limit: FailureLimit | None = None
    _problem: PenstockError | None = None
    _rows_before: int = 0
    _ready: float | None = None
    """When the first node was ready."""

    def execute(self, existing: Manifest | None, *, is_append: bool = False) -> Summary:
        assert self.connect is not None
        job = replace(node_job(self.task), mark=self.place.mark())
        self._old = existing
        self._manifest = None if self.task.overwrite else existing
        self._is_append = is_append
        self._check_state(self._manifest.recipe.state if self._manifest is not None else "")
        if existing is None:
            for line in output_columns.describe_output(self.task.output, self.task.options.format):
                self.progress.note(line)
        resumed = {}
        if self._manifest is not None and is_append:
            names = self._manifest.kinds or ("",)
            resumed = {name: resumed_from(self._manifest, name, is_append=True) for name in names}
        transport = self.connect()
        with contextlib.ExitStack() as held:
            held.callback(transport.close)
            self._wait_for_one(transport)
            if self._manifest is not None and not is_append:
                self._open(self._manifest)
            state = ClusterState(
                self._pieces(),
                self._rows_of,
                self._name,
                pinned=self._ledger.pinned_pieces() if self._ledger is not None else {},
                settled=self._manifest.kinds if self._manifest is not None and not is_append else (),
                most_nodes=self.most_nodes,
                timeouts=timeouts_of(self.task.options),
            )
            around = Surroundings(self.context.log, self.context.stop, self.progress.note, self.meter)
            driver = Driver(
                transport, state, job, self, around, run=self._name, resumed=resumed, parcels=_parcels_of(job)
            )
            held.callback(self._close)
            held.callback(remove_checks, self.place)
            try:
                driver.run()
            except PenstockError as error:
                self._problem = self._problem or error
            return _with_beats(self._end(), driver.beats)

    def _wait_for_one(self, transport: Transport) -> None:
        """Wait a moment for a machine that may be used.

        Raises:
            DeviceError: There is no such node.
        """
        until = time.monotonic() + _FIRST_NODE_S
        while not transport.names():
            self.context.stop.check()
            if time.monotonic() > until:
                wanted = ", ".join(f"{name}={value}" for name, value in self.task.options.cluster.resources.items())
                raise DeviceError(
                    "no node of the cluster fits",
                    received=transport.others() or "no nodes",
                    allowed=f"--resources {wanted}" if wanted else "a node with CPUs or GPUs",
                    hint="start such a node, or ask for less",
                )
            time.sleep(0.2)

    def settle(self, kind: str, settled: Settled) -> None:
        """Put the recipe of a kind of machine into the manifest. The first kind also makes the manifest."""
        self._check_state(settled.recipe.state)
        settled = replace(settled, kind=kind)
        before = self._manifest
        if self._ledger is None:
            manifest = (
                make_manifest(self.task, settled) if before is None else appending.begin(before, self.task, settled)
            )
            with output_errors():
                if before is None and self._old is not None:
                    remove_job(self.place, self._old)
                manifest.save(self.place)
            self._open(manifest)
            return
        assert before is not None
        if (settled.bindings, settled.schema) != (before.bindings, before.schema):
            raise ModelError(
                "the model takes or gives something else on this kind of node",
                received=f"{kind}: {appending.named(settled.schema.columns)}",
                allowed=appending.named(before.schema.columns),
                hint="--resources leaves such nodes out",
            )
        of_kind = settled.of_kind
        if not before.kinds and settled.recipe.device_kind == before.recipe.device_kind:
            # The job began on one machine, whose kind is not known: a device of this kind goes on with its recipe.
            of_kind = before.kind("")
        self._manifest = replace(before, kinds=before.kinds | {kind: of_kind})
        with output_errors():
            self._manifest.save(self.place)

    def commit(self, parts: Sequence[StagedPart]) -> list[bool | NotAsWritten]:
        """Commit parts, and count their rows."""
        assert self._ledger is not None
        assert self._limit is not None
        with output_errors():
            outcomes = self._ledger.commit_delivered(parts)
        for record in (staged.record for staged, outcome in zip(parts, outcomes, strict=True) if outcome is True):
            self.meter.commit(record.rows, record.failed)
            self.meter.failed += record.failed
            rows, where = record.rows + record.failed, f"on node {record.node}" if record.failed else ""
            problem = self._limit.count(record.first_span, rows, record.failed, where)
            if problem is not None:
                raise problem
        return outcomes

    def discard(self, attempt: str) -> None:
        """Remove the files that an attempt wrote."""
        self.place.drop_attempt(self._name, attempt)

    def _open(self, manifest: Manifest) -> None:
        """Open the ledger, and tell the user what is committed already."""
        self._manifest = manifest
        with output_errors():
            self._ledger = Ledger(self.place, manifest, self.altered)
            self.place.open_attempts(self._name)
        before = self.note_before(self._ledger, manifest)
        self._rows_before = rows_in(before)
        order = [piece.first_span for piece in self._ledger.pending_pieces()]
        self._limit = FailureLimit(self.task.options.max_failures, before, order)

    def begin(self) -> None:
        """Measure and show the run from now on, where this is its first node."""
        if self._ready is None:
            assert self._manifest is not None
            self._ready = time.perf_counter()
            self.begin_progress(self._manifest, self._rows_before)

    def _pieces(self) -> Iterator[PartPiece]:
        """The pieces to build. They are read only when a node is ready, and the manifest exists by then."""
        assert self._ledger is not None
        pinned = {piece.part for pieces in self._ledger.pinned_pieces().values() for piece in pieces}
        yield from (piece for piece in self._ledger.pending_pieces() if piece.part not in pinned)

    def _rows_of(self, piece: PartPiece) -> int:
        assert self._manifest is not None
        return sum(span.rows for span in self._manifest.spans[piece.first_span : piece.stop_span])

    def _end(self) -> Summary:
        """End a run: raise its error or the interrupt, or return its summary."""
        ledger, manifest = self._ledger, self._manifest
        if ledger is None or manifest is None:
            self.context.stop.check()
            assert self._problem is not None
            raise self._problem
        self.progress.end()
        with output_errors():
            ledger.finish()
        if self._problem is not None:
            if isinstance(self._problem, (DeviceError, WorkersDied)):
                told = f"{self._problem.hint}; " if self._problem.hint else ""
                self._problem.hint = f"{told}go on with: {self.task.next_step}"
            raise self.with_way_on(self._problem, manifest, ledger)
        self.check_stopped(manifest, ledger)
        if missing := ledger.pending_pieces():
            raise OutputError(
                "parts are missing, although every node has ended its work",
                received=f"{len(missing):,} of {len(manifest.parts):,} parts",
                hint=f"this is a fault of penstock; go on with: {self.task.next_step}",
            )
        ready = self._ready if self._ready is not None else time.perf_counter()
        return self.summary(manifest, ledger, self._rows_before, ready)

    def _close(self) -> None:
        self.progress.end()
        if self._ledger is not None:
            self._ledger.close()

    def _check_state(self, state: str) -> None:
        if state == VARIABLES:
            raise ModelError(
                "a model that keeps state runs on one machine",
                received="--engine ray",
                hint="what it answers depends on all rows before: leave --engine ray out",
            )


def _with_beats(summary: Summary, beats: Mapping[str, Beat]) -> Summary:
    """A summary with the last reports of nodes on their plans, loaders and memory."""
    return replace(
        summary,
        plan=_by_node({name: beat.plan for name, beat in beats.items()}),
        loaders=_by_node({name: beat.loaders or "" for name, beat in beats.items()}) or None,
        memory_events=tuple(f"{name}/{event}" for name, beat in beats.items() for event in beat.memory_events),
    )


def _by_node(said: Mapping[str, str]) -> str:
    """The texts of nodes, each text once, with the nodes that sent it."""
    nodes: dict[str, list[str]] = {}
    for name, text in said.items():
        nodes.setdefault(text, []).append(name)
    named = {text: ", ".join(names) if len(names) <= _NAMED else f"{len(names)} nodes" for text, names in nodes.items()}
    return "; ".join(f"{names}: {text}" for text, names in named.items() if text)


def _parcels_of(job: NodeJob) -> dict[str, dict[str, str]]:
    """The files that can be sent to nodes that lack them, by digest."""
    known = {job.model.digest: {os.path.basename(job.model.location): job.model.location}}
    known |= {digest: parts_of_module(name) for name, digest in job.modules.items()}
    return {digest: paths for digest, paths in known.items() if can_be_sent(*paths.values())}
