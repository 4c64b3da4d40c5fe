"""Kinds of nodes: machines of one kind run one recipe, and give the same bits."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.core.figures import counted
from penstock.core.records import Device
from penstock.errors import DeviceError, PenstockError


def kind_of(device: Device, cores: int) -> str:
    """The kind of this machine with this device, in words.

    The order in which a CPU sums depends on its registers and threads. `cores` are those that may be used.
    """
    if device.kind == "cpu":
        return f"cpu {device.name}, {cores} cores, {platform.machine()}"
    return f"{device.kind} {device.name}, {platform.machine()}"


@dataclass(frozen=True)
class Misfit:
    """Something that a job needs and a node does not have.

    Args:
        what: What it is about: `Python`, `output`, `model`.
        found: What the node has.
        wanted: What the job needs.
        error: What the job ends with.
        parcel: The digest of what would mend it, where the driver sends that.
    """

    what: str
    found: str
    wanted: str
    error: type[PenstockError] = DeviceError
    parcel: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.found} (wanted: {self.wanted})"


def misfits_told(misfits: Mapping[str, Sequence[Misfit]], num_nodes: int) -> PenstockError:
    """The error for nodes that do not fit, by name: one table of all of it."""
    lines = [("node", "what", "found", "wanted")]
    lines += [(node, each.what, each.found, each.wanted) for node, some in misfits.items() for each in some]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    table = ["  ".join((*map(str.ljust, line, widths), line[3])) for line in lines]
    first = next(each for some in misfits.values() for each in some)
    return first.error(
        f"{len(misfits)} of {counted(num_nodes, 'node')} {'does' if len(misfits) == 1 else 'do'} not fit the job",
        received="\n  ".join(("", *table)),
        hint="mend these nodes, or leave them out with --resources",
    )
