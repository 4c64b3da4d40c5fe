"""Patterns in the names of columns: which belong together, which are missing, and which are never inputs."""

import difflib
import itertools
import re
from collections.abc import Iterable, Sequence

_NUMBER = re.compile(r"\d+")
_NO_FEATURES = frozenset(
    ("label", "labels", "target", "targets", "class", "classes", "y", "id", "ids", "index", "idx", "row")
)


def is_no_feature(name: str) -> bool:
    """Whether a column of this name holds what people predict, or what identifies a row: never guessed as an input.

    >>> [is_no_feature(name) for name in ("Label", "y_1", "user_id", "f0", "age")]
    [True, True, True, False, False]
    """
    letters = re.sub(r"[\W\d_]+", "", name.lower())
    return letters in _NO_FEATURES or name.lower().endswith("_id")


def pattern_of(name: str) -> str:
    """A name with its numbers left open.

    >>> pattern_of("pixel_0_12")
    'pixel_#_#'
    """
    return _NUMBER.sub("#", name)


def families(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Names that differ in their numbers only, each family in the order given; names without a number have none.

    >>> families(["f0", "age", "f1", "g7"])
    [('f0', 'f1'), ('g7',)]
    """
    by_pattern: dict[str, list[str]] = {}
    for name in names:
        if _NUMBER.search(name):
            by_pattern.setdefault(pattern_of(name), []).append(name)
    return [tuple(members) for members in by_pattern.values()]


def is_in_order(family: Sequence[str]) -> bool:
    """Whether the numbers of a family grow.

    >>> is_in_order(["f0", "f2", "f10"]), is_in_order(["f0", "f10", "f2"])
    (True, False)
    """
    numbers = [_numbers(name) for name in family]
    return all(before < after for before, after in itertools.pairwise(numbers))


def gap_in(family: Sequence[str]) -> tuple[str, str] | None:
    """Two neighbouring names of a family between which a number is missing; None where none is.

    >>> gap_in(["f0", "f1", "f3"]), gap_in(["f0", "f1", "f2"])
    (('f1', 'f3'), None)
    """
    if pattern_of(family[0]).count("#") != 1:
        return None
    pairs = itertools.pairwise(family)
    return next((pair for pair in pairs if _numbers(pair[1])[0] != _numbers(pair[0])[0] + 1), None)


def missing_from(family: Sequence[str], needed: int) -> list[str]:
    """The names that a family of `needed` names lacks, as far as their numbers show this.

    >>> missing_from(["f00", "f01", "f03"], 4)
    ['f02']
    """
    pattern = pattern_of(family[0])
    if pattern.count("#") != 1:
        return []
    there = {_numbers(name)[0] for name in family}
    width = min(len(_NUMBER.findall(name)[0]) for name in family)
    first = 0 if needed > max(there) else 1 if needed == max(there) else min(there)
    lacking = [number for number in range(first, first + needed) if number not in there]
    return [pattern.replace("#", f"{number:0{width}d}") for number in lacking] if len(there) < needed else []


def closest(name: str, names: Sequence[str]) -> str | None:
    """The name that is most like this one, if one is."""
    return next(iter(difflib.get_close_matches(name, names, n=1)), None)


def _numbers(name: str) -> list[int]:
    return [int(number) for number in _NUMBER.findall(name)]
