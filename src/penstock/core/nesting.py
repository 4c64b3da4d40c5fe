"""The structure in which a caller gave the inputs of a model: arrays in lists, tuples and dicts inside each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

DENSE, RAGGED, SPARSE = "dense", "ragged", "sparse"

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class ArrayLeaf:
    """An array. `dtype` is set where any array is ragged: such inputs must be declared, and the model may lack that."""

    kind: str = DENSE
    dtype: str = ""


@dataclass(frozen=True)
class Branch:
    """A `list`, `tuple` or `dict`."""

    kind: str
    keys: tuple[str | int, ...]
    inside: tuple[Nesting, ...]


Nesting: TypeAlias = "ArrayLeaf | Branch"


def flatten(value: Any, is_branch: Callable[[Any], bool], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every array in a structure, and the keys that lead to it.

    >>> list(flatten({"x": [1, 2], "y": 3}, lambda value: not isinstance(value, int)))
    [(('x', 0), 1), (('x', 1), 2), (('y',), 3)]
    """
    if not is_branch(value):
        yield path, value
        return
    for key, inside in _items(value):
        yield from flatten(inside, is_branch, (*path, key))


def nesting_of(value: Any, is_branch: Callable[[Any], bool], leaf_of: Callable[[Any], ArrayLeaf]) -> Nesting:
    """The structure without its arrays. It can be compared and hashed."""
    if not is_branch(value):
        return leaf_of(value)
    items = list(_items(value))
    kind = "dict" if isinstance(value, Mapping) else "tuple" if isinstance(value, tuple) else "list"
    inside = tuple(nesting_of(each, is_branch, leaf_of) for _, each in items)
    return Branch(kind, tuple(key for key, _ in items), inside)


def leaves(nesting: Nesting, path: Path = ()) -> Iterator[tuple[Path, ArrayLeaf]]:
    """Every leaf and the keys that lead to it, in the order of `flatten`."""
    if isinstance(nesting, ArrayLeaf):
        yield path, nesting
        return
    for key, inside in zip(nesting.keys, nesting.inside, strict=True):
        yield from leaves(inside, (*path, key))


def rebuilt(nesting: Nesting, values: Sequence[Any]) -> Any:
    """The structure with `values` at its ends, in the order of `flatten`.

    >>> rebuilt(Branch("dict", ("x", "y"), (Branch("tuple", (0,), (ArrayLeaf(),)), ArrayLeaf())), [1, 2])
    {'x': (1,), 'y': 2}
    """
    return _rebuilt(nesting, iter(values))


def name_of(path: Path) -> str | None:
    """The name that the keys of dicts give an array: `x/0`. None where there are places only.

    >>> name_of(("x", 0)), name_of((1,))
    ('x/0', None)
    """
    return "/".join(map(str, path)) if any(isinstance(key, str) for key in path) else None


def _items(value: Any) -> list[tuple[str | int, Any]]:
    if isinstance(value, Mapping):
        return [(str(key), inside) for key, inside in value.items()]
    return list(enumerate(value))


def _rebuilt(nesting: Nesting, values: Iterator[Any]) -> Any:
    if isinstance(nesting, ArrayLeaf):
        return next(values)
    inside = [_rebuilt(each, values) for each in nesting.inside]
    if nesting.kind == "dict":
        return dict(zip(nesting.keys, inside, strict=True))
    return tuple(inside) if nesting.kind == "tuple" else inside
