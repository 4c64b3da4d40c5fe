"""Outlook of a search: what it can be expected to find, and what that costs, before anything is measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.core import kinds
from penstock.core.tuning import Budget
from penstock.planning import store
from penstock.planning.candidates import Candidate

LIGHT_START_S = 1.0
"""Seconds to start a runtime that imports neither TensorFlow nor Keras (measured: 0.7 to 0.8 for small models)."""
LOOK_S = 1.0
_CONVERSION_S, _PARAMETERS_A_SECOND = 1.0, 8e6
"""About how long converting takes: the seconds for a small model (measured: 0.7 to 1.0), and how many parameters make
it a second longer."""
_LATER_JOBS = 2
"""How many later jobs are counted on to make up for the time of a search for them."""
_HOPE = 1.3
"""A runtime may be so many times as fast as expected: it is left out only where not even that would pay."""


@dataclass(frozen=True)
class Outlook:
    """What a search may try, the most promising first.

    Args:
        candidates: The runtimes that can be tried beside the model's own.
        gains: How many times as fast as the model's own framework each of them is expected to be.
        heavy_start_s: How long a runtime that imports a framework takes to start.
        conversion_s: How long converting the step takes; 0 where that is done.
        light_look_s: The seconds to start a runtime that imports no framework, compare its answers and look at it.
    """

    candidates: tuple[Candidate, ...]
    gains: Mapping[str, float]
    heavy_start_s: float
    conversion_s: float
    light_look_s: float = LIGHT_START_S + LOOK_S

    @classmethod
    def of(
        cls,
        candidates: Sequence[Candidate],
        gains: Mapping[str, float],
        heavy_start_s: float,
        parameters: int | None,
        folder: str,
    ) -> Outlook:
        """The outlook for these candidates, with the step of a model of so many parameters in `folder`."""
        rank = {candidate.runtime: place for place, candidate in enumerate(candidates)}
        ordered = sorted(candidates, key=lambda each: (-gains.get(each.runtime, 1.0), rank[each.runtime]))
        is_needed = any(candidate.is_converted for candidate in candidates) and not store.is_whole(folder)
        conversion_s = _CONVERSION_S + (parameters or 0) / _PARAMETERS_A_SECOND if is_needed else 0.0
        return cls(tuple(ordered), gains, heavy_start_s, conversion_s)

    def gain(self, runtime: str) -> float:
        return self.gains.get(runtime, 1.0)

    def cost_s(self, runtime: str) -> float:
        """Seconds to start a runtime, compare its answers and look at it once."""
        return self.light_look_s if kinds.runtime(runtime).reads_steps else self.heavy_start_s + LOOK_S

    def after(self, runtime: str, gain: float, took_s: float) -> Outlook:
        """The outlook after a look at `runtime`, which was `gain` times as fast as the own framework and took `took_s`.

        Other runtimes of the converted step are expected to take as long. Their gains for a model rise and fall
        together: the square root of the factor between the measured and the expected gain is expected of them, too.
        """
        if not kinds.runtime(runtime).reads_steps:
            return self
        share = math.sqrt(gain / self.gain(runtime))
        light = [each.runtime for each in self.candidates if kinds.runtime(each.runtime).reads_steps]
        gains = {**self.gains, **{name: share * self.gain(name) for name in light}}
        return replace(self, gains=gains, light_look_s=max(self.light_look_s, took_s))

    def budget(
        self, predicted_s: float, *, computed_s: float | None = None, faster: float = 1.0, first_s: float = 0.0
    ) -> Budget:
        """How long a search may take for a job of so many seconds.

        Args:
            predicted_s: How long the job would take without a search.
            computed_s: How much of that the model takes: another runtime can save no more; None for all of it.
            faster: How many times as fast as the model's own framework the job would be without a search.
            first_s: How long it takes until anything can be tried.
        """
        best = max(self.candidates, key=lambda each: self.gain(each.runtime), default=None)
        if best is None:
            return Budget.of(predicted_s)
        needed_s = first_s + self.cost_s(best.runtime) + (self.conversion_s if best.is_converted else 0.0)
        return Budget.of(predicted_s, self.gain(best.runtime) / faster, needed_s, computed_s)

    @property
    def has_light(self) -> bool:
        """Whether one of the candidates imports no framework."""
        return any(kinds.runtime(each.runtime).reads_steps for each in self.candidates)

    def for_the_next_s(self, predicted_s: float) -> float:
        """How long a job that is too short for a search of its own may search for later ones like it; 0: not at all.

        Those gain by it: a runtime that imports no framework starts seconds sooner.
        """
        if not self.has_light:
            return 0.0
        needed_s = LOOK_S + self.conversion_s + LIGHT_START_S + LOOK_S
        is_paid = needed_s <= _LATER_JOBS * (self.heavy_start_s - LIGHT_START_S)
        return needed_s if is_paid and needed_s <= predicted_s else 0.0

    def is_worth_a_look(self, runtime: str, own_rate: float, best_rate: float, rows: int) -> bool:
        """Whether a look at a runtime can save more than it takes, of a job that runs `best_rate` rows a second now."""
        hoped = _HOPE * self.gain(runtime) * own_rate
        return hoped > best_rate > 0 and rows / best_rate - rows / hoped > self.cost_s(runtime)


def expected_gains(model: str, own: str, device_kind: str, family: str) -> dict[str, float]:
    """How many times as fast runtimes usually are for such models; plans made on this machine count first."""
    usual = dict[str, float]()
    if (own, device_kind) == ("tensorflow", "cpu"):
        entries = kinds.runtimes().items()
        usual = {name: entry.usual_gain[family] for name, entry in entries if family in entry.usual_gain}
    return usual | store.found_before(model, own, device_kind, family)
