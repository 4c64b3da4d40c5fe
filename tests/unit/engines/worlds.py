"""A world for `RunState` without a process: it carries out commands by noting them, and checks every one of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from penstock.core.job import Job
from penstock.core.messages import Drain, Emptied, Filled, Loaded, Prepare, Prepared, Returned, Work
from penstock.core.records import Device, Placement, Result, Signature, Span, Timings
from penstock.engines.memory_watch import ReplicaEnd
from penstock.engines.run_events import (
    BatchLoaded,
    CloseReplica,
    Command,
    DeviceJoined,
    Event,
    FreeSlot,
    JobTaken,
    Raise,
    ReadSpan,
    ReplicaDied,
    ReplicaSaid,
    RunBegan,
    Send,
    SpanFinished,
    SpansWithdrawn,
    StartReplica,
    StopRequested,
    WithdrawSpans,
    Yield,
)
from penstock.engines.run_state import RunState
from tests.unit.pool.piping import Blocks

SIGNATURE = Signature((), ())
SAMPLE = Span(0, 0, 10, ())
READY = Prepared((), 0.0)
KILLED = ReplicaEnd(7, "was killed by SIGKILL", -9)


def spans_of(count: int, group_size: int = 0) -> list[Span]:
    return [Span(i, 10 * i, 10, (), f"g{i // group_size}" if group_size else None) for i in range(count)]


class World:
    """Replicas that load, prepare, finish, return and die when they are told to."""

    def __init__(self, devices: int, depth: int = 2, *, has_loader_processes: bool = False, slots: int = 8) -> None:
        self.placement = Placement(
            tuple(Device("gpu", index, uuid=f"GPU-{index}") for index in range(devices)),
            loaders=1,
            lanes=1,
            has_loader_processes=has_loader_processes,
            most_loaders=1,
        )
        self.depth = depth
        self.window = 2 * depth * devices
        self.state = RunState(self.placement)
        self.phase: dict[int, str] = {}
        self.device: dict[int, Device] = {}
        self.held: dict[int, list[Span]] = {}
        self.lost: list[tuple[int, Span]] = []
        self.to_read: deque[Span] = deque()
        self.free_slots = list(range(slots))
        self.slots_of: dict[int, set[int]] = {}
        self.draining: set[int] = set()
        self.finished: set[int] = set()
        self.oldest = 0
        self.holder: dict[int, int] = {}
        self.left: dict[int, None] = {}
        """The results that have left, in their order."""
        self.is_stopped = False
        self.error: Exception | None = None

    def begin(self, spans: Iterable[Span], most: int | None = None, *, is_ordered: bool = True) -> None:
        self.is_ordered = is_ordered
        self.tell(DeviceJoined(self.placement.devices[0]))
        self.load(0)
        self.tell(JobTaken(Job(Blocks([4]), (), (), 4), self.placement, SAMPLE))
        self.prepare(0)
        self.tell(RunBegan(spans, self.depth, most or self.placement.replicas, is_ordered=is_ordered))

    def tell(self, event: Event) -> list[Command]:
        commands = self.state.handle(event)
        for command in commands:
            self.carry_out(command)
        return commands

    def load(self, replica: int) -> None:
        self.phase[replica] = "loaded"
        self.tell(ReplicaSaid(replica, Loaded(SIGNATURE)))

    def prepare(self, replica: int) -> None:
        self.phase[replica] = "ready"
        self.tell(ReplicaSaid(replica, READY))

    def finish(self, replica: int, span: Span) -> None:
        self.held[replica].remove(span)
        del self.holder[span.index]
        self.note_finished(span.index)
        if self.placement.has_loader_processes:
            self.to_read = deque(each for each in self.to_read if each.index != span.index)
        self.tell(SpanFinished(replica, Result(span, {}), Timings(rows=span.rows)))

    def let_go(self, spans: Iterable[Span]) -> None:
        for span in spans:
            del self.holder[span.index]

    def note_finished(self, index: int) -> None:
        assert index not in self.finished, "a span is predicted twice"
        self.finished.add(index)
        while self.oldest in self.finished:
            self.oldest += 1

    def finish_late(self, replica: int, span: Span) -> None:
        """A replica that is lost already delivers a span all the same."""
        assert self.tell(SpanFinished(replica, Result(span, {}), Timings(rows=span.rows))) == []

    def die(self, replica: int, end: ReplicaEnd = KILLED) -> None:
        self.tell(ReplicaDied(replica, end))

    def stop(self) -> None:
        self.is_stopped = True
        self.tell(StopRequested())

    def give_back(self, replica: int, count: int) -> None:
        """Answer a drain: the last spans of a replica were not begun."""
        self.draining.discard(replica)
        kept = len(self.held[replica]) - count
        unbegun = self.held[replica][kept:]
        del self.held[replica][kept:]
        self.let_go(unbegun)
        self.tell(ReplicaSaid(replica, Returned(tuple(span.index for span in unbegun))))

    def read_batch(self, index: int) -> None:
        """A loader sends a batch of a span, whoever it is for by now."""
        slot = self.free_slots.pop()
        (command,) = self.tell(BatchLoaded(Filled(index, 0, 4, 0, slot, (), (), ())))
        if isinstance(command, Send):
            assert index in {span.index for span in self.held[command.replica]}, "a batch goes to the wrong replica"

    def empty(self, replica: int, slot: int) -> None:
        self.slots_of[replica].discard(slot)
        self.tell(ReplicaSaid(replica, Emptied(slot)))

    def carry_out(self, command: Command) -> None:
        match command:
            case StartReplica(replica=replica, device=device):
                assert replica not in self.phase, "a number is used twice"
                assert not self.is_stopped, "a replica is started after a stop"
                self.phase[replica], self.device[replica] = "starting", device
                self.held[replica], self.slots_of[replica] = [], set()
            case CloseReplica(replica=replica):
                self.phase[replica] = "gone"
                self.let_go(self.held[replica])
                self.lost += [(replica, span) for span in self.held.pop(replica)]
                self.draining.discard(replica)
            case Send(replica=replica, message=message):
                assert self.phase[replica] != "gone", "something is sent to a replica that is lost"
                self.receive(replica, message)
            case FreeSlot(slot=slot):
                assert slot not in self.free_slots, "a slot is free twice"
                self.free_slots.append(slot)
                for replica in self.held:
                    self.slots_of[replica].discard(slot)
            case ReadSpan(span=span):
                self.to_read.append(span)
            case WithdrawSpans():
                unbegun = tuple({span.index for span in self.to_read})
                for held in self.held.values():
                    self.let_go(span for span in held if span.index in unbegun)
                    held[:] = [span for span in held if span.index not in unbegun]
                self.to_read.clear()
                self.tell(SpansWithdrawn(unbegun))
            case Yield(result=result):
                index = result.span.index
                assert index in self.finished
                assert index not in self.left, "a result leaves twice"
                if self.is_ordered:
                    assert index == len(self.left), "a result leaves out of its turn"
                self.left[index] = None
            case Raise(error=error):
                self.error = error

    def receive(self, replica: int, message: object) -> None:
        match message:
            case Prepare():
                assert self.phase[replica] in ("loaded", "ready")
            case Work(span=span):
                assert self.phase[replica] == "ready", "a span goes to a replica that is not ready"
                assert not self.is_stopped, "a span is handed out after a stop"
                assert span.index not in self.finished, "a finished span is handed out again"
                assert span.index not in self.holder, "a span is held twice"
                assert span.index < self.oldest + self.window, "a span beyond the window is handed out"
                assert len(self.held[replica]) < self.depth, "a replica holds more than its depth"
                self.held[replica].append(span)
                self.holder[span.index] = replica
            case Filled(slot=int(slot)):
                self.slots_of[replica].add(slot)
            case Drain():
                self.draining.add(replica)

    def in_phase(self, phase: str) -> list[int]:
        return [replica for replica, now in self.phase.items() if now == phase]

    def busy(self) -> list[int]:
        return [replica for replica, held in self.held.items() if held]

    def run_to_the_end(self) -> None:
        """Nothing dies any more, and everything is finished."""
        for _ in range(1000):
            if self.state.is_finished or self.error is not None:
                return
            for replica in self.in_phase("starting"):
                self.load(replica)
            for replica in self.in_phase("loaded"):
                self.prepare(replica)
            assert self.busy() or self.state.is_finished, "the run waits for nothing"
            for replica in self.busy():
                for span in list(self.held.get(replica, ())):
                    self.finish(replica, span)
        raise AssertionError("the run does not end")
