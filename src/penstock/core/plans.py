"""Plans: a recipe and a placement that were found by measuring, and what else was tried. Plain JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from penstock import plugins
from penstock.core.agreement import MOST_BY_NOISE
from penstock.core.figures import duration, rate
from penstock.core.typed import check_types
from penstock.errors import UsageError
from penstock.options.records import PRECISIONS

PLAN_VERSION = 1
_LEAST_SAVED = 0.1
_MOST = {"batch_size": 1 << 24, "threads": 1 << 12, "replicas": 1 << 10, "lanes": 64}

_HEADINGS = (
    ("  runtime", "batch", "replicas", "in", "rows/s", "start", "memory", "differs"),
    ("", "rows", "×threads", "flight", "", "s", "MB", "by"),
)

_Setting = tuple[str, int, int, int, int]


@dataclass(frozen=True)
class Choice:
    """What to run.

    Args:
        runtime: What executes the model.
        batch_size: Rows a device sees in one step.
        threads: CPU threads of each replica.
        replicas: Replicas on each device.
        lanes: Batches in flight in each replica.
        precision: What it computes in.
        converted: The folder of the converted step; None where the runtime reads the model itself.
    """

    runtime: str
    batch_size: int
    threads: int
    replicas: int = 1
    lanes: int = 1
    precision: str = "model"
    converted: str | None = None

    @property
    def setting(self) -> _Setting:
        return (self.runtime, self.batch_size, self.threads, self.replicas, self.lanes)

    def __post_init__(self) -> None:
        """Plans are also read from files that people may have edited."""
        for name in ("batch_size", "threads", "replicas", "lanes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST[name]:
                raise ValueError(f"{name} is {value!r}, not a whole number from 1 to {_MOST[name]:,}")
        if not plugins.is_known(plugins.RUNTIMES, self.runtime) or self.precision not in PRECISIONS:
            raise ValueError(f"unknown runtime or precision: {self.runtime!r}, {self.precision!r}")
        if self.converted is not None and not isinstance(self.converted, str):
            raise ValueError(f"converted is {self.converted!r}, not the path of a folder")

    def told_from(self, other: Choice) -> str:
        """The runtime; where both choices have the same runtime, also the settings that differ.

        >>> Choice("onnx", 8, 1).told_from(Choice("onnx", 16, 1)), Choice("onnx", 8, 1).told_from(Choice("jax", 8, 1))
        ('onnx with batches of 8', 'onnx')
        """
        if self.runtime != other.runtime:
            return self.runtime
        words = {
            "batch_size": f"batches of {self.batch_size:,}",
            "replicas": f"{self.replicas} replica{'s' if self.replicas != 1 else ''}",
            "threads": f"{self.threads} thread{'s' if self.threads != 1 else ''}",
            "lanes": f"{self.lanes} in flight",
        }
        differing = [said for name, said in words.items() if getattr(self, name) != getattr(other, name)]
        return f"{self.runtime} with {', '.join(differing)}"

    def __str__(self) -> str:
        replicas = f"{self.replicas} replicas × " if self.replicas > 1 else ""
        precision = f", {self.precision}" if self.precision != "model" else ""
        threads = f"{self.threads} thread{'s' if self.threads != 1 else ''}"
        return f"{self.runtime}, batches of {self.batch_size:,}, {replicas}{threads}{precision}"


@dataclass(frozen=True)
class Trial:
    """One way to run the model: what a trial of it measured, or why it was rejected."""

    runtime: str
    batch_size: int = 0
    threads: int = 0
    replicas: int = 1
    lanes: int = 1
    rows_per_s: float = 0.0
    memory_bytes: int = 0
    start_s: float = 0.0
    difference: float | None = None
    """The largest difference to the model's own framework, as a share of an output's spread."""
    rejected: str | None = None
    allowed: float | None = None
    """The largest difference that was allowed there: the tolerance, or what the framework's noise allows."""

    @property
    def setting(self) -> _Setting:
        return (self.runtime, self.batch_size, self.threads, self.replicas, self.lanes)

    @property
    def is_eligible(self) -> bool:
        """Whether it was measured and may be chosen."""
        return self.rows_per_s > 0 and self.rejected is None


