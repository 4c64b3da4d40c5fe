"""Which cores are near a GPU, and what is bound to them, on machines that only a folder and a fake driver know."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.core.records import Device, Placement
from penstock.pool.devices import nvml
from penstock.pool.devices.near import ANY, NearCores, bound_to, find_near_cores, near_cores
from tests.support.numa_machine import NEEDS_TWO_CORES, NumaMachine, gpu

Make = Callable[..., NumaMachine]
TWO_NODES = {0: "0-3,8-11", 1: "4-7,12-15"}
FIRST, SECOND = frozenset({0, 1, 2, 3, 8, 9, 10, 11}), frozenset({4, 5, 6, 7, 12, 13, 14, 15})


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Make:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    return lambda nodes, **cards: NumaMachine(monkeypatch, tmp_path, nodes, cards)


def placed(*letters: str, loaders: int = 2, has_loader_processes: bool = False) -> Placement:
    devices = tuple(gpu(letter, index) for index, letter in enumerate(letters))
    return Placement(devices, loaders, lanes=4, has_loader_processes=has_loader_processes)


def test_address_of_a_card_is_spelled_as_in_sysfs(machine: Make) -> None:
    machine(TWO_NODES, a="1")
    assert nvml.pci_address("GPU-a") == nvml.pci_address("MIG-GPU-a") == "0000:0a:00.0"
    assert nvml.pci_address("GPU-unknown") is None


def test_cores_near_a_card_are_those_of_its_node(machine: Make) -> None:
    machine(TWO_NODES, a="1", b="0")
    assert near_cores(gpu("a")) == "4-7,12-15"
    assert near_cores(gpu("b")) == "0-3,8-11"
    assert near_cores(Device("cpu", 0)) is None


@pytest.mark.parametrize(
    ("nodes", "node_of_card"),
    [
        (TWO_NODES, "-1"),
        (TWO_NODES, "7"),
        ({0: "0-15"}, "0"),
        ({0: "0-15", 1: ""}, "0"),
        ({0: "0-7", 1: "8-15", 2: ""}, "2"),
    ],
    ids=["unknown node", "node that is not there", "one node", "second node without cores", "node without cores"],
)
def test_nothing_is_near_where_the_machine_does_not_tell(
    machine: Make, nodes: dict[int, str], node_of_card: str
) -> None:
    machine(nodes, a=node_of_card)
    assert near_cores(gpu("a")) is None
    assert find_near_cores(placed("a")) == NearCores()


def test_nothing_is_near_a_card_that_the_driver_does_not_know(machine: Make) -> None:
    machine(TWO_NODES, a="0")
    assert near_cores(gpu("unknown")) is None


def test_replica_and_loaders_run_near_the_only_card(machine: Make) -> None:
    machine(TWO_NODES, a="1")
    assert find_near_cores(placed("a")) == NearCores({"GPU-a": SECOND}, SECOND, 7)


def test_loaders_are_bound_to_cores_and_not_to_threads_of_cores(machine: Make) -> None:
    tree = machine(TWO_NODES, a="0")
    for core in range(16):
        tree.write(f"devices/system/cpu/cpu{core}/topology/thread_siblings_list", f"{core % 8},{core % 8 + 8}")
    assert find_near_cores(placed("a")) == NearCores({"GPU-a": FIRST}, FIRST, 3)


def test_loaders_that_feed_cards_of_two_nodes_run_anywhere(machine: Make) -> None:
    machine(TWO_NODES, a="0", b="1")
    assert find_near_cores(placed("a", "b")) == NearCores({"GPU-a": FIRST, "GPU-b": SECOND})


def test_loaders_run_near_where_all_cards_are_on_one_node(machine: Make) -> None:
    machine(TWO_NODES, a="1", b="1")
    assert find_near_cores(placed("a", "b", "a")) == NearCores({"GPU-a": SECOND, "GPU-b": SECOND}, SECOND, 5)


def test_loaders_run_anywhere_where_one_card_is_unknown(machine: Make) -> None:
    machine(TWO_NODES, a="1", b="-1")
    assert find_near_cores(placed("a", "b")) == NearCores({"GPU-a": SECOND})


def test_node_with_too_few_cores_for_its_replicas_binds_none(machine: Make) -> None:
    machine(TWO_NODES, a="0", b="0", c="1")
    assert find_near_cores(placed("a", "b", "c", loaders=5)) == NearCores({"GPU-c": SECOND})
    with_processes = find_near_cores(placed("a", "b", "c", loaders=5, has_loader_processes=True))
    assert with_processes == NearCores({"GPU-a": FIRST, "GPU-b": FIRST, "GPU-c": SECOND})


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({2, 3, 4, 5}, frozenset({4, 5})),
        ({3, 4}, ANY),
        ({4, 5, 6}, ANY),
        ({0, 1, 2}, ANY),
    ],
    ids=["both nodes", "too few near", "only near", "none near"],
)
def test_cores_that_the_user_allows_are_never_exceeded(
    machine: Make, monkeypatch: pytest.MonkeyPatch, own: set[int], expected: frozenset[int]
) -> None:
    machine(TWO_NODES, a="1")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: own)
    assert find_near_cores(placed("a")).of_replicas.get("GPU-a", ANY) == expected


@NEEDS_TWO_CORES
def test_thread_that_starts_a_bound_process_has_its_own_cores_again() -> None:
    own = os.sched_getaffinity(0)
    with bound_to(frozenset({max(own)})):
        assert os.sched_getaffinity(0) == {max(own)}
    assert os.sched_getaffinity(0) == own


@NEEDS_TWO_CORES
def test_cores_that_are_gone_bind_nothing() -> None:
    own = os.sched_getaffinity(0)
    with bound_to(frozenset({1023})):
        assert os.sched_getaffinity(0) == own
