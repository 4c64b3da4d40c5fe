"""All decisions of a run, without a process, a clock or a channel: `RunState.handle(event)` returns commands.

An engine turns what it reads into events and carries out the commands: `engines.local` with processes,
`engines.embedded` with threads. `Scheduler` decides which replica gets which span, `MemoryWatch` what a death says of
the memory, `RowSearch` what it says of the rows, `Stillness` which replica hangs, and `LoaderCount` how many loader
processes are worth their cores.

Invariants:
- every span is yielded exactly once, or the run raises, or it was stopped; what a lost replica still says is ignored;
- a slot of the loader processes is held by one replica at most, and is free again when that is lost;
- after a stop nothing new is handed out, and nothing is started.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from penstock.core import messages
from penstock.core.agreement import Noise
from penstock.core.decoding import Undecoded
from penstock.core.loader_count import LoaderCount
from penstock.core.memory import speaks_of_memory
from penstock.core.records import Device, Placement, Result, RowFailure, Shortage, Signature, Span
from penstock.core.scheduler import Assignment, Scheduler
from penstock.core.state import VARIABLES
from penstock.core.stillness import DEFAULT_TIMEOUTS, Stillness, Timeouts
from penstock.engines import run_events
from penstock.engines.memory_watch import WARM_UP, Death, MemoryWatch, ReplicaEnd, Verdict
from penstock.engines.row_search import RowSearch
from penstock.errors import ModelError

DEATHS_IN_A_ROW = 3
_DOES_NOT_COUNT = (Verdict.LESS_WAS_TRIED, Verdict.FEWER_ARE_SUSPECTED)


@dataclass
class _Replica:
    """The state of a replica that was started and is not lost."""

    device: Device
    is_loaded: bool = False
    to_prepare: int = 0
    """How many orders to prepare it has not answered: only the last answer is about the current job."""
    is_ready: bool = False
    is_hung: bool = False
    decodes_on_host: bool = False
    slots: set[int] = field(default_factory=set)
    read: set[int] = field(default_factory=set)
    """The spans that loader processes have sent all batches of."""


@dataclass
class _Probe:
    """A question to replicas. If one dies before it answers, the run ends: no other replica could go on."""

    message: messages.Probe
    is_for_all: bool
    is_sent: bool = False
    missing: int = 0
    answers: list[messages.ProbeAnswer] = field(default_factory=list)


class RunState:
    """The state of a run, and the next commands for its engine.

    Args:
        placement: The devices.
        oom_kills: How many processes the kernel had killed for lack of memory before this.
        has_address_limit: Whether processes may hold only so much memory.
        timeouts: How long replicas may take.
        is_trial: Whether the first death ends the run, because another way to run the model is only tried.
    """

    def __init__(
        self,
        placement: Placement,
        oom_kills: int = 0,
        *,
        has_address_limit: bool = False,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        is_trial: bool = False,
    ) -> None:
        self._placement = placement
        self._replicas: dict[int, _Replica] = {}
        self._next_number = 0
        self._deaths: Counter[Device] = Counter()
        self._memory = MemoryWatch(self._show, oom_kills, has_address_limit=has_address_limit)
        self._rows = RowSearch()
        self._at_work = Stillness(timeouts.hang_s)
        self._at_start = Stillness(timeouts.start_s, times=0)
        self._at_reading = Stillness(max(timeouts.hang_s, timeouts.read_s))
        self._is_trial = is_trial
        self._taken: run_events.JobTaken | None = None
        self._scheduler: Scheduler[Span] | None = None
        self._is_ordered = True
        self._finished: dict[int, Result] = {}
        self._is_stopping = False
        self._routes: dict[int, int] = {}
        """Which replica a span is loaded for, where loader processes read."""
        self._probe: _Probe | None = None
        self._commands: list[run_events.Command] = []
        self.loader_count: LoaderCount | None = None
        self.signature: Signature | None = None
        self.prepared: messages.Prepared | None = None
        """What the first replica found out about the current job."""
        self.answers: list[messages.ProbeAnswer] | None = None
        """The answers to the last probe, when all are there."""

    @property
    def is_finished(self) -> bool:
        """Every span of the run was finished or given back."""
        return self._scheduler is None or self._scheduler.is_finished

    @property
    def shortages(self) -> Mapping[Shortage, int]:
        """How the devices ran out of memory and went on, and how often."""
        return self._memory.shortages

    @property
    def is_idle(self) -> bool:
        """No replica has anything to do, and no result is on its way."""
        return self._scheduler is None or not self._scheduler.is_holding

    def drop(self, spans: Collection[int]) -> list[int]:
        """Forget spans that are no longer needed; returns those that replicas work on, which are still finished."""
        return self._scheduler.drop(spans) if self._scheduler is not None else []

    def check(self) -> None:
        """Raise the error that ended the spans of the run. Call it when everything before the error is done."""
        if self._scheduler is not None:
            self._scheduler.check()

    def span_of(self, replica: int, index: int) -> Span:
        """A span that a replica works on."""
        assert self._scheduler is not None
        return next(span for span in self._scheduler.spans_of(replica) if span.index == index)

    def handle(self, event: run_events.Event) -> list[run_events.Command]:
        """Take an event; returns what is to be done about it, in order."""
        commands: list[run_events.Command] = []
        self._commands = commands
        match event:
            case run_events.DeviceJoined(device=device):
                self._start(device)
            case run_events.JobTaken():
                self._take(event)
            case run_events.ProbeAsked():
                self._ask(event)
            case run_events.RunBegan():
                self._begin(event)
            case run_events.ReplicaSaid(replica=number, message=message):
                if number in self._replicas:
                    self._hear(number, message)
            case run_events.SpanFinished(replica=number):
                if number in self._replicas:
                    self._finish(event)
            case run_events.ReplicaDied(replica=number, end=end, failed=failed):
                if number in self._replicas:
                    self._fail(number, end, failed)
            case run_events.BatchLoaded(message=message):
                self._route(message)
            case run_events.SpansWithdrawn(spans=spans):
                self._withdraw(spans)
            case run_events.SpansArrived():
                if self._scheduler is not None:
                    self._assign(self._scheduler.more())
            case run_events.StopRequested():
                self._stop()
            case run_events.Tick():
                self._tick(event)
        return commands

    def _do(self, command: run_events.Command) -> None:
        self._commands.append(command)

    def _show(self, line: str) -> None:
        self._do(run_events.Report(line, is_shown=True))

    def _start(self, device: Device) -> None:
        self._replicas[self._next_number] = _Replica(device)
        self._do(run_events.StartReplica(self._next_number, device))
        self._next_number += 1

    def _start_up_to(self, count: int) -> None:
        """Start what is missing of the first `count` replicas: one that died at the end of a run was not replaced."""
        running = Counter(replica.device for replica in self._replicas.values())
        for device in self._placement.devices[:count]:
            if running[device]:
                running[device] -= 1
            else:
                self._start(device)

    # The job.
    def _take(self, event: run_events.JobTaken) -> None:
        self._taken, self._placement = event, event.placement
        self.prepared = self._scheduler = None
        placement = event.placement
        may_grow = placement.has_loader_processes and placement.loaders < placement.most_loaders
        self.loader_count = LoaderCount(placement.loaders, placement.most_loaders) if may_grow else None
        for number, replica in self._replicas.items():
            if replica.is_loaded:
                self._prepare(number, event.asked)

    def _prepare(self, number: int, asked: messages.Asked) -> None:
        assert self._taken is not None
        replica, taken = self._replicas[number], self._taken
        replica.to_prepare += 1
        replica.is_ready = False
        job = taken.job
        if replica.decodes_on_host and job.decoder is not None and not job.decoder.decides_bits:
            job = replace(job, decoder=job.decoder.on_host())
        prepare = messages.Prepare(
            job,
            taken.sample,
            taken.placement.loaders,
            taken.placement.lanes,
            asked=asked,
            ceilings=self._memory.ceilings(replica.device),
            is_alone=self._memory.is_alone(replica.device),
            poisoned=self._poisoned(taken.sample),
            care=self._rows.care(WARM_UP),
        )
        self._do(run_events.Send(number, prepare))

    def _hear(self, number: int, message: messages.ReplicaReport) -> None:
        replica = self._replicas[number]
        match message:
            case messages.Loaded(signature=signature):
                self._load(number, signature)
            case messages.Prepared():
                replica.to_prepare = max(0, replica.to_prepare - 1)
                if not replica.to_prepare:
                    self._ready(number, message)
            case messages.Measured() | messages.Converted() | Noise():
                self._answer(message)
            case messages.Emptied(slot=slot):
                replica.slots.discard(slot)
                self._do(run_events.FreeSlot(slot))
            case messages.RanShort(shortage=shortage, ceilings=ceilings):
                self._memory.note_shortage(replica.device, shortage, ceilings)
                self._limit_others(number, replica.device)
            case messages.Returned(spans=spans):
                assert self._scheduler is not None
                # Loaders may have given back some of them already.
                unbegun = [index for index in self._scheduler.held_by(number) if index in spans]
                for index in unbegun:
                    self._routes.pop(index, None)
                    replica.read.discard(index)
                self._scheduler.give_back(number, unbegun)

    def _load(self, number: int, signature: Signature) -> None:
        replica = self._replicas[number]
        replica.is_loaded = True
        self.signature = self.signature or signature
        if signature.weights != self.signature.weights:
            error = ModelError(
                "the function builds another model each time it is called",
                received=f"weights {signature.weights} on {replica.device}",
                allowed=f"weights {self.signature.weights}, as on the first device",
                hint="load the weights from a file, or call keras.utils.set_random_seed in it",
            )
            self._do(run_events.Raise(error))
        elif self._taken is not None:
            self._prepare(number, self._taken.asked if self.prepared is None else messages.NOTHING_ASKED)

    def _ready(self, number: int, prepared: messages.Prepared) -> None:
        if prepared.undecoded is not None and self._may_decode_on_host():
            replica = self._replicas[number]
            replica.decodes_on_host = True
            self._show(f"replica {number} on {replica.device} decodes photos on the host: {prepared.undecoded}")
            self._prepare(number, messages.NOTHING_ASKED)
            return
        if prepared.undecoded is not None:
            error = Undecoded(
                f"{self._replicas[number].device} does not decode JPEGs beside the model",
                received=prepared.undecoded,
                hint="--decoder cpu",
            )
            self._do(run_events.Raise(error))
            return
        self.prepared = self.prepared or prepared
        self._replicas[number].is_ready = True
        self._rows.finished(WARM_UP)
        self._send_probe()
        if self._scheduler is not None:
            self._assign(self._scheduler.join(number))

    def _may_decode_on_host(self) -> bool:
        """Whether a replica may decode on the host what loaders leave to its device: another replica is ready, and no
        bit depends on it."""
        decoder = self._taken.job.decoder if self._taken is not None else None
        return self.prepared is not None and decoder is not None and not decoder.decides_bits

    # Probing: measure, convert, find the noise.
    def _ask(self, event: run_events.ProbeAsked) -> None:
        self.answers = None
        self._probe = _Probe(event.message, is_for_all=event.replicas is not None)
        self._start_up_to(event.replicas or 0)
        self._send_probe()

    def _send_probe(self) -> None:
        """Ask all of them at once, when the last one is ready."""
        probe = self._probe
        if probe is None or probe.is_sent:
            return
        asked = list(self._replicas) if probe.is_for_all else list(self._replicas)[:1]
        if all(self._replicas[number].is_ready for number in asked):
            probe.is_sent, probe.missing = True, len(asked)
            for number in asked:
                self._do(run_events.Send(number, probe.message))

    def _answer(self, message: messages.ProbeAnswer) -> None:
        assert self._probe is not None
        self._probe.answers.append(message)
        self._probe.missing -= 1
        if not self._probe.missing:
            self.answers, self._probe = self._probe.answers, None

    # The spans.
    def _begin(self, event: run_events.RunBegan) -> None:
        window = 2 * event.depth * self._placement.replicas
        self._scheduler = Scheduler(event.spans, event.depth, window, event.ahead)
        self._is_ordered, self._is_stopping = event.is_ordered, False
        self._finished.clear()
        for number, replica in self._replicas.items():
            if replica.is_ready:
                self._assign(self._scheduler.join(number))
        if self._scheduler.is_finished:
            return
        if self.loader_count is not None and self._placement.devices[0].kind == "gpu":
            # A GPU is faster than any number of loaders: all loaders that were not started before start now.
            self._do(run_events.ResizeLoaders(self.loader_count.take_all()))
        self._start_up_to(event.most_replicas)

    def _assign(self, assignments: list[Assignment[Span]]) -> None:
        for assignment in assignments:
            span = assignment.span
            self._do(
                run_events.Send(
                    assignment.replica, messages.Work(span, self._poisoned(span), self._rows.care(span.index))
                )
            )
            if self._placement.has_loader_processes:
                self._routes[span.index] = assignment.replica
                self._do(run_events.ReadSpan(span))

    def _poisoned(self, span: Span) -> tuple[RowFailure, ...]:
        return (*self._memory.poisoned(span), *self._rows.poisoned(span))

    def _finish(self, event: run_events.SpanFinished) -> None:
        assert self._scheduler is not None
        result, index = event.result, event.result.span.index
        self._deaths[self._replicas[event.replica].device] = 0
        self._replicas[event.replica].read.discard(index)
        self._memory.finished(index)
        self._rows.finished(index)
        self._routes.pop(index, None)
        if self.loader_count is not None:
            self.loader_count.add(event.timings)
        self._assign(self._scheduler.finish(event.replica, index))
        if not self._is_ordered:
            self._scheduler.order.clear()
            self._do(run_events.Yield(result))
            return
        self._finished[index] = result
        order = self._scheduler.order
        while order and order[0] in self._finished:
            self._do(run_events.Yield(self._finished.pop(order.popleft())))

    def _stop(self) -> None:
        """Hand out nothing more; spans that no replica has begun come back."""
        if self._scheduler is None or self._is_stopping:
            return
        self._is_stopping = True
        self._scheduler.stop()
        if self._placement.has_loader_processes:
            self._do(run_events.WithdrawSpans())
        for number in self._replicas:
            self._do(run_events.Send(number, messages.Drain()))

    def _withdraw(self, spans: tuple[int, ...]) -> None:
        assert self._scheduler is not None
        for index in spans:
            replica = self._routes.pop(index, None)
            if replica is not None:
                self._scheduler.give_back(replica, [index])

    # The loader processes.
    def _route(self, message: messages.LoadedData) -> None:
        replica = self._routes.get(message.key[0] if isinstance(message, messages.Chunk) else message.span)
        slot = None if isinstance(message, messages.SpanLoaded) else message.slot
        if replica is not None:
            if slot is not None:
                self._replicas[replica].slots.add(slot)
            if isinstance(message, messages.SpanLoaded):
                self._replicas[replica].read.add(message.span)
            self._do(run_events.Send(replica, message))
        elif slot is not None:
            self._do(run_events.FreeSlot(slot))

    def _tick(self, tick: run_events.Tick) -> None:
        if self.loader_count is not None:
            count = self.loader_count.look(
                tick.now, tick.loader_busy_s, tick.loader_wait_s, has_newcomers=tick.has_new_loaders
            )
            if count is not None:
                self._do(run_events.ResizeLoaders(count))
        starting = {number: sign for number, sign in tick.signs.items() if self._is_starting(number)}
        working = {number: sign for number, sign in tick.signs.items() if self._is_at_work(number)}
        working |= {number: starting.pop(number) for number in tick.stopped & starting.keys()}
        waiting = tick.waiting - tick.stopped if not self._placement.has_loader_processes else frozenset[int]()
        reading = {number: working.pop(number) for number in waiting & working.keys()}
        hung = self._at_start.look(tick.now, starting) | self._at_work.look(tick.now, working)
        hung |= self._at_reading.look(tick.now, reading)
        for number, seconds in hung.items():
            self._replicas[number].is_hung = True
            self._do(run_events.EndHung(number, seconds))

    # Hangs.
    def _is_starting(self, number: int) -> bool:
        """Whether a replica loads the model, compiles it, or answers a probe."""
        replica = self._replicas.get(number)
        if replica is None or replica.is_hung:
            return False
        return not replica.is_loaded or bool(replica.to_prepare) or (self._probe is not None and self._probe.is_sent)

    def _is_at_work(self, number: int) -> bool:
        """Whether a replica has rows to predict, which it has read or can read itself."""
        replica = self._replicas.get(number)
        if replica is None or replica.is_hung or not replica.is_ready or self._scheduler is None:
            return False
        held = self._scheduler.held_by(number)
        return bool(held) and (
            not self._placement.has_loader_processes or bool(replica.slots) or not replica.read.isdisjoint(held)
        )

    # Deaths.
    def _fail(self, number: int, end: ReplicaEnd, failed: messages.Failed | None) -> None:
        if failed is None or (failed.error is None and speaks_of_memory(failed.last_line)):
            self._lose(number, end)
            return
        # The engine may catch the error and take another job, so it counts as the answer to the order to prepare.
        replica = self._replicas[number]
        replica.to_prepare = max(0, replica.to_prepare - 1)
        self._do(run_events.Raise(failed.as_error(f"a replica on {replica.device}")))

    def _lose(self, number: int, end: ReplicaEnd) -> None:
        """Hand the spans of a replica that died to the others, and have another one take its place."""
        replica = self._replicas.pop(number)
        device, batch_size = replica.device, self._taken.job.batch_size if self._taken is not None else 1
        spans = self._scheduler.spans_of(number) if self._scheduler is not None else []
        death = Death(device, end, spans, batch_size, replica.is_ready)
        self._do(run_events.CloseReplica(number))
        verdict = self._judge(death)
        self._deaths[device] = 0 if verdict in _DOES_NOT_COUNT else self._deaths[device] + 1
        if self._is_final(death, verdict) or self._deaths[device] >= DEATHS_IN_A_ROW:
            self._do(run_events.Raise(death.as_error(self._doing())))
            return
        self._routes = {span: held_by for span, held_by in self._routes.items() if held_by != number}
        for slot in sorted(replica.slots):
            self._do(run_events.FreeSlot(slot))
        is_shown = end.hung_s is not None
        if self._scheduler is None:
            when = "at the first batch" if self.signature is not None else "while loading the model"
            self._do(
                run_events.Report(f"replica {number} on {device} {end.how} {when}; another one is started", is_shown)
            )
        else:
            held = [span.index for span in spans]
            self._do(
                run_events.Report(f"replica {number} on {device} {end.how}; spans {held} are given out again", is_shown)
            )
            self._assign(self._scheduler.lose(number))
        if verdict is Verdict.LESS_WAS_TRIED:
            self._limit_others(number, device)
        is_done = self._scheduler is not None and self._scheduler.is_finished
        if not is_done and not self._is_stopping:
            self._start(device)

    def _judge(self, death: Death) -> Verdict:
        verdict = self._memory.judge(death) if death.end.hung_s is None else Verdict.ORDINARY
        return self._rows.judge(death) if verdict is Verdict.ORDINARY else verdict

    def _is_final(self, death: Death, verdict: Verdict) -> bool:
        """Whether no other replica could go on where one died."""
        if self._probe is not None or verdict is Verdict.HOPELESS:
            return True
        if self._scheduler is None:
            is_endless = death.end.hung_s is not None and death.end.notice is None and not death.end.was_stopped
            return verdict is Verdict.ORDINARY and (is_endless or self._is_trial)
        # The replica had the state of the model, on which all later answers depend.
        return self._taken is not None and self._taken.job.state == VARIABLES

    def _doing(self) -> str:
        if self.signature is None:
            return "loading the model"
        if self._probe is not None:
            return "it was tried"
        return "predicting" if self._scheduler is not None else "compiling the model and running its first batch"

    def _limit_others(self, number: int, device: Device) -> None:
        """What one replica found out about a memory holds for all that share it."""
        for other, replica in self._replicas.items():
            if other != number and self._memory.shares_memory(device, replica.device):
                self._do(run_events.Send(other, messages.Limit(self._memory.ceilings(replica.device))))