def own_of(trials: Iterable[Trial]) -> Trial | None:
    """The fastest trial of the model's own framework; None where that was not measured."""
    own = [trial for trial in trials if trial.is_eligible and trial.difference is None]
    return max(own, key=lambda trial: trial.rows_per_s, default=None)


@dataclass(frozen=True)
class Plan:
    """The choice, what was tried, and what it promises for one input.

    Args:
        choice: What to run.
        trials: Everything that was tried or rejected, in that order.
        devices: What it was measured on.
        rows: The rows of the input it was made for.
        rows_per_s: What the whole job is expected to do.
        seconds: What it is expected to take, start included.
        bound_by: `loading`, `copying`, `computing` or `writing`.
        advice: The same in plain words, and what would make the job faster.
        reason: Why it was chosen, in a sentence.
        search_s: How long the search took.
        budget_s: How long it was allowed to take.
        start_s: How long the choice takes to start.
        notes: Lines that are shown whenever a job runs with this plan.
        step: The step that it was found for: the model and what feeds it.
        key: The digest of that step with these devices and versions.
        is_cut_short: Whether there was no time to try everything.
        left: The runtimes that there was no time for.
        family: What its rows look like: `images`, `sequences` or `tables`.
        made_for: All facts behind `key`, by name: they show why a plan does not fit.
        noise: How far the framework's own answers are from the truth, as a share of an output's spread; None where this
            was not needed, and so not measured.
        noise_from: What these answers were compared with.
        parameters: How many parameters the model has; None where that is not known.
    """

    choice: Choice
    trials: tuple[Trial, ...] = ()
    devices: tuple[str, ...] = ()
    rows: int = 0
    rows_per_s: float = 0.0
    seconds: float = 0.0
    bound_by: str = ""
    advice: str = ""
    reason: str = ""
    search_s: float = 0.0
    budget_s: float = 0.0
    start_s: float = 0.0
    notes: tuple[str, ...] = ()
    step: str = ""
    key: str = ""
    is_cut_short: bool = False
    made_for: Mapping[str, Any] = field(default_factory=dict)
    noise: float | None = None
    noise_from: str = ""
    left: tuple[str, ...] = ()
    family: str = ""
    parameters: int | None = None

    def for_rows(self, rows: int) -> Plan:
        """The plan for another input of the same shape."""
        return replace(self, rows=rows, seconds=round(self.start_s + rows / max(self.rows_per_s, 1e-9), 2))

    def is_outgrown_by(self, rows: int) -> bool:
        """Whether the input limited the batch size, and `rows` is much larger than that input."""
        return 2 * self.choice.batch_size >= self.rows and rows > 2 * self.rows

    def rate_of(self, choice: Choice) -> float:
        """The rows a second that were measured for a choice; 0 where nothing was."""
        return max((trial.rows_per_s for trial in self.trials if trial.setting == choice.setting), default=0.0)

    def rate_with(self, rows_per_s: float) -> float:
        """About how many rows a second the whole job does where the model alone does `rows_per_s`."""
        share = self.rows_per_s / (self.rate_of(self.choice) or self.rows_per_s or 1.0)
        return rows_per_s * share if self.bound_by == "computing" else min(rows_per_s, self.rows_per_s)

    def done_in(self, trial: Trial) -> float:
        """About how many seconds the whole input takes with one of the trials, its start included."""
        return trial.start_s + self.rows / max(self.rate_with(trial.rows_per_s), 1e-9)

    def is_sooner_than(self, present: Choice, promised: float) -> bool:
        """Whether its choice would be done sooner, with its start, than the choice that runs already.

        The speed of the running choice is the one that was measured, or else `promised` by the warm-up (rows a second).
        """
        measured = self.rate_of(present)
        rows_per_s = self.rate_with(measured) if measured else promised
        return self.seconds < self.rows / max(rows_per_s, 1e-9)

    def soonest(self, runtimes: Collection[str]) -> Plan:
        """The plan with the choice, of these runtimes and its own, that is done soonest with its rows, start included.

        The choice changes only where this saves enough time: otherwise a job should run like a longer one.
        """
        ran = [each for each in self.trials if each.is_eligible]
        chosen = [each for each in ran if each.setting == self.choice.setting]
        others = [each for each in ran if each.runtime in runtimes]
        if not chosen or not others:
            return self
        present, best = min(map(self.done_in, chosen)), min(others, key=self.done_in)
        if self.done_in(best) > (1 - _LEAST_SAVED) * present:
            return self
        choice = Choice(*best.setting, precision=self.choice.precision)
        reason = f"{rate(best.rows_per_s)}, and with its start done sooner than {self.choice.told_from(choice)}"
        rows_per_s, start_s = round(self.rate_with(best.rows_per_s), 3), best.start_s
        return replace(self, choice=choice, rows_per_s=rows_per_s, start_s=start_s, reason=reason).for_rows(self.rows)

    @property
    def own(self) -> Trial | None:
        """The fastest trial of the model's own framework; None where that was not measured."""
        return own_of(self.trials)

    @property
    def faster(self) -> float:
        """How many times as fast as the model's own framework the choice is; at least 1."""
        return max(1.0, self.rate_of(self.choice) / self.own.rows_per_s) if self.own is not None else 1.0

    def gains(self) -> dict[str, float]:
        """How many times as fast as the model's own framework each other runtime was at its best."""
        own, best = self.own, dict[str, float]()
        for trial in self.trials:
            if own is not None and trial.is_eligible and trial.difference is not None:
                best[trial.runtime] = max(best.get(trial.runtime, 0.0), trial.rows_per_s / own.rows_per_s)
        return best

    def __str__(self) -> str:
        return in_words(self)

    def as_json(self) -> dict[str, Any]:
        return {"penstock_plan": PLAN_VERSION} | asdict(self)


