"""Which stage limits a job: loading, decoding, copying, computing, the postprocess function or writing. Pure.

Before a run, `predict` derives it from the speed of each stage by itself. During and after a run, `measured` derives it
from what the threads waited for. Both use the same words.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from penstock.core.records import Timings

LOADING, COPYING, COMPUTING, POSTPROCESS, WRITING = "loading", "copying", "computing", "postprocess", "writing"
DECODING = "decoding"
"""Decoding on the device; decoding in loaders is part of loading."""

WAITING = 0.25
"""A stage that waits for more than this share of the time is limited by the stage it waits for."""
_LITTLE = 1.1
_ENOUGH = 0.97
_FILLED = 0.75


@dataclass(frozen=True)
class Bound:
    """How fast the whole job is, which stage limits it, and what would help, in words."""

    rows_per_s: float
    by: str
    advice: str

    def __str__(self) -> str:
        return f"{self.by}-bound: {self.advice}" if self.advice else f"{self.by}-bound"


@dataclass(frozen=True)
class Rates:
    """How fast each stage is by itself.

    Args:
        compute_rows_per_s: The model at the chosen batch size, all devices together.
        cores: Cores of the machine; loading and writing share them, and on a CPU the model does.
        compute_cores: How many of them the model keeps busy at that speed; on a GPU, none or those that feed it.
        load_s: Seconds of one core to read and decode a row.
        write_s: Seconds that the one writing thread needs for a row.
        on_gpu: Whether the devices are GPUs.
        devices: How many there are.
        loaders: How many rows can be loaded at the same time; None where nothing but the cores limits it.
    """

    compute_rows_per_s: float
    cores: int
    compute_cores: float = 0.0
    load_s: float = 0.0
    write_s: float = 0.0
    on_gpu: bool = False
    devices: int = 1
    loaders: int | None = None

    def __post_init__(self) -> None:
        if self.compute_rows_per_s <= 0 or self.cores < 1 or self.devices < 1:
            raise ValueError(f"a job has a model that computes, on a device, and a core: {self}")

    def alone(self) -> dict[str, float]:
        """Rows a second of each stage if the others took no time."""
        loading_at_once = min(self.cores, self.loaders or self.cores)
        return {
            LOADING: loading_at_once / self.load_s if self.load_s > 0 else math.inf,
            COMPUTING: self.compute_rows_per_s,
            WRITING: 1.0 / self.write_s if self.write_s > 0 else math.inf,
        }

    def core_seconds(self) -> dict[str, float]:
        """The core seconds of one row, by stage."""
        return {
            LOADING: self.load_s,
            COMPUTING: self.compute_cores / self.compute_rows_per_s,
            WRITING: self.write_s,
        }

    @property
    def fills_the_cores(self) -> bool:
        """Whether the model uses all cores, and so would use more."""
        return not self.on_gpu and self.compute_cores >= _FILLED * self.cores

    def with_cores(self, cores: int) -> Rates:
        """The rates with another number of cores. A model that fills its cores would use the others as well."""
        if not self.fills_the_cores:
            return replace(self, cores=cores)
        times = cores / self.cores
        return replace(
            self,
            cores=cores,
            compute_rows_per_s=self.compute_rows_per_s * times,
            compute_cores=self.compute_cores * times,
        )

    def with_another_device(self) -> Rates:
        times = (self.devices + 1) / self.devices
        return replace(
            self,
            devices=self.devices + 1,
            compute_rows_per_s=self.compute_rows_per_s * times,
            compute_cores=self.compute_cores * times,
        )


def predict(rates: Rates) -> Bound:
    """Predict how fast the whole job will be, which stage limits it, and what would help.

    All stages run at the same time, so the slowest sets the pace; those that share the cores also wait for each other.

    >>> print(predict(Rates(10_000, cores=2, load_s=0.001, on_gpu=True)))
    loading-bound: 2 more cores would give 2×
    >>> print(predict(Rates(3_600, cores=2, load_s=0.001, on_gpu=True)))
    loading-bound: 2 more cores would give 1.8×, then computing bounds it
    >>> print(predict(Rates(1_000, cores=8, load_s=0.001, on_gpu=True)))
    computing-bound: a second device would give 2×
    >>> predict(Rates(100, cores=2, compute_cores=2, load_s=0.005))
    Bound(rows_per_s=80.0, by='computing', advice='2 more cores would give 2×')
    """
    rate, by = _pace(rates)
    return Bound(rate, by, _advice(rates, rate, by))


def _pace(rates: Rates, not_first: str = "") -> tuple[float, str]:
    """Rows a second, and the stage that limits them; of two equally slow stages, the one that is not `not_first`."""
    alone, core_seconds = rates.alone(), rates.core_seconds()
    slowest = min(alone, key=lambda stage: (alone[stage], stage == not_first))
    shared = sum(core_seconds.values())
    if shared and rates.cores / shared < alone[slowest]:
        return rates.cores / shared, max(core_seconds, key=lambda stage: core_seconds[stage])
    return alone[slowest], slowest


@dataclass(frozen=True)
class _Change:
    """A change in words, and the rates after it; `is_limit` where the rates are the most that it can give."""

    words: str
    rates: Rates
    is_limit: bool = False


def _advice(rates: Rates, rate: float, by: str) -> str:
    """The change that helps, by how much, and the next limit; two changes where one alone brings little."""
    change = _change(rates, rate, by)
    if change is None:
        return f"the model keeps {round(rates.compute_cores, 1):g} of {rates.cores} cores busy"
    words, is_limit = change.words, change.is_limit
    better, next_by = _pace(change.rates, not_first=by)
    if better < _LITTLE * rate and next_by != by:
        second = _change(change.rates, better, next_by)
        if second is not None:
            words, is_limit = f"{words} and {second.words}", is_limit or second.is_limit
            better, next_by = _pace(second.rates, not_first=by)
    then = f", then {next_by} bounds it" if next_by != by else ""
    return f"{words} would give {'up to ' if is_limit else ''}{better / rate:.2g}×{then}"


def _change(rates: Rates, rate: float, by: str) -> _Change | None:
    """The change that helps where stage `by` is the limit; None where more hardware would not be used."""
    if by == WRITING:
        words = "fewer outputs (--outputs, --top-k) or another --format"
        return _Change(words, replace(rates, write_s=0.0), is_limit=True)
    if rates.on_gpu and by != LOADING:
        return _Change("a second device" if rates.devices == 1 else "one more device", rates.with_another_device())
    if by == COMPUTING and not rates.fills_the_cores and rate == rates.compute_rows_per_s:
        return None
    if by == LOADING and rates.loaders is not None and rates.loaders < rates.cores:
        unbound = replace(rates, loaders=None)
        if _pace(unbound)[0] >= _LITTLE * rate:
            return _Change(f"--loaders {rates.cores}", unbound)
    rates = replace(rates, loaders=None)
    # At most twice the cores; fewer where another stage becomes the limit before that.
    best = _pace(rates.with_cores(2 * rates.cores))[0]
    tries = range(1, rates.cores)
    more = next((n for n in tries if _pace(rates.with_cores(rates.cores + n))[0] >= _ENOUGH * best), rates.cores)
    return _Change(f"{more} more core{'s' if more > 1 else ''}", rates.with_cores(rates.cores + more))


def measured(spent: Timings, elapsed_s: float, writer_full_s: float, postprocess_s: float = 0.0) -> Bound | None:
    """Which stage limited a run, or the last of it, by what threads waited for; None before anything has run.

    Args:
        spent: How the replicas' threads spent their time.
        elapsed_s: How long that was by the clock.
        writer_full_s: For how much of that time predictions waited because the writer had no room.
        postprocess_s: For how much of that time predictions waited for the function behind the model.

    >>> print(measured(Timings(compute=1.0, wait_for_data=3.0, rows=8), 2.0, 0.0))
    loading-bound: waiting for data took 75% of the time of the model's threads
    >>> print(measured(Timings(compute=1.0, wait_for_data=3.0, rows=8), 2.0, 1.0))
    writing-bound: waiting for the writer took 50% of the time by the clock
    """
    handing = spent.hand_over + spent.wait_for_slot
    lanes = spent.compute + spent.wait_for_data + handing
    if lanes <= 0 or elapsed_s <= 0:
        return None
    rate = spent.rows / elapsed_s
    # These come first: while the stages behind the replicas have no room, nothing is fetched and the replicas wait too.
    waits = [(writer_full_s, WRITING, "the writer"), (postprocess_s, POSTPROCESS, "the function behind the model")]
    waited_s, by, what = max(waits)
    if waited_s > WAITING * elapsed_s:
        return Bound(rate, by, f"waiting for {what} took {min(1.0, waited_s / elapsed_s):.0%} of the time by the clock")
    if spent.wait_for_data > WAITING * lanes:
        # If both loaders and the model wait, they wait for the decoder between them.
        is_between = spent.decode > 0 and spent.wait_for_room > WAITING * (spent.read + spent.wait_for_room)
        by, what = (DECODING, "the device's decoder") if is_between else (LOADING, "data")
        return Bound(
            rate, by, f"waiting for {what} took {spent.wait_for_data / lanes:.0%} of the time of the model's threads"
        )
    copying = min(spent.copy, spent.compute) + handing
    if copying > lanes / 2:
        return Bound(rate, COPYING, f"copying took {copying / lanes:.0%} of the time of the model's threads")
    computing = lanes - copying - spent.wait_for_data
    return Bound(rate, COMPUTING, f"computing took {computing / lanes:.0%} of the time of the model's threads")
