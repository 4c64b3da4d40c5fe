"""Who predicts which span: the invariants of the scheduler under any order of events."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.core.records import Span
from penstock.core.scheduler import NOT_YET, Assignment, NotYet, Scheduler
from penstock.errors import InputError


def spans_of(groups: Sequence[str | None], first_index: int = 0) -> list[Span]:
    return [Span(first_index + i, 10 * i, 10, (), group) for i, group in enumerate(groups)]


def indices(assignments: list[Assignment[Span]], replica: int) -> list[int]:
    return [assignment.span.index for assignment in assignments if assignment.replica == replica]


def pulling(spans: Iterable[Span], pulled: list[int]) -> Iterator[Span]:
    """Spans that note when they are asked for, as a source that streams would make them."""
    for span in spans:
        pulled.append(span.index)
        yield span


class Arriving:
    """Spans that come while a run goes on: `NOT_YET` where `released` of them were taken."""

    def __init__(self, spans: Sequence[Span], released: int) -> None:
        self.spans = spans
        self.released = released
        self.taken = 0

    def __iter__(self) -> Iterator[Span | NotYet]:
        while self.taken < len(self.spans):
            if self.taken == self.released:
                yield NOT_YET
                continue
            self.taken += 1
            yield self.spans[self.taken - 1]


class SchedulerMachine(RuleBasedStateMachine):
    """Joins, finishes, losses, arrivals, returns and a stop, in any order, against a plain record of who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: list[str | None] = []
        self.pending: set[int] = set()
        self.held: dict[int, list[int]] = {}
        self.last: dict[int, int] = {}
        self.finished: set[int] = set()
        self.next_replica = 0
        self.is_stopped = False

    @initialize(
        runs=st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=8),
        depth=st.integers(1, 3),
        window=st.integers(1, 12),
        released=st.integers(0, 40),
    )
    def start(self, runs: list[tuple[int, bool]], depth: int, window: int, released: int) -> None:
        for number, (length, is_group) in enumerate(runs):
            self.groups += [f"g{number}" if is_group else None] * length
        self.depth = depth
        self.window = max(window, depth)
        self.feed = Arriving(spans_of(self.groups), min(released, len(self.groups)))
        self.pending = set(range(self.feed.released))
        self.scheduler: Scheduler[Span] = Scheduler(self.feed, depth, window)

    @invariant()
    def no_span_is_pulled_beyond_the_window(self) -> None:
        if hasattr(self, "scheduler"):
            assert self.feed.taken <= self.oldest_unfinished() + self.window

    @precondition(lambda self: len(self.held) < 4)
    @rule()
    def join(self) -> None:
        replica, self.next_replica = self.next_replica, self.next_replica + 1
        self.held[replica] = []
        self.check(self.scheduler.join(replica))

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        replica = data.draw(st.sampled_from(sorted(name for name, held in self.held.items() if held)))
        index = data.draw(st.sampled_from(self.held[replica]))
        self.held[replica].remove(index)
        self.finished.add(index)
        self.check(self.scheduler.finish(replica, index))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        replica = data.draw(st.sampled_from(sorted(self.held)))
        self.pending.update(self.held.pop(replica))
        self.last.pop(replica, None)
        self.check(self.scheduler.lose(replica))

    @precondition(lambda self: hasattr(self, "feed") and self.feed.released < len(self.groups))
    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        first = self.feed.released
        self.feed.released = data.draw(st.integers(first + 1, len(self.groups)))
        self.pending.update(range(first, self.feed.released))
        self.check(self.scheduler.more())

    @precondition(lambda self: self.held and not self.is_stopped)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        held = {index for indices in self.held.values() for index in indices}
        pulled = sorted(held | {index for index in self.pending if index < self.feed.taken})
        if pulled:
            dropped = set(data.draw(st.lists(st.sampled_from(pulled), min_size=1, unique=True)))
            assert set(self.scheduler.drop(sorted(dropped))) == dropped & held
            self.pending -= dropped
            self.finished |= dropped - held
            self.check(self.scheduler.more())

    @precondition(lambda self: len(self.held) > 1 and any(self.held.values()))
    @rule(data=st.data())
    def hand_over(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(sorted(name for name, held in self.held.items() if held)))
        index = data.draw(st.sampled_from(self.held[holder]))
        other = data.draw(st.sampled_from(sorted(self.held.keys() - {holder})))
        self.held[holder].remove(index)
        self.held[other].append(index)
        self.scheduler.hand_over(holder, index, other)
        self.pending.update(self.held.pop(holder))
        self.last.pop(holder, None)
        self.check(self.scheduler.lose(holder))

    @precondition(lambda self: self.is_stopped and any(self.held.values()))
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        replica = data.draw(st.sampled_from(sorted(name for name, held in self.held.items() if held)))
        count = data.draw(st.integers(0, len(self.held[replica])))
        unbegun = self.held[replica][len(self.held[replica]) - count :]
        self.held[replica] = self.held[replica][: len(self.held[replica]) - count]
        self.pending.update(unbegun)
        self.scheduler.give_back(replica, unbegun)

    @precondition(lambda self: not self.is_stopped and self.finished)
    @rule()
    def stop(self) -> None:
        self.is_stopped = True
        self.scheduler.stop()

    def check(self, assignments: list[Assignment[Span]]) -> None:
        """Every assignment is allowed at the moment when it is made."""
        assert not (self.is_stopped and assignments), "a stopped scheduler hands something out"
        for assignment in assignments:
            replica, index = assignment.replica, assignment.span.index
            assert index in self.pending, "a span is handed out that is held or finished"
            assert len(self.held[replica]) < self.depth, "a replica holds more than its depth"
            assert index < self.oldest_unfinished() + self.window, "a span beyond the window is handed out"
            claimed = self.claimed_by_others(replica)
            if self.groups[index] in claimed:
                assert not self.unclaimed(claimed), "a group is taken from its reader although there is other work"
            self.pending.discard(index)
            self.held[replica].append(index)
            self.last[replica] = index

    def oldest_unfinished(self) -> int:
        return min((i for i in range(len(self.groups)) if i not in self.finished), default=len(self.groups))

    def claimed_by_others(self, replica: int) -> set[str]:
        """The groups that other replicas are in the middle of."""
        claimed: set[str] = set()
        for name, last in self.last.items():
            group = self.groups[last]
            if name != replica and group is not None and last + 1 in self.pending and self.groups[last + 1] == group:
                claimed.add(group)
        return claimed

    def unclaimed(self, claimed: set[str]) -> list[int]:
        stop = self.oldest_unfinished() + self.window
        return [index for index in self.pending if index < stop and self.groups[index] not in claimed]

    @invariant()
    def every_span_is_pending_or_held_by_one_or_finished(self) -> None:
        held = [index for positions in self.held.values() for index in positions]
        assert len(held) == len(set(held))
        assert sorted([*self.pending, *held, *self.finished]) == list(
            range(self.feed.released if hasattr(self, "feed") else 0)
        )

    @invariant()
    def scheduler_agrees_on_who_holds_what(self) -> None:
        if hasattr(self, "scheduler"):
            for replica, held in self.held.items():
                assert self.scheduler.held_by(replica) == held

    @invariant()
    def it_is_finished_when_nothing_is_held_and_nothing_will_be(self) -> None:
        if hasattr(self, "scheduler"):
            idle = not any(self.held.values())
            # Spans are pulled for those who want them: that there are none is known once somebody asked.
            is_known = self.feed.released == len(self.groups) and bool(self.held)
            if self.is_stopped or is_known or self.pending or not idle:
                assert self.scheduler.is_finished == (idle and (self.is_stopped or (is_known and not self.pending)))

    @invariant()
    def nobody_waits_beside_work_that_is_free(self) -> None:
        if self.is_stopped:
            return
        for replica, held in self.held.items():
            if len(held) < self.depth:
                assert not self.unclaimed(self.claimed_by_others(replica))
        if self.held and self.pending:
            assert any(self.held.values()), "there is work and there are replicas, and nobody has any"