def plan_from_json(document: Any, where: str) -> Plan:
    """The plan in a document.

    Raises:
        UsageError: It is not a plan, or of another version, or damaged.
    """
    version = document.get("penstock_plan") if isinstance(document, Mapping) else None
    if version != PLAN_VERSION:
        raise UsageError(
            "this is not a plan that this penstock reads",
            received=f"{where}: version {version}" if version is not None else where,
            allowed=f"what `penstock plan --json` prints, version {PLAN_VERSION}",
        )
    try:
        fields = {name: value for name, value in document.items() if name != "penstock_plan"}
        plan = Plan(
            **fields
            | {
                "choice": Choice(**fields["choice"]),
                "trials": tuple(Trial(**trial) for trial in fields["trials"]),
                "devices": tuple(fields["devices"]),
                "notes": tuple(fields["notes"]),
                "left": tuple(fields.get("left", ())),
            }
        )
        check_types(plan)
        _check_facts(plan)
        return plan
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            "the plan is damaged", received=f"{where}: {error}", hint="make it again: penstock plan … --json"
        ) from None


def _check_facts(plan: Plan) -> None:
    """Check what `check_types` does not."""
    hardware, versions = plan.made_for.get("hardware", [["cpu"]]), plan.made_for.get("versions", {})
    if not isinstance(versions, dict) or not isinstance(hardware, list) or not hardware:
        raise ValueError("made_for has no versions, or no hardware")
    if not isinstance(hardware[0], list) or not hardware[0]:
        raise ValueError(f"made_for has a device {hardware[0]!r:.60}")


