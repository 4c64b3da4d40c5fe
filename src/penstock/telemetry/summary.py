"""One summary at the end of a run."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.core.figures import counted, on_nodes, rate
from penstock.telemetry.notebook import table

_LEAST_SHARE = 0.005
_LONGEST_NAME = 24
"""The most characters before a line's first colon that are taken for the line's name."""


def recipe_in_words(recipe: Mapping[str, Any]) -> str:
    """A recipe in words, without buckets, which have their own line, and without usual values, such as no state."""
    return ", ".join(
        f"{name} {value}"
        for name, value in recipe.items()
        if name not in ("buckets", "is_padded") and (name, value) not in (("state", "none"), ("engine_share", 0.0))
    )


@dataclass(frozen=True)
class Summary:
    """What a run did.

    `rows` and `failed` count the whole job; `rows_before` of them were there before this run began, and `not_finite` of
    `rows` have a prediction that is NaN or infinite. `failed_on` has the nodes of a cluster on which rows failed, with
    how many. `seconds` is the whole call, `start_seconds` the time until the first replica was ready (`search_seconds`
    of that for finding the plan, where it was not known before), `run_seconds` the rest until the last commit;
    `rows_per_s` is this run's rows over `run_seconds`. A retry ran `retried` rows again, those that had failed.
    `loaders` says how many loader processes there were, `padding` which share of the values was padding, where rows
    differ in size. `bottleneck` is what the threads waited for, `plan` the reason for the plan, `memory_events` where
    memory ran out and what was done about it, and `trace` the file of the trace.
    """

    output: str
    rows: int
    failed: int
    parts: int
    seconds: float
    start_seconds: float
    run_seconds: float
    rows_per_s: float
    search_seconds: float = 0.0
    not_finite: int = 0
    failed_on: dict[str, int] = field(default_factory=dict)
    rows_before: int = 0
    devices: tuple[str, ...] = ()
    recipe: dict[str, Any] = field(default_factory=dict)
    where: dict[str, float] = field(default_factory=dict)
    bottleneck: str = ""
    retried: int = 0
    loaders: str | None = None
    padding: float | None = None
    plan: str = ""
    memory_events: tuple[str, ...] = ()
    trace: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"{counted(self.rows, 'row')} in {counted(self.parts, 'part')} in {self.output}",
        ]
        if self.failed:
            where = f"; {on_nodes(self.failed_on)}" if self.failed_on else ""
            lines.append(
                f"{counted(self.failed, 'row')} failed: see {self.output.rstrip('/')}/_penstock/failures.jsonl{where}"
            )
        if self.retried:
            lines.append(f"{self.retried - self.failed:,} of {counted(self.retried, 'failed row')} have answers now")
        if self.not_finite:
            rows = "row has" if self.not_finite == 1 else "rows have"
            lines.append(f"{self.not_finite:,} {rows} a prediction that is NaN or infinite")
        if self.rows_before and not self.run_seconds:
            lines.append("the job was finished already; nothing was redone")
            return "\n".join(lines)
        if self.rows_before:
            lines.append(f"{counted(self.rows_before, 'row')} of the input were done before this run")
        speed = f", then {rate(self.rows_per_s)}" if not self.retried else ""  # of a few rows it says nothing
        searched = f" ({self.search_seconds:.1f} s of that to find a plan)" if self.search_seconds else ""
        lines.append(f"{self.seconds:.1f} s: {self.start_seconds:.1f} s to start{searched}{speed}")
        lines.append(f"{', '.join(self.devices)}; {recipe_in_words(self.recipe)}")
        if self.plan:
            lines.append(f"plan: {self.plan}")
        if self.recipe.get("buckets") and not self.recipe.get("is_padded", True):
            lines.append("no padding: every batch held rows of one size")
        elif self.padding is not None:
            buckets = {name: " by ".join(map(str, sizes)) for name, sizes in self.recipe["buckets"].items()}
            lines.append(f"padding: {self.padding:.0%} of the values; sizes {buckets}")
        if self.loaders is not None:
            lines.append(f"loader processes: {self.loaders}")
        if self.memory_events:
            times = "once" if len(self.memory_events) == 1 else f"{len(self.memory_events)} times"
            lines.append(f"out of memory {times}, no row lost: {'; '.join(self.memory_events)}")
        spent = sum(self.where.values()) or 1.0
        shares = [
            f"{name.replace('_', ' ')} {value / spent:.0%}"
            for name, value in self.where.items()
            if value >= _LEAST_SHARE * spent
        ]
        lines.append("time of all threads: " + ", ".join(shares))
        if self.bottleneck:
            lines.append(self.bottleneck)
        if self.trace is not None:
            lines.append(f"trace: {self.trace}; https://ui.perfetto.dev opens it")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The summary as a notebook shows it: what it says in lines, as a table."""
        heading, *lines = str(self).splitlines()
        rows: list[tuple[str, str]] = []
        for text in lines:
            name, colon, value = text.partition(": ")
            is_named = bool(colon) and len(name) <= _LONGEST_NAME
            rows.append((name, value) if is_named else ("", text))
        return table(heading, rows)