TestAnyOrderOfEvents = SchedulerMachine.TestCase
TestAnyOrderOfEvents.settings = settings(max_examples=60, stateful_step_count=40)


def test_replica_that_joins_gets_the_first_spans_up_to_its_depth() -> None:
    scheduler = Scheduler(spans_of([None] * 5), depth=2, window=10)
    assert scheduler.join(7) == [Assignment(7, span) for span in spans_of([None] * 5)[:2]]


def test_replica_that_finishes_pulls_the_next_span() -> None:
    scheduler = Scheduler(spans_of([None] * 5), depth=1, window=10)
    assert indices(scheduler.join(0), 0) == [0]
    assert indices(scheduler.join(1), 1) == [1]
    assert indices(scheduler.finish(1, 1), 1) == [2]
    assert indices(scheduler.finish(1, 2), 1) == [3]
    assert indices(scheduler.finish(0, 0), 0) == [4]


def test_spans_are_known_by_their_own_indices() -> None:
    scheduler = Scheduler(spans_of([None] * 3, first_index=40), depth=1, window=10)
    assert indices(scheduler.join(0), 0) == [40]
    assert indices(scheduler.finish(0, 40), 0) == [41]
    assert scheduler.held_by(0) == [41]


def test_no_span_is_handed_out_beyond_the_window() -> None:
    scheduler = Scheduler(spans_of([None] * 20), depth=1, window=3)
    scheduler.join(0)
    handed = indices(scheduler.join(1), 1)
    for _ in range(3):
        handed += indices(scheduler.finish(1, handed[-1]), 1) if scheduler.held_by(1) else []
    assert handed == [1, 2]
    assert scheduler.held_by(1) == []
    assert indices(scheduler.finish(0, 0), 0) + scheduler.held_by(1) == [3, 4]


