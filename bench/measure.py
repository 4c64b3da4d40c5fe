"""Interleaved repeats: both sides meet the same disturbances of the machine."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import TypeVar

Result = TypeVar("Result")


def interleave(sides: Mapping[str, Callable[[], Result]], repeats: int) -> dict[str, list[Result]]:
    """Call every side in turn, `repeats` times over, and return each side's results."""
    results: dict[str, list[Result]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, call in sides.items():
            # One side must not pay for writing back the pages that the other one left dirty.
            os.sync()
            results[name].append(call())
    return results


@contextmanager
def only_cores(count: int) -> Iterator[None]:
    """Keep this process, and what it starts meanwhile, to so many cores: every side gets the same ones."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def median_of(results: list[Result], value: Callable[[Result], float]) -> float:
    """Return the median of one number of each result."""
    return median(value(result) for result in results)
