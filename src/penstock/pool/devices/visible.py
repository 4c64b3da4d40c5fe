"""Which GPUs a process sees: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, read as CUDA reads them.

Pure: the list of cards comes from `pool/devices/nvml.py`, or from a test.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.core.records import Device

_OLD_INSTANCE = re.compile(r"MIG-(GPU-[0-9A-Za-z-]+)/([0-9]+)/([0-9]+)")


@dataclass(frozen=True)
class Instance:
    """A part of a GPU that was divided (MIG): a device of its own, with memory of its own.

    `gpu_instance` and `compute_instance` are its numbers on the card, by which drivers before 470 name it.
    """

    device: Device
    gpu_instance: int
    compute_instance: int


@dataclass(frozen=True)
class Card:
    """One GPU, as the driver describes it.

    Args:
        device: The whole of it; its index is its place on the bus.
        is_divided: Whether it is in MIG mode: then only its instances can be used, and there may be none.
        instances: Those that exist.
        speed: Only compared with others: by default CUDA numbers the fastest card first.
    """

    device: Device
    is_divided: bool = False
    instances: tuple[Instance, ...] = ()
    speed: float = 0.0

    @property
    def usable(self) -> tuple[Device, ...]:
        """The devices of this card that processes can use."""
        return tuple(each.device for each in self.instances) if self.is_divided else (self.device,)


def in_cuda_order(cards: Sequence[Card], order: str | None) -> list[Card]:
    """The cards as CUDA numbers them, for a value of CUDA_DEVICE_ORDER; those of one speed stay in bus order."""
    if order == "PCI_BUS_ID":
        return list(cards)
    return sorted(cards, key=lambda card: -card.speed)


def visible(cards: Sequence[Card], setting: str | None) -> list[Device]:
    """The devices that a value of CUDA_VISIBLE_DEVICES shows, in its order, numbered anew.

    As in CUDA, an entry that matches nothing, or more than one, hides itself and all after it; an empty value hides
    everything, and so does one that names a device twice. In CUDA a process sees one instance of one card. Here a card
    that is divided stands for all its instances, because each replica is a process and gets one of them.
    """
    if setting is None:
        return _numbered([device for card in cards for device in card.usable])
    shown: list[Device] = []
    for entry in (part.strip() for part in setting.split(",")):
        named = _named(cards, entry)
        if not named:
            break
        if any(device in shown for device in named):
            return []
        shown.extend(named)
    return _numbered(shown)


def _named(cards: Sequence[Card], entry: str) -> tuple[Device, ...]:
    """What one entry names: a number, a UUID or enough of its beginning; nothing where it is not clear."""
    if entry.isascii() and entry.isdigit():
        return cards[int(entry)].usable if int(entry) < len(cards) else ()
    if entry.startswith("GPU-"):
        return _only([card.usable for card in cards if _begins(card.device, entry)])
    instances = [(card, instance) for card in cards for instance in card.instances]
    if (old := _OLD_INSTANCE.fullmatch(entry)) is not None:
        place = (int(old[2]), int(old[3]))
        return _only(
            [
                (instance.device,)
                for card, instance in instances
                if _begins(card.device, old[1]) and (instance.gpu_instance, instance.compute_instance) == place
            ]
        )
    if entry.startswith("MIG-"):
        return _only([(instance.device,) for _, instance in instances if _begins(instance.device, entry)])
    return ()


def _begins(device: Device, entry: str) -> bool:
    return (device.uuid or "").startswith(entry)


def _only(matches: Sequence[tuple[Device, ...]]) -> tuple[Device, ...]:
    return matches[0] if len(matches) == 1 else ()


def _numbered(devices: Sequence[Device]) -> list[Device]:
    return [replace(device, index=index) for index, device in enumerate(devices)]