def test_lost_replica_gives_its_spans_back() -> None:
    scheduler = Scheduler(spans_of([None] * 6), depth=2, window=10)
    scheduler.join(0)
    scheduler.join(1)
    assert scheduler.lose(0) == []
    assert scheduler.held_by(0) == []
    assert not scheduler.is_finished
    assert indices(scheduler.finish(1, 2), 1) == [0]
    assert indices(scheduler.finish(1, 3), 1) == [1]


def test_spans_of_a_lost_replica_go_to_the_one_that_takes_its_place() -> None:
    scheduler = Scheduler(spans_of([None] * 2), depth=2, window=10)
    scheduler.join(0)
    assert scheduler.lose(0) == []
    assert indices(scheduler.join(1), 1) == [0, 1]


def test_losing_a_replica_that_never_joined_changes_nothing() -> None:
    scheduler = Scheduler(spans_of([None] * 2), depth=2, window=10)
    assert scheduler.lose(5) == []
    assert indices(scheduler.join(0), 0) == [0, 1]


def test_stopped_scheduler_lets_what_is_held_finish_and_hands_out_nothing() -> None:
    scheduler = Scheduler(spans_of([None] * 6), depth=2, window=10)
    scheduler.join(0)
    scheduler.stop()
    assert not scheduler.is_finished
    assert scheduler.finish(0, 0) == []
    scheduler.give_back(0, [1])
    assert scheduler.is_finished
    assert scheduler.join(1) == []


def test_nothing_to_do_is_finished_as_soon_as_somebody_asks() -> None:
    scheduler: Scheduler[Span] = Scheduler([], depth=2, window=4)
    assert scheduler.join(0) == []
    assert scheduler.is_finished


def test_nothing_is_pulled_before_somebody_wants_it() -> None:
    pulled: list[int] = []
    scheduler = Scheduler(pulling(spans_of([None] * 9), pulled), depth=1, window=4)
    assert pulled == []
    assert not scheduler.is_finished
    scheduler.join(0)
    assert pulled == [0, 1, 2, 3]


