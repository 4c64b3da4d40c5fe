"""Slots: fixed buffers in shared memory."""

from __future__ import annotations

import os
import threading

import pytest

from penstock.pool.transfer.slots import FreeSlots, NoMoreSlots, Slots


@pytest.fixture
def slots() -> Slots:
    return Slots.create(count=3, slot_bytes=4096)


def test_slots_lie_beside_each_other_and_do_not_overlap(slots: Slots) -> None:
    for slot in range(3):
        slots.view(slot, 4096)[:] = bytes([slot + 1]) * 4096
    assert [bytes(slots.view(slot, 4096)) for slot in range(3)] == [bytes([slot + 1]) * 4096 for slot in range(3)]
    slots.close()


def test_view_is_no_longer_than_asked_for(slots: Slots) -> None:
    assert len(slots.view(1, 10)) == 10
    slots.close()


def test_what_one_side_writes_the_other_side_reads(slots: Slots) -> None:
    other = Slots(os.dup(slots.descriptor), 3, 4096)
    slots.view(2, 5)[:] = b"hello"
    assert bytes(other.view(2, 5)) == b"hello"
    other.close()
    slots.close()


def test_memory_outlives_the_side_that_made_it(slots: Slots) -> None:
    other = Slots(os.dup(slots.descriptor), 3, 4096)
    slots.view(0, 3)[:] = b"abc"
    slots.close()
    assert bytes(other.view(0, 3)) == b"abc"
    other.close()


def test_slots_have_no_name_on_the_machine(slots: Slots) -> None:
    before = set(os.listdir("/dev/shm"))
    second = Slots.create(count=1, slot_bytes=4096)
    assert set(os.listdir("/dev/shm")) == before
    second.close()
    slots.close()


def test_closing_while_a_view_is_alive_is_allowed(slots: Slots) -> None:
    view = slots.view(0, 4)
    view[:] = b"live"
    slots.close()
    assert bytes(view) == b"live"


def test_descriptor_is_not_inherited_by_accident(slots: Slots) -> None:
    assert not os.get_inheritable(slots.descriptor)
    slots.close()


def test_every_slot_is_free_at_first_and_given_out_once() -> None:
    free = FreeSlots(range(3))
    assert sorted(free.take() for _ in range(3)) == [0, 1, 2]


def test_no_slot_is_free_until_one_is_granted() -> None:
    free = FreeSlots()
    free.give_back(5)
    free.give_back(2)
    assert [free.take(), free.take()] == [5, 2]


def test_taking_waits_until_a_slot_is_given_back() -> None:
    free = FreeSlots(range(3))
    for _ in range(3):
        free.take()
    taken: list[int] = []
    waiter = threading.Thread(target=lambda: taken.append(free.take()), daemon=True)
    waiter.start()
    waiter.join(timeout=0.05)
    assert waiter.is_alive()
    free.give_back(1)
    waiter.join(timeout=10)
    assert taken == [1]


def test_whoever_waits_for_a_slot_is_told_that_there_are_no_more() -> None:
    free = FreeSlots([3])
    assert free.take() == 3
    free.close()
    for _ in range(2):
        with pytest.raises(NoMoreSlots):
            free.take()
