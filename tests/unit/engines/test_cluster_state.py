"""Decisions of a run on a cluster: no piece is lost or committed twice under any order of events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.core.node_kinds import Misfit
from penstock.core.stillness import Timeouts
from penstock.engines import cluster_events as ev
from penstock.engines.cluster_state import ClusterState
from penstock.errors import DeviceError, InputError, ModelError, OutputError, PenstockError, WorkersDied
from penstock.storage.journal import PartRecord
from penstock.storage.part_builder import PartPiece, StagedPart

ROWS_A_SPAN = 10
SPANS_A_PART = 4


def pieces(count: int, first: int = 0) -> list[PartPiece]:
    return [PartPiece(n, 0, SPANS_A_PART * n, SPANS_A_PART * (n + 1)) for n in range(first, first + count)]


def rows_of(piece: PartPiece) -> int:
    assert piece.stop_span is not None
    return ROWS_A_SPAN * (piece.stop_span - piece.first_span)


def staged(piece: PartPiece, stop_span: int | None = None) -> StagedPart:
    stop_span = piece.stop_span if stop_span is None else stop_span
    assert stop_span is not None
    return StagedPart(PartRecord(piece.part, piece.cut, piece.first_span, stop_span, 0, 0, {}, 0), {})


@dataclass
class World:
    """A driver and nodes that do as they are told: the commands are carried out on plain records.

    `journal` is what `Ledger.commit` would take: the next span of each part.
    """

    state: ClusterState
    kinds: dict[str, str] = field(default_factory=dict)
    nodes: dict[int, str] = field(default_factory=dict)
    ready: set[int] = field(default_factory=set)
    building: dict[str, tuple[int, PartPiece]] = field(default_factory=dict)
    ended: dict[str, tuple[int, PartPiece]] = field(default_factory=dict)
    """Attempts that were revoked: their nodes may still deliver them."""
    journal: dict[int, int] = field(default_factory=dict)
    committed: list[int] = field(default_factory=list)
    settles: list[str] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    error: PenstockError | None = None
    is_stopped: bool = False
    now: float = 0.0

    def send(self, event: ev.Event) -> None:
        for command in self.state.handle(event):
            self.carry_out(command)

    def carry_out(self, command: ev.Command) -> None:
        match command:
            case ev.StartNode(node=node, name=name):
                assert not self.is_stopped, "a node is started after the stop"
                assert name not in self.nodes.values(), "a machine has two nodes"
                self.nodes[node] = name
            case ev.Settle(node=node, kind=kind):
                self.settles.append(kind)
                self.send(ev.KindSettled(node, kind))
            case ev.Open(node=node, kind=kind):
                assert kind in self.settles, "a node is opened before its kind is settled"
                self.ready.add(node)
                self.send(ev.NodeReady(node))
            case ev.Build(node=node, attempt=attempt, piece=piece):
                assert not self.is_stopped, "a piece is handed out after the stop"
                assert node in self.ready, "a piece is handed to a node that is not there"
                assert attempt not in self.building | self.ended, "two attempts have one name"
                self.building[attempt] = (node, piece)
            case ev.Withdraw(attempt=attempt) | ev.Discard(attempt=attempt):
                if attempt in self.building:
                    self.ended[attempt] = self.building.pop(attempt)
            case ev.EndNode(node=node):
                del self.nodes[node]
                self.ready.discard(node)
            case ev.Commit(attempt=attempt, staged=part):
                self.commit(attempt, part)
            case ev.Report(line=line, is_shown=is_shown):
                self.reports.append(line)
                self.shown += [line] if is_shown else []
            case ev.Raise(error=error):
                self.error = error

    def commit(self, attempt: str, part: StagedPart) -> None:
        record = part.record
        is_new = self.journal.get(record.part, SPANS_A_PART * record.part) == record.first_span
        if is_new:
            self.journal[record.part] = record.stop_span
            self.committed += range(record.first_span, record.stop_span)
        self.ended[attempt] = self.building.pop(attempt)
        self.send(ev.PieceCommitted(attempt, is_new))

    def join(self, *names: str) -> None:
        for name in names:
            self.send(ev.NodeJoined(name))
        for node, name in list(self.nodes.items()):
            if node not in self.ready:
                self.send(ev.NodeUp(node, self.kinds.get(name, "cpu")))

    def node(self, name: str) -> int:
        return next(node for node, its_name in self.nodes.items() if its_name == name)

    def held(self, name: str) -> list[str]:
        return [attempt for attempt, (node, _) in self.building.items() if self.nodes.get(node) == name]

    def parts(self, name: str) -> list[int]:
        return [self.building[attempt][1].part for attempt in self.held(name)]

    def stage(self, attempt: str, stop_span: int | None = None) -> None:
        node, piece = (self.building | self.ended)[attempt]
        self.send(ev.PieceStaged(node, attempt, staged(piece, stop_span)))

    def beat(self, name: str, rows: Iterable[int] = ()) -> None:
        self.send(ev.NodeBeat(self.node(name), dict(zip(self.held(name), rows, strict=False))))

    def tick(self, seconds: float, beating: Sequence[str] = ()) -> None:
        """Time in steps of a second, in which these nodes answer."""
        for _ in range(round(seconds)):
            self.now += 1.0
            for name in beating:
                if name in self.nodes.values():
                    self.beat(name)
            self.send(ev.Tick(self.now))


def a_world(count: int, **settings: object) -> World:
    return World(ClusterState(iter(pieces(count)), rows_of, "run", **settings))  # type: ignore[arg-type]


class ClusterMachine(RuleBasedStateMachine):
    """Joins, deaths, late answers, prefixes, failures and a stop, in any order."""

    world: World

    @initialize(count=st.integers(1, 12), most_nodes=st.sampled_from([None, 1, 2]), pinned=st.integers(0, 3))
    def start(self, count: int, most_nodes: int | None, pinned: int) -> None:
        self.total = count + pinned
        state = ClusterState(
            iter(pieces(count)),
            rows_of,
            "run",
            pinned={"gpu": pieces(pinned, count)},
            most_nodes=most_nodes,
            timeouts=Timeouts(hang_s=4),
        )
        self.world = World(state, kinds={"m0": "gpu", "m3": "gpu"})

    def is_going(self) -> bool:
        return hasattr(self, "world") and self.world.error is None

    @rule()
    def look(self) -> None:
        """There is always something to do, also after an error."""

    @precondition(is_going)
    @rule(machine=st.integers(0, 5))
    def join(self, machine: int) -> None:
        self.world.send(ev.NodeJoined(f"m{machine}"))

    @precondition(lambda self: self.is_going() and self.world.nodes)
    @rule()
    def come_up(self) -> None:
        self.world.join()

    @precondition(lambda self: self.is_going() and self.world.building)
    @rule(data=st.data(), is_cut=st.booleans())
    def stage(self, data: st.DataObject, is_cut: bool) -> None:
        attempt = data.draw(st.sampled_from(sorted(self.world.building)))
        piece = self.world.building[attempt][1]
        self.world.stage(attempt, piece.first_span + 1 if is_cut else None)

    @precondition(lambda self: self.is_going() and self.world.ended)
    @rule(data=st.data())
    def deliver_late(self, data: st.DataObject) -> None:
        before = list(self.world.committed)
        self.world.stage(data.draw(st.sampled_from(sorted(self.world.ended))))
        assert self.world.committed == before

    @precondition(lambda self: self.is_going() and self.world.building)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(sorted(self.world.building)))
        node, _ = self.world.ended[attempt] = self.world.building.pop(attempt)
        self.world.send(ev.PieceGivenBack(node, attempt))

    @precondition(lambda self: self.is_going() and self.world.nodes)
    @rule(data=st.data(), is_gone=st.booleans())
    def lose(self, data: st.DataObject, is_gone: bool) -> None:
        node = data.draw(st.sampled_from(sorted(self.world.nodes)))
        self.world.send(ev.NodeLost(node, "was killed", is_gone))

    @precondition(lambda self: self.is_going() and self.world.building)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(sorted(self.world.building)))
        node = self.world.building[attempt][0]
        self.world.send(ev.PieceFailed(node, attempt, OutputError("the part is not as it was written")))

    @precondition(is_going)
    @rule(seconds=st.sampled_from([1, 2, 6]), data=st.data())
    def pass_time(self, seconds: int, data: st.DataObject) -> None:
        names = sorted(set(self.world.nodes.values()))
        self.world.tick(seconds, data.draw(st.lists(st.sampled_from(names), unique=True)) if names else ())

    @precondition(lambda self: self.is_going() and self.world.building)
    @rule(data=st.data(), rows=st.integers(0, 40))
    def progress(self, data: st.DataObject, rows: int) -> None:
        attempt = data.draw(st.sampled_from(sorted(self.world.building)))
        self.world.send(ev.NodeBeat(self.world.building[attempt][0], {attempt: rows}))

    @precondition(lambda self: self.is_going() and self.world.committed and not self.world.is_stopped)
    @rule()
    def stop(self) -> None:
        self.world.is_stopped = True
        self.world.send(ev.StopRequested())

    @invariant()
    def no_span_is_committed_twice(self) -> None:
        if hasattr(self, "world"):
            assert len(self.world.committed) == len(set(self.world.committed))

    @invariant()
    def no_piece_is_built_on_two_attempts_of_one_node_or_on_three(self) -> None:
        if self.is_going():
            nodes: dict[int, list[int]] = {}
            for node, piece in self.world.building.values():
                nodes.setdefault(piece.first_span, []).append(node)
            assert all(len(each) == len(set(each)) <= 2 for each in nodes.values())

    @invariant()
    def it_is_finished_when_everything_is_committed_or_was_stopped(self) -> None:
        if self.is_going() and self.world.nodes:
            is_all = len(self.world.committed) == SPANS_A_PART * self.total
            if self.world.state.is_finished:
                assert is_all or self.world.is_stopped
                assert not self.world.building

    def teardown(self) -> None:
        """Whatever happened, machines that work end the run: nothing is lost."""
        if not self.is_going():
            return
        self.world.kinds |= {f"fresh{n}": "gpu" for n in range(40)}
        for number in range(40):
            if self.world.state.is_finished or self.world.error is not None:
                break
            self.world.join(f"fresh{number}")
            while self.world.building:
                self.world.stage(next(iter(self.world.building)))
            for node in list(self.world.nodes):
                if not self.world.state.is_finished:
                    self.world.send(ev.NodeLost(node, "left", is_gone=True))
        if self.world.error is None and not self.world.is_stopped:
            assert self.world.state.is_finished
            assert sorted(self.world.committed) == list(range(SPANS_A_PART * self.total))


TestAnyOrderOfEvents = ClusterMachine.TestCase
TestAnyOrderOfEvents.settings = settings(
    max_examples=80, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)


def test_nodes_that_join_take_two_pieces_each_and_pull_the_next() -> None:
    world = a_world(8)
    world.join("a", "b")
    assert (world.parts("a"), world.parts("b")) == ([0, 1], [2, 3])
    world.stage(world.held("b")[0])
    world.stage(world.held("b")[0])
    assert world.parts("b") == [4, 5]
    world.join("c")
    assert world.parts("c") == [6, 7]


def test_pieces_of_a_lost_node_go_to_others_and_what_it_delivers_late_is_discarded() -> None:
    world = a_world(3)
    world.join("a")
    world.join("b")
    late = world.held("a")[0]
    old = world.node("a")
    world.send(ev.NodeLost(old, "was cut off", is_gone=True))
    assert sorted(world.parts("b")) == [0, 2]
    world.stage(late)
    assert world.committed == []
    while world.building:
        world.stage(next(iter(world.building)))
    assert sorted(world.committed) == list(range(12))
    assert world.state.is_finished


def test_kind_is_settled_once_and_another_node_of_it_goes_on_when_the_settling_one_dies() -> None:
    state = ClusterState(iter(pieces(4)), rows_of, "run")
    for name in ("a", "b", "c"):
        state.handle(ev.NodeJoined(name))
    assert state.handle(ev.NodeUp(0, "cpu")) == []
    assert state.handle(ev.NodeUp(1, "cpu")) == []
    assert state.handle(ev.NodeUp(2, "gpu")) == [ev.Settle(0, "cpu"), ev.Settle(2, "gpu")]
    assert ev.Settle(1, "cpu") in state.handle(ev.NodeLost(0, "died", is_gone=True))
    assert state.handle(ev.KindSettled(1, "cpu")) == [ev.Open(1, "cpu")]


def test_kind_that_the_manifest_has_is_not_settled_again() -> None:
    state = ClusterState(iter(pieces(1)), rows_of, "run", settled=["cpu"])
    state.handle(ev.NodeJoined("a"))
    assert state.handle(ev.NodeUp(0, "cpu")) == [ev.Open(0, "cpu")]


def test_piece_that_a_kind_built_before_is_built_by_that_kind() -> None:
    state = ClusterState(iter(pieces(1)), rows_of, "run", pinned={"gpu": pieces(1, 1)}, settled=["cpu", "gpu"])
    world = World(state, kinds={"g": "gpu"}, settles=["cpu", "gpu"])
    world.join("a")
    assert world.parts("a") == [0]
    world.stage(world.held("a")[0])
    assert not world.state.is_finished
    world.join("g")
    assert world.parts("g") == [1]


def test_run_whose_kind_never_comes_says_which() -> None:
    state = ClusterState(iter(()), rows_of, "run", pinned={"gpu H200": pieces(1)}, timeouts=Timeouts(start_s=5))
    world = World(state)
    world.join("a")
    world.tick(8)
    assert isinstance(world.error, DeviceError)
    assert "gpu H200" in str(world.error)


def test_run_without_a_node_waits_for_one_and_then_says_so() -> None:
    world = a_world(2, timeouts=Timeouts(start_s=10))
    world.tick(9)
    assert world.error is None
    world.tick(4)
    assert isinstance(world.error, DeviceError)


def test_run_that_lost_all_nodes_says_how_the_last_one_ended() -> None:
    world = a_world(2, timeouts=Timeouts(start_s=10))
    world.join("a", "b")
    world.send(ev.NodeFailed(world.node("b"), OutputError("the disk is full")))
    world.send(ev.NodeLost(world.node("a"), "died with its machine", is_gone=True))
    world.tick(13)
    assert isinstance(world.error, DeviceError)
    assert "no node, for 12 s; the last one, a, died with its machine" in str(world.error)


def test_machine_that_is_still_there_gets_another_node_until_the_third_death_in_a_row() -> None:
    world = a_world(9)
    world.join("a", "b")
    for _ in range(2):
        world.send(ev.NodeLost(world.node("a"), "was killed"))
        world.join()
        world.stage(world.held("a")[0])  # a commit between two deaths
        world.send(ev.NodeLost(world.node("a"), "was killed"))
        world.join()
    world.send(ev.NodeLost(world.node("a"), "was killed"))
    world.join()
    assert "a" in world.nodes.values()
    world.send(ev.NodeLost(world.node("a"), "was killed"))
    world.join("a")
    assert "a" not in world.nodes.values()
    assert "node a is left out: it died 3 times without finishing a piece; the last time it was killed" in world.reports
    assert world.error is None


def test_piece_over_which_three_nodes_die_ends_the_run_by_name() -> None:
    world = a_world(1)
    for name in ("a", "b", "c"):
        world.join(name)
        world.send(ev.NodeLost(world.building[next(iter(world.building))][0], "was killed"))
        world.join()
    assert isinstance(world.error, WorkersDied)
    assert "part 0" in str(world.error)


def test_silent_node_loses_its_pieces_and_one_that_answers_keeps_them() -> None:
    world = a_world(4, timeouts=Timeouts(hang_s=30))
    world.join("a", "b")
    old = world.node("a")
    world.tick(29, beating=["b"])
    assert world.node("a") == old
    assert world.reports == ["node a has not answered for 20 s; after 30 s its pieces are given out again"]
    world.tick(3, beating=["b"])
    assert old not in world.nodes
    assert "node a gave no answer for 31 s; 2 pieces are given out again" in world.reports
    assert world.parts("b") == [2, 3]


def test_node_that_falls_silent_while_it_settles_its_kind_does_not_keep_the_others_waiting() -> None:
    state = ClusterState(iter(pieces(1)), rows_of, "run", timeouts=Timeouts(hang_s=30))
    for name in ("a", "b"):
        state.handle(ev.NodeJoined(name))
    state.handle(ev.NodeUp(0, "cpu"))
    assert state.handle(ev.NodeUp(1, "cpu")) == [ev.Settle(0, "cpu")]
    commands = []
    for second in range(70):
        state.handle(ev.NodeBeat(1, {}))
        commands += state.handle(ev.Tick(float(second)))
    assert ev.Report("node a gave no answer for 61 s; 0 pieces are given out again", is_shown=True) in commands
    assert ev.Settle(1, "cpu") in commands


def test_idle_node_builds_what_a_slow_one_has_begun_and_the_first_commit_wins() -> None:
    world = a_world(3)
    world.join("slow", "fast")
    slow = world.held("slow")[0]
    for _ in range(2):
        world.tick(1)
        world.beat("slow", [1, 0])
    for attempt in world.held("fast"):
        world.stage(attempt)
    world.tick(1)
    assert world.parts("fast") == [1], "the piece that would be done last comes first"
    world.stage(world.held("fast")[0])
    assert world.parts("slow") == [0], "the attempt that lost is withdrawn"
    world.tick(1)
    assert world.parts("fast") == [0]
    world.stage(slow)
    assert world.state.is_finished
    assert not world.building
    assert sorted(world.committed) == list(range(12))


def test_no_second_attempt_where_it_would_end_later() -> None:
    world = a_world(2)
    world.join("a", "b")
    world.tick(4)
    world.beat("a", [39])
    world.stage(world.held("a")[0])
    world.stage(world.held("a")[0])
    world = a_world(3)
    world.join("a", "b")
    world.tick(4)
    world.beat("a", [39, 39])
    world.stage(world.held("b")[0])
    world.tick(1)
    assert world.parts("b") == []


def test_piece_that_is_predicted_and_never_written_is_built_again_by_an_idle_node() -> None:
    world = a_world(4)
    world.join("stuck", "other")
    world.tick(4)
    world.beat("stuck", [40, 40])
    for attempt in world.held("other"):
        world.stage(attempt)
    world.tick(1, beating=["stuck", "other"])
    assert world.parts("other") == []
    world.tick(20, beating=["stuck", "other"])
    assert world.parts("other") == [0]
    world.stage(world.held("other")[0])
    world.tick(1, beating=["stuck", "other"])
    world.stage(world.held("other")[0])
    assert world.state.is_finished


def test_node_that_joins_builds_what_a_stuck_one_has_begun_also_where_the_only_fast_one_has_left() -> None:
    """Nobody who is there has finished anything: those who are gone have."""
    world = a_world(3)
    world.join("stuck", "fast")
    world.tick(1, beating=["stuck", "fast"])
    world.stage(world.held("fast")[0])
    world.send(ev.NodeLost(world.node("fast"), "left", is_gone=True))
    world.join("new")
    world.tick(20, beating=["stuck", "new"])
    assert world.parts("new") == [1]


def test_second_attempt_becomes_the_first_when_its_node_is_lost() -> None:
    world = a_world(2)
    world.join("slow")
    world.beat("slow", [1])
    world.tick(2)
    world.join("fast")
    world.tick(1)
    assert world.parts("fast") == [1]
    world.send(ev.NodeLost(world.node("slow"), "was killed", is_gone=True))
    assert sorted(world.parts("fast")) == [0, 1]
    while world.building:
        world.stage(next(iter(world.building)))
    assert world.state.is_finished


def test_stop_hands_out_nothing_more_and_commits_what_nodes_have() -> None:
    world = a_world(8)
    world.join("a", "b")
    world.is_stopped = True
    world.send(ev.StopRequested())
    first, *others = list(world.building)
    world.stage(first, stop_span=2)
    for attempt in others:
        node, _ = world.building.pop(attempt)
        world.send(ev.PieceGivenBack(node, attempt))
    assert world.state.is_finished
    assert world.committed == [0, 1]


def test_rest_of_a_piece_that_a_node_cut_short_is_built() -> None:
    world = a_world(1)
    world.join("a")
    world.stage(world.held("a")[0], stop_span=1)
    assert [piece for _, piece in world.building.values()] == [PartPiece(0, 1, 1, 4)]


def test_piece_that_fails_is_tried_on_another_node_and_ends_the_run_after_three() -> None:
    world = a_world(4)
    world.join("a", "b")
    tried = []
    for _ in range(3):
        attempt = next(name for name, (_, piece) in world.building.items() if piece.part == 0)
        node = world.building[attempt][0]
        tried.append(world.nodes[node])
        world.send(ev.PieceFailed(node, attempt, OutputError("the part is not as it was written")))
    assert tried == ["a", "b", "a"]
    assert isinstance(world.error, OutputError)


def test_input_that_two_nodes_cannot_read_is_at_fault_itself() -> None:
    world = a_world(4)
    world.join("a", "b", "c")
    world.send(ev.NodeFailed(world.node("a"), InputError("the file is not there")))
    assert world.error is None
    world.send(ev.NodeFailed(world.node("b"), InputError("the file is not there")))
    assert isinstance(world.error, InputError)


def test_error_of_the_model_ends_the_run_at_once() -> None:
    world = a_world(4)
    world.join("a", "b")
    world.send(ev.NodeFailed(world.node("a"), ModelError("no")))
    assert isinstance(world.error, ModelError)


@pytest.mark.parametrize("error", [OutputError("the disk is full"), DeviceError("no device"), WorkersDied("they died")])
def test_node_that_fails_is_left_out_and_the_last_one_ends_the_run(error: PenstockError) -> None:
    world = a_world(4)
    world.join("a", "b")
    world.send(ev.NodeFailed(world.node("a"), error))
    assert world.shown == [f"node a is left out: {error.problem}"]
    assert world.error is None
    assert sorted(world.parts("b")) == [2, 3]
    world.send(ev.NodeJoined("a"))
    assert "a" not in world.nodes.values()
    last = type(error)(error.problem)
    world.send(ev.NodeFailed(world.node("b"), last))
    assert f"node b is left out: {error.problem}" in world.reports
    assert len(world.shown) == 1, "the error is shown, and nothing else that says the same"
    assert world.error is last
    assert last.received == "on node b"


def test_no_more_nodes_are_used_than_asked_for_and_a_spare_one_takes_the_place_of_a_lost_one() -> None:
    world = a_world(9, most_nodes=2)
    world.join("a", "b", "c")
    assert sorted(world.nodes.values()) == ["a", "b"]
    world.send(ev.NodeLost(world.node("a"), "left", is_gone=True))
    assert sorted(world.nodes.values()) == ["b", "c"]


OTHER_KERAS = Misfit("keras", "3.1", "3.5")


def test_nothing_begins_before_the_first_nodes_have_answered_and_all_that_does_not_fit_is_one_table() -> None:
    world = a_world(2)
    for name in "abc":
        world.send(ev.NodeJoined(name))
    world.send(ev.NodeUp(1, "cpu"))
    world.send(ev.NodeUnfit(0, (OTHER_KERAS, Misfit("output", "no such folder", "/out", OutputError))))
    assert not world.settles
    assert world.error is None
    world.send(ev.NodeUnfit(2, (OTHER_KERAS,)))
    assert isinstance(world.error, DeviceError)
    assert str(world.error).splitlines()[:5] == [
        "2 of 3 nodes do not fit the job",
        "received: ",
        "  node  what    found           wanted",
        "  a     keras   3.1             3.5",
        "  a     output  no such folder  /out",
    ]
    assert not world.settles


def test_node_that_dies_at_every_start_is_in_the_table() -> None:
    world = a_world(2)
    world.send(ev.NodeJoined("a"))
    for node in range(3):
        world.send(ev.NodeLost(node, "failed: no module named penstock"))
    assert isinstance(world.error, WorkersDied)
    assert "no module named penstock" in str(world.error)


def test_nodes_that_are_up_do_not_wait_for_ever_for_those_that_are_not() -> None:
    world = a_world(2)
    world.send(ev.NodeJoined("a"))
    world.send(ev.NodeJoined("b"))
    world.send(ev.NodeUp(0, "cpu"))
    world.tick(60)
    assert not world.settles
    world.tick(2)
    assert world.settles == ["cpu"]


def test_nodes_that_do_not_answer_are_told_once() -> None:
    world = a_world(2)
    world.send(ev.NodeJoined("a"))
    world.tick(50)
    assert world.reports == ["no node has answered for 20 s: other jobs may have the CPUs or GPUs of a"]


def test_unfit_node_that_joins_later_is_left_out_with_its_reason() -> None:
    world = a_world(2)
    world.join("a")
    world.send(ev.NodeJoined("b"))
    world.send(ev.NodeUnfit(1, (OTHER_KERAS,)))
    assert "node b is left out: keras: 3.1 (wanted: 3.5)" in world.reports
    assert world.error is None