def test_no_more_is_pulled_than_the_window_holds() -> None:
    pulled: list[int] = []
    scheduler = Scheduler(pulling(spans_of([None] * 20), pulled), depth=1, window=3)
    scheduler.join(0)
    scheduler.join(1)
    scheduler.finish(1, 1)
    assert pulled == [0, 1, 2]
    scheduler.finish(0, 0)
    assert pulled == [0, 1, 2, 3, 4]


def test_where_every_span_costs_only_what_is_handed_out_is_pulled() -> None:
    pulled: list[int] = []
    scheduler = Scheduler(pulling(spans_of([None] * 9), pulled), depth=2, window=8, ahead=1)
    assert indices(scheduler.join(0), 0) == [0, 1]
    assert pulled == [0, 1]
    assert indices(scheduler.finish(0, 1), 0) == [2]
    assert pulled == [0, 1, 2]


def test_spans_of_a_lost_replica_are_handed_out_before_more_is_pulled() -> None:
    pulled: list[int] = []
    scheduler = Scheduler(pulling(spans_of([None] * 9), pulled), depth=2, window=8, ahead=1)
    scheduler.join(0)
    scheduler.lose(0)
    assert indices(scheduler.join(1), 1) == [0, 1]
    assert pulled == [0, 1]


@pytest.mark.parametrize("ahead", [1, 2, None])
def test_every_span_of_a_stream_is_finished_once_however_far_it_is_pulled_ahead(ahead: int | None) -> None:
    chance = random.Random(ahead or 0)
    scheduler = Scheduler(pulling(spans_of([None] * 30), []), depth=2, window=8, ahead=ahead)
    scheduler.join(0)
    scheduler.join(1)
    done: list[int] = []
    while not scheduler.is_finished:
        replica = chance.choice([name for name in (0, 1) if scheduler.held_by(name)])
        done.append(chance.choice(scheduler.held_by(replica)))
        scheduler.finish(replica, done[-1])
    assert sorted(done) == list(range(30))


def test_what_is_done_is_forgotten_so_that_memory_does_not_grow_with_the_input() -> None:
    scheduler = Scheduler(spans_of([None] * 1000), depth=1, window=4)
    scheduler.join(0)
    for index in range(990):
        scheduler.finish(0, index)
    scheduler.order.clear()  # taken away by whoever puts results in order
    held = [value for value in vars(scheduler).values() if isinstance(value, (dict, set, list))]
    assert max(map(len, held)) <= 6


def test_two_replicas_read_two_groups_in_order_and_apart() -> None:
    scheduler = Scheduler(spans_of(["a"] * 6 + ["b"] * 6), depth=2, window=12)
    taken = {0: indices(scheduler.join(0), 0), 1: indices(scheduler.join(1), 1)}
    for _ in range(6):
        for replica in (0, 1):
            if held := scheduler.held_by(replica):
                for assignment in scheduler.finish(replica, held[0]):
                    taken[assignment.replica].append(assignment.span.index)
    assert taken == {0: [0, 1, 2, 3, 4, 5], 1: [6, 7, 8, 9, 10, 11]}
    assert scheduler.is_finished


def test_group_stays_on_its_reader_while_there_is_other_work_whoever_is_faster() -> None:
    for seed in range(20):
        chance = random.Random(seed)
        scheduler = Scheduler(spans_of(["a"] * 6 + [None] * 40), depth=chance.randint(1, 2), window=46)
        readers: list[int] = []
        assignments = [*scheduler.join(0), *scheduler.join(1)]
        while len(readers) < 6:
            readers += [assignment.replica for assignment in assignments if assignment.span.group == "a"]
            replica = chance.choice([0, 0, 1])
            assignments = scheduler.finish(replica, scheduler.held_by(replica)[0])
        assert readers == [0] * 6, f"seed {seed}"


