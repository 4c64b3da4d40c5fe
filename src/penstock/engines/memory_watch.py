"""The memory of the devices of a run, and what is tried when a replica died because it had too little. Pure.

A replica that catches its own shortage goes on by itself (`pool.guard`) and only reports it. One that dies leaves a
notice of the batch that it was at. Its successor begins with half of those rows, one batch at a time, so that the next
notice is certain. A row that kills two replicas when it is run alone is a failed row.

Not every process that dies of SIGKILL had too little memory. The kernel counts the processes that it killed for lack of
memory; where that count did not grow, the batch is run again as it was, and only a second death at it counts. So a
replica that a user killed changes no bits.
"""

import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from penstock.core.memory import Ceilings, speaks_of_memory
from penstock.core.protocols import ShowLine
from penstock.core.records import Device, RowFailure, Shortage, Span
from penstock.errors import WorkersDied
from penstock.pool.processes.board import Notice

_DEATHS_OF_A_ROW = 2
_MOST_POISONED_AT_FIRST = 2
WARM_UP = -1
"""The span index of the first rows, with which replicas are prepared."""
_ALL_ROWS = 1 << 62
"""More than the bytes of any row: `Ceilings.most` then takes all ceilings into account."""


class Verdict(Enum):
    """What a death means for the run."""

    LESS_WAS_TRIED = auto()
    """The next replica gets smaller batches, or leaves out a row: this death does not count."""
    SUSPICIOUS = auto()
    """The cause is not certain yet: the same rows are run again."""
    FEWER_ARE_SUSPECTED = auto()
    """The search for a bad row got further by this death: it does not count."""
    ORDINARY = auto()
    HOPELESS = auto()
    """Another replica would die as well."""


@dataclass(frozen=True)
class ReplicaEnd:
    """How a replica ended, as the engine sees it.

    Args:
        pid: Its process.
        how: How it ended, in words.
        code: Its exit code, negative for a signal; None where it only gave up.
        words: The end of the log.
        notice: The batch that it was at.
        oom_kills: How many processes the kernel has killed for lack of memory so far.
        hung_s: How long it had made no progress, where it was killed for that.
        was_stopped: Whether it had been stopped (SIGSTOP) before: then its end says nothing about the rows.
    """

    pid: int
    how: str
    code: int | None = None
    words: str = ""
    notice: Notice | None = None
    oom_kills: int = 0
    hung_s: float | None = None
    was_stopped: bool = False

    @property
    def may_be_memory(self) -> bool:
        return self.hung_s is None and (self.code == -signal.SIGKILL or speaks_of_memory(self.words))


@dataclass(frozen=True)
class Death:
    """The end of a replica, and what it had: its device, its spans, and whether it had run a batch of the job."""

    device: Device
    end: ReplicaEnd
    spans: Sequence[Span]
    batch_size: int
    is_prepared: bool

    @property
    def span_index(self) -> int:
        """The span in which it died."""
        row = self.end.notice.first_row if self.end.notice is not None else -1
        return next((span.index for span in self.spans if span.start <= row < span.stop), WARM_UP)

    def as_error(self, when: str) -> WorkersDied:
        last = self.end.words.rpartition("\n")[2][:300]
        if self.end.hung_s is not None:
            option = "--hang-timeout" if self.is_prepared else "--start-timeout"
            hint = f"{option} SECONDS gives it longer"
        elif self.end.may_be_memory:
            hint = "a smaller --batch-size needs less memory"
        else:
            hint = "another --runtime may not crash"
        return WorkersDied(
            f"a replica on {self.device} {'died' if self.end.hung_s is None else 'hung'} while {when}",
            received=f"process {self.end.pid} {self.end.how}; its last words: {last or 'none'}",
            hint=f"{hint}; --verbose shows what the framework says",
        )


@dataclass
class _Memory:
    """What is known of one memory. `before` are the ceilings from before a replica died, by the bytes of a row."""

    ceilings: Ceilings = field(default_factory=Ceilings)
    is_alone: bool = False
    before: dict[int, int | None] = field(default_factory=dict)


