"""What goes into `ClusterState` and what comes out of it: events and commands, small records without behaviour.

A node has a name, which is that of its machine in the cluster, and a number, which the state gives to each life of it:
a node that was lost and started again has another number, and events with the old one are ignored. An attempt is one
try to build a piece on one node.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.node_kinds import Misfit
from penstock.errors import PenstockError
from penstock.storage.part_builder import PartPiece, StagedPart


class Event:
    """What happened."""


@dataclass(frozen=True)
class NodeJoined(Event):
    """A node of the cluster may be used: start an engine there."""

    name: str


@dataclass(frozen=True)
class NodeUp(Event):
    """The process of a node runs, and everything that the job needs is there. `kind` is what decides its recipe."""

    node: int
    kind: str


@dataclass(frozen=True)
class NodeUnfit(Event):
    """Something that the job needs is not there: the node is left out, or the job does not begin."""

    node: int
    misfits: tuple[Misfit, ...]


@dataclass(frozen=True)
class KindSettled(Event):
    """The answer to `Settle`: the manifest has the recipe of this kind."""

    node: int
    kind: str


@dataclass(frozen=True)
class NodeReady(Event):
    """The answer to `Open`: the engine of the node waits for pieces."""

    node: int


@dataclass(frozen=True)
class NodeLost(Event):
    """The process of a node is over, or cannot be reached, or the node left the cluster. It may still write.

    `how` in words. `is_gone`: the machine left the cluster, so that nothing can be started there again.
    """

    node: int
    how: str
    is_gone: bool = False


@dataclass(frozen=True)
class NodeFailed(Event):
    """A node cannot go on, or could not be opened: the error that it ended with."""

    node: int
    error: PenstockError


@dataclass(frozen=True)
class NodeBeat(Event):
    """A node has answered: how many rows of each of its attempts are predicted. If it hangs, these stay the same."""

    node: int
    rows: Mapping[str, int]


@dataclass(frozen=True)
class PieceStaged(Event):
    """A piece, or as much of it as was done before a stop, is written under temporary names."""

    node: int
    attempt: str
    staged: StagedPart


@dataclass(frozen=True)
class PieceCommitted(Event):
    """The answer to `Commit`: the part exists. `is_new` is false where another attempt was first."""

    attempt: str
    is_new: bool = True


@dataclass(frozen=True)
class PieceGivenBack(Event):
    """A node returns a piece and keeps nothing of it: it was withdrawn, or the run was stopped."""

    node: int
    attempt: str


@dataclass(frozen=True)
class PieceFailed(Event):
    """A piece could not be built, or what was staged of it is not what was written. The node goes on."""

    node: int
    attempt: str
    error: PenstockError


@dataclass(frozen=True)
class StopRequested(Event):
    """Begin no more pieces."""


@dataclass(frozen=True)
class Tick(Event):
    """Time has passed."""

    now: float


class Command:
    """What the driver has to do."""


@dataclass(frozen=True)
class StartNode(Command):
    """Start the process of a node, and check what is there; `NodeUp`, `NodeUnfit` or `NodeLost` follows."""

    node: int
    name: str


@dataclass(frozen=True)
class Settle(Command):
    """Have a node find the plan for its kind, and put it into the manifest; `KindSettled` follows."""

    node: int
    kind: str


@dataclass(frozen=True)
class Open(Command):
    """Have a node start its engine with the recipe of its kind; `NodeReady` follows."""

    node: int
    kind: str


@dataclass(frozen=True)
class Build(Command):
    """Have a node build a piece; `PieceStaged`, `PieceGivenBack` or `PieceFailed` follows."""

    node: int
    attempt: str
    piece: PartPiece


@dataclass(frozen=True)
class Withdraw(Command):
    """Have a node give up an attempt that is no longer needed. Later events of the attempt are ignored."""

    node: int
    attempt: str


@dataclass(frozen=True)
class StopNode(Command):
    """Have a node begin no more spans, and stage what it has of its pieces."""

    node: int


@dataclass(frozen=True)
class EndNode(Command):
    """Kill what is left of a node's process. No event follows."""

    node: int


@dataclass(frozen=True)
class Commit(Command):
    """Commit a part; `PieceCommitted` follows, or `PieceFailed` where its files are not as they were written."""

    node: int
    attempt: str
    staged: StagedPart


@dataclass(frozen=True)
class Discard(Command):
    """Remove what an attempt wrote. No event follows."""

    node: int
    attempt: str
    staged: StagedPart | None = None


@dataclass(frozen=True)
class Report(Command):
    """Write a line into the log; show it to the user too, where it `is_shown`."""

    line: str
    is_shown: bool = False


@dataclass(frozen=True)
class Raise(Command):
    """Give everything up."""

    error: PenstockError