def test_idle_replica_takes_from_anothers_group_rather_than_nothing() -> None:
    scheduler = Scheduler(spans_of(["a"] * 6), depth=1, window=6)
    assert indices(scheduler.join(0), 0) == [0]
    assert indices(scheduler.join(1), 1) == [1]


def test_group_of_a_lost_replica_goes_to_another_from_its_first_unfinished_span() -> None:
    scheduler = Scheduler(spans_of(["a"] * 5 + [None]), depth=1, window=10)
    scheduler.join(0)
    scheduler.finish(0, 0)
    assert indices(scheduler.join(1), 1) == [5]
    scheduler.lose(0)
    assert indices(scheduler.finish(1, 5), 1) == [1]
    assert indices(scheduler.finish(1, 1), 1) == [2]


def test_spans_that_arrive_later_are_handed_out_when_they_are_there() -> None:
    feed = Arriving(spans_of([None] * 4), released=1)
    scheduler: Scheduler[Span] = Scheduler(feed, depth=2, window=4)
    assert indices(scheduler.join(0), 0) == [0]
    assert scheduler.finish(0, 0) == []
    assert not scheduler.is_finished
    feed.released = 4
    assert indices(scheduler.more(), 0) == [1, 2]


def test_dropped_span_that_a_replica_holds_is_still_awaited() -> None:
    scheduler = Scheduler(spans_of([None] * 3), depth=1, window=4)
    scheduler.join(0)
    assert scheduler.drop([0, 1]) == [0]
    assert indices(scheduler.finish(0, 0), 0) == [2]


def test_span_that_was_handed_over_does_not_come_back_with_its_first_holder() -> None:
    scheduler = Scheduler(spans_of([None]), depth=1, window=4)
    scheduler.join(0)
    scheduler.join(1)
    scheduler.hand_over(0, 0, 1)
    assert scheduler.lose(0) == []
    assert scheduler.held_by(1) == [0]
    scheduler.finish(1, 0)
    assert scheduler.is_finished


@pytest.mark.parametrize("replicas", [1, 2, 5])
@pytest.mark.parametrize("depth", [1, 3])
def test_every_span_is_finished_once_whatever_the_number_of_replicas(replicas: int, depth: int) -> None:
    chance = random.Random(replicas * 10 + depth)
    scheduler = Scheduler(spans_of([None] * 50), depth, window=2 * depth * replicas)
    for replica in range(replicas):
        scheduler.join(replica)
    done: list[int] = []
    while not scheduler.is_finished:
        replica = chance.choice([name for name in range(replicas) if scheduler.held_by(name)])
        index = chance.choice(scheduler.held_by(replica))
        done.append(index)
        scheduler.finish(replica, index)
    assert sorted(done) == list(range(50))


def broken(count: int, error: BaseException) -> Iterator[Span]:
    yield from spans_of([None] * count)
    raise error


@pytest.mark.parametrize("error", [InputError("the stream is broken"), RuntimeError("a bug"), ValueError()], ids=repr)
@pytest.mark.parametrize("count", [0, 1, 4])
def test_error_ends_the_spans_and_is_raised_when_everything_before_it_is_done(count: int, error: Exception) -> None:
    scheduler = Scheduler(broken(count, error), depth=1, window=8)
    scheduler.join(0)
    for index in range(count):
        assert not scheduler.is_finished
        scheduler.finish(0, index)
    assert scheduler.is_finished
    with pytest.raises(type(error)) as caught:
        scheduler.check()
    assert caught.value is error


def test_error_that_has_not_come_yet_is_not_raised() -> None:
    scheduler = Scheduler(broken(5, InputError("later")), depth=1, window=2)
    scheduler.join(0)
    scheduler.check()


def test_interrupt_does_not_wait() -> None:
    with pytest.raises(KeyboardInterrupt):
        Scheduler(broken(1, KeyboardInterrupt()), depth=1, window=8).join(0)
