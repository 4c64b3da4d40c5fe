"""What goes into `RunState` and what comes out of it: events and commands, small records without behaviour.

An event says what happened; a command says what the engine has to do. `ReplicaSaid` carries the message of a replica as
it is (`core.messages`), and `Send` carries the message for a replica.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from penstock.core import messages
from penstock.core.job import Job
from penstock.core.records import Device, Placement, Result, Span, Timings
from penstock.core.scheduler import NotYet
from penstock.engines.memory_watch import ReplicaEnd


class Event:
    """What happened."""


@dataclass(frozen=True)
class DeviceJoined(Event):
    """A device may be used: start a replica there."""

    device: Device


@dataclass(frozen=True)
class JobTaken(Event):
    """Every replica is to be prepared for this job, those that start later too."""

    job: Job
    placement: Placement
    sample: Span
    asked: messages.Asked = messages.NOTHING_ASKED


@dataclass(frozen=True)
class ProbeAsked(Event):
    """Ask `replicas` replicas at once, and start those that are missing; None asks only the first one."""

    message: messages.Probe
    replicas: int | None = None


@dataclass(frozen=True)
class RunBegan(Event):
    """Predict these spans.

    Args:
        spans: The spans, in order; pulled as there is room.
        depth: How many spans a replica holds at once.
        most_replicas: How many replicas have work, as far as that is known.
        ahead: How many pulled spans may wait to be handed out; None for the whole window.
        is_ordered: Whether results leave in the order of the spans, or as they are finished.
    """

    spans: Iterable[Span | NotYet]
    depth: int
    most_replicas: int
    ahead: int | None = None
    is_ordered: bool = True


@dataclass(frozen=True)
class ReplicaSaid(Event):
    """A message of a replica that is not about data."""

    replica: int
    message: messages.ReplicaReport


@dataclass(frozen=True)
class SpanFinished(Event):
    """A replica has delivered a whole span."""

    replica: int
    result: Result
    timings: Timings


@dataclass(frozen=True)
class ReplicaDied(Event):
    """The process of a replica is over, or it `failed`: it says that it cannot go on."""

    replica: int
    end: ReplicaEnd
    failed: messages.Failed | None = None


@dataclass(frozen=True)
class BatchLoaded(Event):
    """A loader process has sent something for the replica of a span."""

    message: messages.LoadedData


@dataclass(frozen=True)
class SpansWithdrawn(Event):
    """The answer to `WithdrawSpans`: spans that no loader process had begun."""

    spans: tuple[int, ...]


@dataclass(frozen=True)
class SpansArrived(Event):
    """The spans of the run, which come from outside, have changed: there are more, or the end is known."""


@dataclass(frozen=True)
class StopRequested(Event):
    """Begin no more spans."""


@dataclass(frozen=True)
class Tick(Event):
    """Time has passed. The other figures are those of all loader processes so far.

    `signs`: for every replica, a value that changes when it makes progress. `waiting`: replicas that run no batch just
    now. `stopped`: replicas that were stopped (SIGSTOP).
    """

    now: float
    loader_busy_s: float = 0.0
    loader_wait_s: float = 0.0
    has_new_loaders: bool = False
    signs: Mapping[int, Hashable] = field(default_factory=dict)
    waiting: frozenset[int] = frozenset()
    stopped: frozenset[int] = frozenset()


class Command:
    """What the engine has to do."""


@dataclass(frozen=True)
class StartReplica(Command):
    """Start a replica on a device and have it load the model."""

    replica: int
    device: Device


@dataclass(frozen=True)
class CloseReplica(Command):
    """End what is left of a replica and free what it used."""

    replica: int


@dataclass(frozen=True)
class EndHung(Command):
    """Kill a replica that has made no progress for `seconds`; its death is an event of its own."""

    replica: int
    seconds: float


@dataclass(frozen=True)
class Send(Command):
    """Send a message to a replica. A replica that is gone cannot take it; its death is an event of its own."""

    replica: int
    message: messages.Prepare | messages.Probe | messages.Work | messages.Limit | messages.Drain | messages.LoadedData


@dataclass(frozen=True)
class ReadSpan(Command):
    """Have a loader process load a span."""

    span: Span


@dataclass(frozen=True)
class WithdrawSpans(Command):
    """Take back the spans that no loader process has begun; `SpansWithdrawn` follows."""


@dataclass(frozen=True)
class FreeSlot(Command):
    """No replica reads this slot of the loader processes any more."""

    slot: int


@dataclass(frozen=True)
class ResizeLoaders(Command):
    """Have so many loader processes."""

    count: int


@dataclass(frozen=True)
class Yield(Command):
    """The turn of this result has come."""

    result: Result


@dataclass(frozen=True)
class Report(Command):
    """Write a line into the log; show it to the user too, where it `is_shown`."""

    line: str
    is_shown: bool = False


@dataclass(frozen=True)
class Raise(Command):
    """Give everything up."""

    error: Exception
