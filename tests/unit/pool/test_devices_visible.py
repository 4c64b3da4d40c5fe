"""CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER in all their forms, on cards that were made up."""

from __future__ import annotations

import pytest

from penstock.core.records import Device
from penstock.pool.devices.visible import Card, Instance, in_cuda_order, visible


def device(name: str, index: int, uuid: str) -> Device:
    return Device("gpu", index, name, uuid, 1000 + index, 500 + index)


WHOLE = [Card(device(letter, place, f"GPU-{letter}-0000")) for place, letter in enumerate("abcd")]

DIVIDED = Card(
    device("b", 1, "GPU-b-0000"),
    is_divided=True,
    instances=(
        Instance(device("x", 0, "MIG-11-x"), 7, 0),
        Instance(device("y", 1, "MIG-12-y"), 8, 0),
        Instance(device("z", 3, "MIG-2-z"), 8, 1),
    ),
)
EMPTY = Card(device("e", 2, "GPU-e-0000"), is_divided=True)
MIXED = [Card(device("a", 0, "GPU-a-0000")), DIVIDED, EMPTY]


def shown(cards: list[Card], setting: str | None) -> str:
    return "".join(each.name for each in visible(cards, setting))


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, "abcd"),
        ("", ""),
        (" ", ""),
        ("-1", ""),
        ("none", ""),
        ("NoDevFiles", ""),
        ("0", "a"),
        ("2", "c"),
        ("0,1,2,3", "abcd"),
        ("3,1", "db"),
        (" 0 , 2 ", "ac"),
        ("0,-1,2", "a"),
        ("1,9,2", "b"),
        ("1,,2", "b"),
        ("1,", "b"),
        ("9", ""),
        ("GPU-a-0000", "a"),
        ("GPU-c", "c"),
        ("GPU-c,GPU-a", "ca"),
        ("GPU-c, GPU-a", "ca"),
        ("GPU-c,0", "ca"),
        ("GPU-x", ""),
        ("GPU-", ""),
        ("GPU-a,GPU-x,GPU-b", "a"),
        ("gpu-a", ""),
        ("MIG-a", ""),
        ("0x1", ""),
        ("²", ""),
        ("1.0", ""),
        ("1,1", ""),
        ("0,2,0", ""),
        ("GPU-a,GPU-a-0000", ""),
        ("0,GPU-a", ""),
    ],
)
def test_setting_shows_the_devices_that_cuda_would_show(setting: str | None, expected: str) -> None:
    assert shown(WHOLE, setting) == expected


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, "axyz"),
        ("0", "a"),
        ("1", "xyz"),
        ("1,0", "xyza"),
        ("GPU-b", "xyz"),
        ("MIG-11-x", "x"),
        ("MIG-11", "x"),
        ("MIG-1", ""),
        ("MIG-2,MIG-12,MIG-11", "zyx"),
        ("MIG-2,MIG-3,MIG-11", "z"),
        ("MIG-GPU-b-0000/7/0", "x"),
        ("MIG-GPU-b-0000/8/1,MIG-GPU-b-0000/8/0", "zy"),
        ("MIG-GPU-b-0000/9/0", ""),
        ("MIG-GPU-a-0000/7/0", ""),
        ("MIG-GPU-b-0000/7", ""),
        ("MIG-11,MIG-GPU-b-0000/7/0", ""),
        ("MIG-11,1", ""),
        ("2", ""),
        ("0,2,1", "a"),
        ("GPU-e", ""),
    ],
)
def test_a_divided_card_stands_for_its_instances(setting: str | None, expected: str) -> None:
    assert shown(MIXED, setting) == expected


def test_devices_that_are_shown_are_numbered_anew_and_keep_the_rest() -> None:
    assert [(d.index, d.name, d.uuid, d.memory_bytes, d.free_bytes) for d in visible(MIXED, "MIG-2,0")] == [
        (0, "z", "MIG-2-z", 1003, 503),
        (1, "a", "GPU-a-0000", 1000, 500),
    ]


def test_no_device_is_shown_where_there_is_none() -> None:
    assert visible([], None) == visible([], "0") == visible([EMPTY], None) == []


def test_the_fastest_card_comes_first_unless_the_bus_decides() -> None:
    slow, fast, also_slow = (
        Card(device(name, place, f"GPU-{name}"), speed=speed)
        for place, (name, speed) in enumerate((("s", 1.0), ("f", 9.0), ("t", 1.0)))
    )
    cards = [slow, fast, also_slow]
    assert shown(in_cuda_order(cards, None), None) == shown(in_cuda_order(cards, "FASTEST_FIRST"), None) == "fst"
    assert shown(in_cuda_order(cards, "FASTEST_FIRST"), "0") == "f"
    assert shown(in_cuda_order(cards, "PCI_BUS_ID"), "0") == "s"
