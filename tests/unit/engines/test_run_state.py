"""All decisions of a run, under any order of events, without a process."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.core.decoding import Undecoded
from penstock.core.job import Job
from penstock.core.messages import (
    Care,
    Convert,
    Converted,
    Drain,
    Failed,
    Filled,
    Limit,
    Loaded,
    Measure,
    Measured,
    Prepare,
    RanShort,
    Returned,
    SpanLoaded,
    Work,
)
from penstock.core.records import Device, Placement, Shortage, Signature, Span
from penstock.core.state import VARIABLES
from penstock.core.stillness import Timeouts
from penstock.engines.memory_watch import ReplicaEnd
from penstock.engines.run_events import (
    BatchLoaded,
    Command,
    DeviceJoined,
    EndHung,
    FreeSlot,
    JobTaken,
    ProbeAsked,
    Raise,
    ReplicaDied,
    ReplicaSaid,
    Report,
    RunBegan,
    Send,
    StartReplica,
    StopRequested,
    Tick,
)
from penstock.engines.run_state import DEATHS_IN_A_ROW, RunState
from penstock.errors import InputError, ModelError, PenstockError, WorkersDied
from penstock.pool.processes.board import Notice
from penstock.sources.images.engine import EngineDecoder
from penstock.sources.images.resizing import Rendition
from tests.unit.engines.worlds import KILLED, READY, SAMPLE, SIGNATURE, World, spans_of
from tests.unit.pool.piping import Blocks

CPUS = Placement((Device("cpu", 0), Device("cpu", 1)), 1, 1)
NO_MEMORY = ReplicaEnd(7, "was killed by SIGABRT", -6, "std::bad_alloc", Notice(0.0, 2, 8, 16))


class RunMachine(RuleBasedStateMachine):
    """Starts, results, deaths, late results, batches of loaders, a drain, in any order."""

    @initialize(
        spans=st.integers(0, 30),
        group_size=st.integers(0, 4),
        devices=st.integers(1, 4),
        depth=st.integers(1, 3),
        has_loader_processes=st.booleans(),
        is_ordered=st.booleans(),
    )
    def begin(
        self, spans: int, group_size: int, devices: int, depth: int, has_loader_processes: bool, is_ordered: bool
    ) -> None:
        self.count = spans
        self.world = World(devices, depth, has_loader_processes=has_loader_processes)
        self.world.begin(iter(spans_of(spans, group_size)), is_ordered=is_ordered)

    def goes_on(self) -> bool:
        return self.world.error is None and not self.world.state.is_finished

    @precondition(lambda self: self.goes_on() and self.world.in_phase("starting"))
    @rule(data=st.data())
    def load(self, data: st.DataObject) -> None:
        self.world.load(data.draw(st.sampled_from(self.world.in_phase("starting"))))

    @precondition(lambda self: self.goes_on() and self.world.in_phase("loaded"))
    @rule(data=st.data())
    def prepare(self, data: st.DataObject) -> None:
        self.world.prepare(data.draw(st.sampled_from(self.world.in_phase("loaded"))))

    @precondition(lambda self: self.goes_on() and self.world.busy())
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        replica = data.draw(st.sampled_from(self.world.busy()))
        self.world.finish(replica, data.draw(st.sampled_from(self.world.held[replica])))

    @precondition(lambda self: self.goes_on() and self.world.held)
    @rule(data=st.data(), words=st.sampled_from(["", "std::bad_alloc"]), rows=st.integers(0, 4))
    def die(self, data: st.DataObject, words: str, rows: int) -> None:
        replica = data.draw(st.sampled_from(sorted(self.world.held)))
        held = self.world.held[replica]
        row = data.draw(st.sampled_from(held)).start if held else 0
        notice = Notice(0.0, row, rows, 16) if rows else None
        code = data.draw(st.sampled_from([-9, -6, 1]))
        self.world.die(replica, ReplicaEnd(7, "died", code, words, notice, data.draw(st.integers(0, 2))))

    @precondition(lambda self: self.goes_on() and self.world.lost)
    @rule(data=st.data())
    def say_something_late(self, data: st.DataObject) -> None:
        replica, span = data.draw(st.sampled_from(self.world.lost))
        self.world.finish_late(replica, span)
        assert self.world.tell(ReplicaSaid(replica, READY)) == []
        assert self.world.tell(ReplicaDied(replica, KILLED)) == []

    @precondition(lambda self: self.goes_on() and self.world.free_slots)
    @rule(data=st.data())
    def read_batch(self, data: st.DataObject) -> None:
        """Of any span: what a loader sends may be for a replica that is gone, or for a span that is finished."""
        expected = sorted(self.world.holder)
        is_expected = expected and data.draw(st.sampled_from([True, False]))
        indices = expected if is_expected else list(range(max(1, self.count)))
        self.world.read_batch(data.draw(st.sampled_from(indices)))

    @precondition(lambda self: self.goes_on() and any(self.world.slots_of[each] for each in self.world.held))
    @rule(data=st.data())
    def empty(self, data: st.DataObject) -> None:
        replica = data.draw(st.sampled_from([each for each in self.world.held if self.world.slots_of[each]]))
        self.world.empty(replica, data.draw(st.sampled_from(sorted(self.world.slots_of[replica]))))

    @precondition(lambda self: not self.goes_on() or self.world.finished)
    @rule()
    def stop(self) -> None:
        if self.goes_on():
            self.world.stop()

    @precondition(lambda self: self.goes_on() and self.world.draining)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        replica = data.draw(st.sampled_from(sorted(self.world.draining)))
        self.world.give_back(replica, data.draw(st.integers(0, len(self.world.held[replica]))))

    @invariant()
    def every_slot_is_free_or_held_by_one_replica(self) -> None:
        if hasattr(self, "world") and self.world.error is None:
            held = [slot for replica in self.world.held for slot in self.world.slots_of[replica]]
            assert sorted([*self.world.free_slots, *held]) == list(range(8))

    @invariant()
    def error_is_told_apart_from_a_bug(self) -> None:
        if hasattr(self, "world"):
            assert self.world.error is None or isinstance(self.world.error, WorkersDied)

    def teardown(self) -> None:
        """Whatever happened: every span leaves once, or the run raised, or it was stopped."""
        if not hasattr(self, "world"):
            return
        self.world.run_to_the_end()
        if self.world.error is None and not self.world.is_stopped:
            assert sorted(self.world.left) == list(range(self.count))


TestAnyOrderOfEvents = RunMachine.TestCase
TestAnyOrderOfEvents.settings = settings(max_examples=120, stateful_step_count=40)


@pytest.mark.parametrize(("seed", "group_size"), [(1, 0), (2, 5)])
def test_thousand_nodes_of_unequal_speed_that_die_now_and_then_lose_no_span(seed: int, group_size: int) -> None:
    chance = random.Random(seed)
    nodes, count = 1000, 10_000
    world = World(nodes, depth=2)
    world.begin(iter(spans_of(count, group_size)))
    agenda: list[tuple[float, int]] = []
    pace: dict[int, float] = {}
    deaths = 0
    now = 0.0
    while not world.state.is_finished:
        assert world.error is None
        for replica in range(len(pace), len(world.phase)):
            pace[replica] = chance.choice([0.5, 1.0, 1.0, 4.0])
            heapq.heappush(agenda, (now + chance.random(), replica))
        now, replica = heapq.heappop(agenda)
        match world.phase[replica]:
            case "starting":
                world.load(replica)
            case "loaded":
                world.prepare(replica)
            case "ready" if chance.random() < 0.01:
                deaths += 1
                world.die(replica)
                continue
            case "ready" if world.held[replica]:
                world.finish(replica, world.held[replica][0])
        heapq.heappush(agenda, (now + chance.uniform(0.5, 1.5) * pace[replica], replica))
    assert list(world.left) == list(range(count))
    assert deaths > 50


def begun(world: World, spans: int = 20) -> World:
    """A run in which all replicas are ready."""
    world.begin(spans_of(spans))
    for replica in world.in_phase("starting"):
        world.load(replica)
        world.prepare(replica)
    return world


def errors(commands: list[Command]) -> list[Exception]:
    return [command.error for command in commands if isinstance(command, Raise)]


def sent(commands: list[Command], kind: type) -> list[int]:
    return [each.replica for each in commands if isinstance(each, Send) and isinstance(each.message, kind)]


def started(commands: list[Command]) -> list[Device]:
    return [command.device for command in commands if isinstance(command, StartReplica)]


def taken(placement: Placement = CPUS, state: str = "none") -> RunState:
    """One replica that has loaded the model and taken a job."""
    run = RunState(placement)
    run.handle(DeviceJoined(placement.devices[0]))
    run.handle(ReplicaSaid(0, Loaded(SIGNATURE)))
    run.handle(JobTaken(Job(Blocks([4]), (), (), 8, state=state), placement, SAMPLE))
    return run


def test_only_as_many_replicas_start_as_there_are_spans() -> None:
    world = World(4)
    world.begin(spans_of(2), most=2)
    assert len(world.phase) == 2


def test_nothing_to_predict_starts_nothing_and_is_finished() -> None:
    world = World(4)
    world.begin([])
    assert len(world.phase) == 1
    assert world.state.is_finished


def test_error_among_the_spans_waits_for_everything_before_it() -> None:
    def broken() -> Iterator[Span]:
        yield from spans_of(5)
        raise InputError("the stream is broken")

    world = World(2)
    world.begin(broken())
    world.run_to_the_end()
    assert list(world.left) == list(range(5))
    with pytest.raises(InputError, match="the stream is broken"):
        world.state.check()


def test_answer_to_an_older_job_is_not_taken_for_that_of_the_newer() -> None:
    run = taken()
    run.handle(JobTaken(Job(Blocks([4]), (), (), 16), CPUS, SAMPLE))
    run.handle(ReplicaSaid(0, READY))
    assert run.prepared is None
    run.handle(ReplicaSaid(0, READY))
    assert run.prepared is READY


def test_another_job_may_be_taken_after_one_that_the_model_rejects() -> None:
    run = taken()
    rejected = ModelError("the model rejects every one of the first rows")
    assert errors(run.handle(ReplicaDied(0, KILLED, Failed(rejected, "ModelError", "…")))) == [rejected]
    run.handle(JobTaken(Job(Blocks([4]), (), (), 16), CPUS, SAMPLE))
    run.handle(ReplicaSaid(0, READY))
    assert run.prepared is READY


def test_model_that_is_another_one_on_every_device_is_refused() -> None:
    run = taken()
    run.handle(DeviceJoined(CPUS.devices[1]))
    (error,) = errors(run.handle(ReplicaSaid(1, Loaded(Signature((), (), weights="other")))))
    assert isinstance(error, ModelError)


def test_probe_waits_for_all_replicas_and_ends_with_the_last_answer() -> None:
    run = taken()
    run.handle(ReplicaSaid(0, READY))
    measure = Measure(8, 1.0, 1)
    assert started(run.handle(ProbeAsked(measure, 2))) == [CPUS.devices[1]]
    assert sent(run.handle(ReplicaSaid(1, Loaded(SIGNATURE))), Prepare) == [1]
    assert sent(run.handle(ReplicaSaid(1, READY)), Measure) == [0, 1]
    run.handle(ReplicaSaid(1, Measured(8)))
    assert run.answers is None
    run.handle(ReplicaSaid(0, Measured(8)))
    assert run.answers == [Measured(8), Measured(8)]


def test_first_replica_alone_converts() -> None:
    run = taken()
    run.handle(ReplicaSaid(0, READY))
    assert run.handle(ProbeAsked(Convert("folder"))) == [Send(0, Convert("folder"))]
    run.handle(ReplicaSaid(0, Converted("no")))
    assert run.answers == [Converted("no")]


def test_death_over_a_probe_gives_everything_up() -> None:
    run = taken()
    run.handle(ReplicaSaid(0, READY))
    run.handle(ProbeAsked(Measure(8, 1.0, 1), 1))
    (error,) = errors(run.handle(ReplicaDied(0, NO_MEMORY)))
    assert "died while it was tried" in str(error)


@pytest.mark.parametrize("is_loaded", [True, False])
def test_replica_that_dies_before_its_first_span_is_replaced_and_the_third_ends_the_run(is_loaded: bool) -> None:
    run = taken() if is_loaded else RunState(CPUS)
    if not is_loaded:
        run.handle(DeviceJoined(CPUS.devices[0]))
    for replica in range(DEATHS_IN_A_ROW - 1):
        commands = run.handle(ReplicaDied(replica, KILLED))
        assert errors(commands) == []
        assert started(commands) == [CPUS.devices[0]]
    (error,) = errors(run.handle(ReplicaDied(DEATHS_IN_A_ROW - 1, KILLED)))
    assert ("first batch" if is_loaded else "loading the model") in str(error)


def test_way_that_is_only_tried_is_given_up_with_its_first_death() -> None:
    run = RunState(CPUS, is_trial=True)
    run.handle(DeviceJoined(CPUS.devices[0]))
    assert errors(run.handle(ReplicaDied(0, KILLED)))


def ticks(run: RunState, replica: int, start: float, stop: float, sign: object = 0) -> list[Command]:
    """Time passes, and the replica shows no progress; returns the commands of the first look that has any."""
    now = start
    while now <= stop:
        if commands := run.handle(Tick(now, signs={replica: sign})):
            return commands
        now += 0.5
    return []


def working() -> RunState:
    run = taken()
    run.handle(ReplicaSaid(0, READY))
    run.handle(RunBegan(spans_of(4), 2, 1))
    return run


def hung(first_row: int, start: int, stop: int) -> ReplicaEnd:
    return ReplicaEnd(7, "hung for 61 s", -9, "", Notice(0.0, first_row + start, 8, 16, 1, 0, start, stop), hung_s=61.0)


def test_replica_that_hangs_is_ended_named_and_replaced_and_its_span_run_with_care() -> None:
    run = working()
    assert ticks(run, 0, 0.0, 60.0) == []
    assert ticks(run, 0, 60.5, 62.0) == [EndHung(0, 60.5)]
    assert ticks(run, 0, 62.0, 300.0) == [], "once is enough"
    commands = run.handle(ReplicaDied(0, hung(0, 0, 8)))
    assert Report("replica 0 on cpu:0 hung for 61 s; spans [0, 1] are given out again", is_shown=True) in commands
    assert started(commands) == [CPUS.devices[0]]
    run.handle(ReplicaSaid(1, Loaded(SIGNATURE)))
    works = [each.message for each in run.handle(ReplicaSaid(1, READY)) if isinstance(each, Send)]
    assert [each.care for each in works if isinstance(each, Work)] == [Care({0: (0, 8)}), Care({})]


def test_row_at_which_replicas_hang_again_and_again_is_left_out() -> None:
    run = working()
    for replica, places in enumerate([(0, 8), (3, 4)]):
        run.handle(ReplicaDied(replica, hung(0, *places)))
        run.handle(ReplicaSaid(replica + 1, Loaded(SIGNATURE)))
        commands = run.handle(ReplicaSaid(replica + 1, READY))
    first = next(each.message for each in commands if isinstance(each, Send))
    assert isinstance(first, Work)
    assert [(failure.row, failure.error) for failure in first.poisoned] == [(3, "TimeoutError")]


def test_replica_that_waits_for_loaders_does_not_hang() -> None:
    placement = Placement(CPUS.devices[:1], 1, 1, has_loader_processes=True, most_loaders=1)
    run = taken(placement)
    run.handle(ReplicaSaid(0, READY))
    run.handle(RunBegan(spans_of(4), 1, 1))
    assert ticks(run, 0, 0.0, 500.0) == []
    run.handle(BatchLoaded(Filled(0, 0, 8, 0, 5, (), (), ())))
    assert ticks(run, 0, 500.0, 600.0) != []


def test_replica_that_reads_by_itself_may_wait_longer_for_its_input() -> None:
    run = working()
    for second in range(601):
        assert run.handle(Tick(float(second), signs={0: 0}, waiting=frozenset({0}))) == []
    assert run.handle(Tick(601.0, signs={0: 0}, waiting=frozenset({0}))) == [EndHung(0, 601.0)]


def test_drain_waits_for_a_replica_that_hangs_no_longer_than_for_any_other() -> None:
    run = working()
    run.handle(StopRequested())
    assert any(isinstance(command, EndHung) for command in ticks(run, 0, 0.0, 70.0))
    commands = run.handle(ReplicaDied(0, hung(0, 0, 8)))
    assert errors(commands) == []
    assert started(commands) == []
    assert run.is_finished


def test_loading_has_a_limit_of_its_own_and_ends_with_its_reason() -> None:
    run = RunState(CPUS, timeouts=Timeouts(start_s=1800.0))
    run.handle(DeviceJoined(CPUS.devices[0]))
    assert ticks(run, 0, 0.0, 1800.0) == []
    assert ticks(run, 0, 1800.5, 1802.0) == [EndHung(0, 1800.5)]
    (error,) = errors(run.handle(ReplicaDied(0, ReplicaEnd(7, "hung for 1800 s", -9, hung_s=1800.0))))
    assert "hung while loading the model" in str(error)
    assert "--start-timeout" in str(error)


def test_replica_that_is_stopped_while_it_loads_is_replaced_like_any_other() -> None:
    run = RunState(CPUS)
    run.handle(DeviceJoined(CPUS.devices[0]))
    for second in range(61):
        assert run.handle(Tick(float(second), signs={0: 0}, stopped=frozenset({0}))) == []
    assert run.handle(Tick(61.0, signs={0: 0}, stopped=frozenset({0}))) == [EndHung(0, 61.0)]
    commands = run.handle(ReplicaDied(0, ReplicaEnd(7, "was stopped for 61 s", -9, hung_s=61.0, was_stopped=True)))
    assert errors(commands) == []
    assert started(commands) == [CPUS.devices[0]]


def test_crash_speaks_of_what_happened_and_not_of_the_batch_size() -> None:
    world = begun(World(1))
    for _ in range(DEATHS_IN_A_ROW):
        for replica in list(world.held):
            world.die(replica, ReplicaEnd(7, "was killed by SIGSEGV", -11))
    assert "was killed by SIGSEGV" in str(world.error)
    assert "batch-size" not in str(world.error)


def test_replica_that_follows_one_without_memory_is_prepared_with_half_and_alone() -> None:
    run = taken()
    run.handle(ReplicaDied(0, NO_MEMORY))
    (command,) = run.handle(ReplicaSaid(1, Loaded(SIGNATURE)))
    assert isinstance(command, Send)
    assert isinstance(command.message, Prepare)
    assert (command.message.ceilings, command.message.is_alone) == ({16: 4}, True)


@pytest.mark.parametrize("interpolation", ["pillow-bilinear", "keras"])
def test_replica_whose_device_does_not_decode_goes_on_without_it_if_no_bit_depends_on_it(interpolation: str) -> None:
    run = RunState(CPUS)
    decoder = EngineDecoder(Rendition("stretch", interpolation, engine_share=0.5))
    for replica, device in enumerate(CPUS.devices[:2]):
        run.handle(DeviceJoined(device))
        run.handle(ReplicaSaid(replica, Loaded(SIGNATURE)))
    run.handle(JobTaken(Job(Blocks([4]), (), (), 8, decoder=decoder), CPUS, SAMPLE))
    run.handle(ReplicaSaid(0, READY))
    *said, command = run.handle(ReplicaSaid(1, replace(READY, undecoded="there is no engine")))
    if interpolation == "keras":
        assert isinstance(command, Raise)
        assert isinstance(command.error, Undecoded)
        return
    assert isinstance(command, Send)
    assert isinstance(command.message, Prepare)
    assert command.message.job.decoder == decoder.on_host()
    assert [report.line for report in said if isinstance(report, Report)] == [
        "replica 1 on cpu:1 decodes photos on the host: there is no engine"
    ]


def test_model_that_keeps_state_dies_with_its_replica() -> None:
    run = taken(state=VARIABLES)
    run.handle(ReplicaSaid(0, READY))
    run.handle(RunBegan(spans_of(4), 1, 1))
    assert errors(run.handle(ReplicaDied(0, NO_MEMORY)))


def test_deaths_in_a_row_on_one_device_give_everything_up_and_a_finished_span_ends_the_row() -> None:
    world = begun(World(1))
    for _ in range(2):
        for _ in range(DEATHS_IN_A_ROW - 1):
            (replica,) = world.held
            world.die(replica)
            (replica,) = world.held
            world.load(replica)
            world.prepare(replica)
        assert world.error is None
        world.finish(replica, world.held[replica][0])
    for _ in range(DEATHS_IN_A_ROW):
        for replica in list(world.held):
            world.die(replica)
    assert isinstance(world.error, WorkersDied)


def test_spans_of_a_lost_replica_go_to_the_others_and_a_new_one_takes_its_place() -> None:
    world = begun(World(2, depth=1), spans=3)
    before = list(world.held[1])
    commands = world.tell(ReplicaDied(1, KILLED))
    assert started(commands) == [world.device[1]]
    world.finish(0, world.held[0][0])
    assert world.held[0] == before


def test_replica_that_is_lost_while_the_run_ends_is_not_replaced() -> None:
    world = begun(World(1), spans=1)
    world.finish(0, world.held[0][0])
    assert started(world.tell(ReplicaDied(0, KILLED))) == []


def test_failure_with_a_known_cause_is_raised_as_it_is_and_any_other_as_a_bug() -> None:
    world = begun(World(1))
    known = ModelError("no such output")
    assert errors(world.state.handle(ReplicaDied(0, KILLED, Failed(known, "ModelError", "…")))) == [known]
    (bug,) = errors(world.state.handle(ReplicaDied(0, KILLED, Failed(None, "KeyError", "trace\nKeyError: 'x'"))))
    assert type(bug) is PenstockError
    assert "KeyError: 'x'" in str(bug)


def test_failure_that_speaks_of_memory_is_a_death() -> None:
    world = begun(World(1))
    failed = Failed(None, "RuntimeError", "std::bad_alloc")
    commands = world.tell(ReplicaDied(0, ReplicaEnd(7, "gave up", None, "std::bad_alloc"), failed))
    assert errors(commands) == []
    assert started(commands) == [world.device[0]]


def test_what_one_found_out_about_a_memory_holds_for_all_that_share_it() -> None:
    run = taken()
    run.handle(DeviceJoined(CPUS.devices[1]))
    run.handle(DeviceJoined(Device("gpu", 0, uuid="GPU-1")))
    shortage = Shortage("cpu:0", 8, 4)
    commands = run.handle(ReplicaSaid(0, RanShort(shortage, {16: 4})))
    assert commands == [Report(str(shortage), is_shown=True), Send(1, Limit({16: 4}))]
    assert run.shortages == {shortage: 1}


def test_row_that_killed_two_replicas_alone_is_left_out_of_its_span() -> None:
    world = begun(World(1, depth=1), spans=2)
    for rows in (2, 1, 1):
        (replica,) = world.held
        end = ReplicaEnd(7, "was killed", -6, "std::bad_alloc", Notice(0.0, 3, rows, 16))
        world.die(replica, end)
        (replica,) = world.held
        world.load(replica)
        (command,) = world.state.handle(ReplicaSaid(replica, READY))
    assert isinstance(command, Send)
    assert isinstance(command.message, Work)
    assert [failure.row for failure in command.message.poisoned] == [3]


def test_drain_asks_every_replica_once() -> None:
    world = begun(World(3))
    assert sent(world.tell(StopRequested()), Drain) == [0, 1, 2]
    assert world.tell(StopRequested()) == []


def test_spans_that_a_replica_has_not_begun_come_back_and_their_batches_are_dropped() -> None:
    world = begun(World(1, has_loader_processes=True))
    first, second = world.held[0][:2]
    for span in (first, second):  # loaders are at them
        world.to_read.remove(span)
    world.stop()
    world.give_back(0, 1)
    assert world.state.handle(BatchLoaded(Filled(second.index, 0, 4, 0, 5, (), (), ()))) == [FreeSlot(5)]
    assert not world.state.is_finished
    world.finish(0, first)
    assert world.state.is_finished


def test_spans_that_come_back_twice_count_once() -> None:
    world = begun(World(1, has_loader_processes=True))
    held = tuple(span.index for span in world.held[0])
    world.stop()
    assert world.tell(ReplicaSaid(0, Returned(held))) == []
    assert world.state.is_finished


def test_spans_that_no_loader_has_begun_come_back_at_a_drain() -> None:
    world = begun(World(2, has_loader_processes=True))
    world.stop()
    assert world.busy() == []
    assert world.state.is_finished


def test_batches_go_to_the_replica_of_their_span_and_its_slots_are_free_when_it_is_lost() -> None:
    world = begun(World(2, depth=1, has_loader_processes=True))
    (first,) = world.held[0]
    commands = world.state.handle(BatchLoaded(filled := Filled(first.index, 0, 4, 0, 5, (), (), ())))
    assert commands == [Send(0, filled)]
    loaded = SpanLoaded(first.index, 1, 0.1, 0.0)
    assert world.state.handle(BatchLoaded(loaded)) == [Send(0, loaded)]
    assert FreeSlot(5) in world.state.handle(ReplicaDied(0, KILLED))


def test_batch_without_a_slot_that_nobody_expects_is_dropped() -> None:
    world = begun(World(1, has_loader_processes=True), spans=1)
    assert world.state.handle(BatchLoaded(Filled(9, 0, 4, 0, None, (), (), ()))) == []
    assert world.state.handle(BatchLoaded(SpanLoaded(9, 1, 0.1, 0.0))) == []


def test_replica_that_died_at_the_end_of_a_run_is_replaced_on_its_own_device() -> None:
    world = World(2)
    world.begin(iter(spans_of(4)))
    world.load(1)
    world.prepare(1)
    while not world.state.is_finished:
        replica = world.busy()[0]
        world.finish(replica, world.held[replica][0])
    assert not [command for command in world.state.handle(ReplicaDied(0, KILLED)) if isinstance(command, StartReplica)]
    began = world.state.handle(RunBegan(iter(spans_of(4)), 2, 2, None, True))
    assert [command.device for command in began if isinstance(command, StartReplica)] == [world.placement.devices[0]]