class MemoryWatch:
    """The memory of all devices of a run.

    Args:
        show: Shows a line to the user.
        oom_kills: How many processes the kernel had killed for lack of memory when the run began.
        has_address_limit: Whether processes may hold only so much memory: then one that crashes is suspected.
    """

    def __init__(self, show: ShowLine, oom_kills: int = 0, *, has_address_limit: bool = False) -> None:
        self._show = show
        self._has_address_limit = has_address_limit
        self.shortages: Counter[Shortage] = Counter()
        self._memories: dict[str, _Memory] = {}
        self._poisoned: dict[int, RowFailure] = {}
        self._deaths_at: Counter[int] = Counter()
        self._suspected: set[int] = set()
        self._kills = oom_kills
        self._has_progressed = True

    def ceilings(self, device: Device) -> Mapping[int, int]:
        """The most rows of a batch, by the bytes of a row."""
        return dict(self._of(device).ceilings.known)

    def is_alone(self, device: Device) -> bool:
        """Whether a replica there runs one batch at a time."""
        return self._of(device).is_alone

    def shares_memory(self, one: Device, other: Device) -> bool:
        return _name(one) == _name(other)

    def poisoned(self, span: Span) -> tuple[RowFailure, ...]:
        """The rows of a span at which replicas died."""
        return tuple(failure for row, failure in self._poisoned.items() if span.start <= row < span.stop)

    def note_shortage(self, device: Device, shortage: Shortage, ceilings: Mapping[int, int]) -> None:
        """A replica ran short and went on. Lower ceilings that others found on the same device stay."""
        known = self._of(device).ceilings
        for row_bytes, most in ceilings.items():
            known.lower(row_bytes, most)
        self._record(shortage)

    def finished(self, span_index: int) -> None:
        """A span was predicted: whatever happened in it is over."""
        self._has_progressed = True
        self._suspected.discard(span_index)

    def judge(self, death: Death) -> Verdict:
        """What the death of a replica means. It also settles what the next replica on its device gets."""
        verdict = self._suspect(death)
        memory, notice = self._of(death.device), death.end.notice
        if notice is None:
            return self._judge_without_notice(death, memory, verdict)
        if verdict is not Verdict.LESS_WAS_TRIED:
            return verdict
        was_alone, memory.is_alone = memory.is_alone, True
        if notice.rows > 1:
            memory.before.setdefault(notice.row_bytes, memory.ceilings.known.get(notice.row_bytes))
            memory.ceilings.lower(notice.row_bytes, notice.rows // 2)
            self._record(Shortage(str(death.device), notice.rows, notice.rows // 2))
        elif not was_alone:
            self._record(Shortage(str(death.device), 1, 1, at_once=1))
        else:
            return self._judge_row(death, notice, memory)
        return Verdict.LESS_WAS_TRIED

    def _judge_without_notice(self, death: Death, memory: _Memory, verdict: Verdict) -> Verdict:
        """No batch was running: leftovers of the last one, or the reading, took the memory. Less may help."""
        before = memory.ceilings.most(_ALL_ROWS, death.batch_size)
        if verdict is not Verdict.LESS_WAS_TRIED or before <= 1:
            return Verdict.ORDINARY
        memory.is_alone = True
        memory.ceilings.lower(0, before // 2)
        self._record(Shortage(str(death.device), before, before // 2))
        return verdict

    def _suspect(self, death: Death) -> Verdict:
        """Whether lack of memory caused a death."""
        end, before = death.end, self._kills
        self._kills = end.oom_kills
        if end.code == -signal.SIGKILL:
            is_sure, is_likely = end.oom_kills > before, True
        else:
            is_sure, is_likely = speaks_of_memory(end.words), self._has_address_limit and (end.code or 0) < 0
        if is_sure:
            return Verdict.LESS_WAS_TRIED
        if not is_likely or end.notice is None:
            return Verdict.ORDINARY
        is_second = death.span_index in self._suspected
        self._suspected.add(death.span_index)
        return Verdict.LESS_WAS_TRIED if is_second else Verdict.SUSPICIOUS

    def _judge_row(self, death: Death, notice: Notice, memory: _Memory) -> Verdict:
        """A replica died at one row, with nothing else under way."""
        row = notice.first_row
        self._deaths_at[row] += 1
        if row in self._poisoned:
            return Verdict.ORDINARY
        if not death.is_prepared and len(self._poisoned) >= _MOST_POISONED_AT_FIRST:
            return Verdict.ORDINARY  # these rows are not to blame: no row fits
        if self._deaths_at[row] < _DEATHS_OF_A_ROW:
            return Verdict.SUSPICIOUS
        reason = f"does not fit into the memory by itself: the process that predicted it {death.end.how}"
        self._poisoned[row] = RowFailure(row, "", "predict", "OutOfMemory", reason)
        self._record(Shortage(str(death.device), 1, 0))
        if self._has_progressed:
            # This row was the cause: the ceilings that it forced do not hold for others, unless bad rows follow each
            # other.
            for row_bytes, most in memory.before.items():
                memory.ceilings.put_back(row_bytes, most)
            memory.before.clear()
            memory.is_alone = False
        self._has_progressed = False
        return Verdict.LESS_WAS_TRIED

    def _of(self, device: Device) -> _Memory:
        return self._memories.setdefault(_name(device), _Memory())

    def _record(self, shortage: Shortage) -> None:
        """One line for each new ceiling; the others are counted."""
        self.shortages[shortage] += 1
        if self.shortages[shortage] == 1:
            self._show(str(shortage))


def _name(device: Device) -> str:
    """All replicas on a CPU have one memory."""
    return "cpu" if device.kind == "cpu" else device.uuid or str(device)