def in_words(plan: Plan, *, has_every_size: bool = False) -> str:
    """The plan as text: a table of what was tried, what was rejected, and the choice below it.

    The table has the fastest size of every runtime or, with `has_every_size`, all sizes that were measured, in order.
    """
    measured = [trial for trial in plan.trials if trial.rows_per_s]
    shown = measured if has_every_size else _fastest_of_each(measured, plan)
    rows = [*_HEADINGS, *(_cells(trial, plan) for trial in shown)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rejected = [trial for trial in plan.trials if trial.rejected is not None]
    hidden = len(measured) - len(shown)
    start = min(plan.start_s, plan.seconds)
    return "\n".join(
        [
            *(_line(row, widths) for row in rows),
            *([f"  and {hidden} more measurements: --verbose shows them"] if hidden else []),
            *_differences_in_words(shown),
            *(f"  {trial.runtime}: {trial.rejected}" for trial in rejected),
            *_noise_in_words(plan),
            "",
            f"choice: {plan.choice}, {plan.choice.lanes} in flight" + (", converted" if plan.choice.converted else ""),
            f"on {', '.join(plan.devices)}",
            f"why: {plan.reason}",
            f"predicted: {plan.rows:,} rows in {duration(plan.seconds)}, {start:.1f} s of it to start, "
            f"then {rate(plan.rows_per_s)}",
            f"once it runs, {plan.advice}",
            f"the search took {plan.search_s:.0f} s of about {plan.budget_s:.0f}"
            + (f"; it was cut short{_left_in_words(plan)}" if plan.is_cut_short else ""),
        ]
    )


def _fastest_of_each(trials: Sequence[Trial], plan: Plan) -> list[Trial]:
    """The fastest size of every runtime and number of replicas, and the choice; the fastest first."""
    best: dict[tuple[str, int], Trial] = {}
    for trial in sorted(trials, key=lambda each: each.rows_per_s):
        if trial.is_eligible:
            best[trial.runtime, trial.replicas] = trial
    for trial in sorted(trials, key=lambda each: each.rows_per_s):
        if _is_chosen(trial, plan):
            best[trial.runtime, trial.replicas] = trial
    return sorted(best.values(), key=lambda each: -each.rows_per_s)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        cell.rjust(width) if place else cell.ljust(width)
        for place, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def _cells(trial: Trial, plan: Plan) -> tuple[str, ...]:
    return (
        f"{'►' if _is_chosen(trial, plan) else ' '} {trial.runtime}",
        f"{trial.batch_size:,}",
        f"{trial.replicas} × {trial.threads}",
        str(trial.lanes),
        rate(trial.rows_per_s).removesuffix(" rows/s"),
        f"{trial.start_s:.1f}",
        f"{trial.memory_bytes / 2**20:,.0f}",
        _difference(trial),
    )


def _difference(trial: Trial) -> str:
    """The largest difference to the model's own framework, as a share of an output's spread."""
    if trial.difference is None:
        return "reference"
    return f"{trial.difference:.1e}" if trial.difference else "nothing"


def _differences_in_words(trials: Sequence[Trial]) -> list[str]:
    """What the last column means, and what is allowed there."""
    allowed = sorted({f"{trial.allowed:.1e}" for trial in trials if trial.allowed is not None}, key=float)
    if not allowed:
        return []
    most = " to ".join(dict.fromkeys((allowed[0], allowed[-1])))
    return [
        "  differs by: the largest difference from the reference, as a share of an",
        f"  output's spread (largest less smallest value); allowed is {most}",
    ]


def left_out_in_words(plan: Plan) -> str:
    """The runtimes that were not measured, grouped by the reason: `jax, onnx (it died); torch (not installed: …)`."""
    measured = {trial.runtime for trial in plan.trials if trial.rows_per_s}
    why = {trial.runtime: trial.rejected for trial in plan.trials if trial.rejected and trial.runtime not in measured}
    reasons = dict.fromkeys(why.values())
    return "; ".join(f"{', '.join(name for name in why if why[name] == reason)} ({reason})" for reason in reasons)


def _left_in_words(plan: Plan) -> str:
    return f", without {', '.join(plan.left)}" if plan.left else ""


def _noise_in_words(plan: Plan) -> list[str]:
    if plan.noise is None:
        return []
    own = plan.own.runtime if plan.own is not None else "the model"
    line = f"  {own} itself is {plan.noise:.1e} of the spread away from {plan.noise_from}"
    return [f"{line}: others may differ by twice that, at most {MOST_BY_NOISE:.0e}"]


def _is_chosen(trial: Trial, plan: Plan) -> bool:
    return trial.setting == plan.choice.setting
