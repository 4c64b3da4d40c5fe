"""A machine with several NUMA nodes, as the kernel and NVIDIA's driver show it: tests run on none of that kind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.core.records import Device
from penstock.pool.devices import near, nvml

OWN_CORES = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
NEEDS_TWO_CORES = pytest.mark.skipif(len(OWN_CORES) < 2, reason="needs two cores that a process can be bound to")


def gpu(letter: str, index: int = 0) -> Device:
    return Device("gpu", index, "a GPU", f"GPU-{letter}")


class NumaMachine:
    """A folder that looks like sysfs, and a driver that knows the cards in it.

    Args:
        monkeypatch: Puts both in the place of those of this machine.
        folder: Where the files lie.
        nodes: The cores of each node, as the kernel lists them; empty for a node that has memory only.
        cards: Letter of a GPU to the node that the kernel tells, as text.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, nodes: Mapping[int, str], cards: Mapping[str, str]
    ) -> None:
        self._folder = folder
        self._places = {f"GPU-{letter}": f"{place + 0xA:02X}:00.0" for place, letter in enumerate(cards)}
        self.write("devices/system/node/has_cpu", ",".join(str(node) for node, cores in nodes.items() if cores))
        for node, cores in nodes.items():
            self.write(f"devices/system/node/node{node}/cpulist", cores)
        for place, node_of_card in zip(self._places.values(), cards.values(), strict=True):
            self.write(f"bus/pci/devices/0000:{place.lower()}/numa_node", node_of_card)
        monkeypatch.setattr(near, "_SYS", str(folder))
        monkeypatch.setattr(nvml, "_library", self._library)

    def write(self, path: str, content: str) -> None:
        file = self._folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content + "\n")

    @contextlib.contextmanager
    def _library(self) -> Iterator[Any]:
        """The calls of NVIDIA's library that ask for a card's place; a part of a card is called `MIG-` and its name."""

        class Refused(Exception):
            pass

        def by_uuid(uuid: str) -> str:
            if uuid.removeprefix("MIG-") not in self._places:
                raise Refused
            return uuid

        yield SimpleNamespace(
            NVMLError=Refused,
            nvmlDeviceGetHandleByUUID=by_uuid,
            nvmlDeviceGetDeviceHandleFromMigDeviceHandle=lambda handle: handle.removeprefix("MIG-"),
            nvmlDeviceGetPciInfo=lambda handle: SimpleNamespace(busId=f"00000000:{self._places[handle]}".encode()),
        )
