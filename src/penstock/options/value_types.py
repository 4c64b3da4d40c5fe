"""Types of option values: a value that was given in Python must have the type of its keyword before it is read."""

import operator
import os
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from types import SimpleNamespace, UnionType
from typing import Any, Protocol, get_args, get_origin, runtime_checkable


class WrongType(Exception):
    """A value is not of the type of its option."""


@runtime_checkable
class _Plan(Protocol):
    """Stands for a plan, whose record is in a folder above this one and cannot be imported here."""

    choice: Any


_NAMES = {"os": os, "Any": Any, "Callable": Callable, "Mapping": Mapping, "Sequence": Sequence, "Plan": _Plan}
"""The names that stand in the types of keywords."""


@cache
def type_of(annotation: str) -> Any:
    """The type that an annotation names."""
    return typing.get_type_hints(SimpleNamespace(__annotations__={"value": annotation}), _NAMES)["value"]


def as_type(given: Any, wanted: Any) -> Any:
    """A value as one of the wanted type, with Python's own numbers and tuples in the place of numpy's.

    >>> as_type([1, 2.5], type_of("str | Sequence[float]"))
    (1, 2.5)

    Raises:
        WrongType: It is of another type.
    """
    origin, inner = get_origin(wanted) or wanted, get_args(wanted)
    if origin is UnionType:
        return _as_one_of(given, inner)
    if origin is Mapping and isinstance(given, Mapping):
        return {as_type(name, inner[0]): as_type(value, inner[1]) for name, value in given.items()}
    if origin in (Sequence, tuple):
        return _as_tuple(given, inner[0], len(inner) if origin is tuple else None)
    if origin in (bool, int, float):
        return _as_number(given, origin)
    if origin is os.PathLike and isinstance(given, os.PathLike):
        return as_type(os.fspath(given), str)
    if wanted is str and isinstance(given, str):
        return str(given)
    if wanted is Any or isinstance(given, origin):
        return given
    raise WrongType


def _as_one_of(given: Any, types: Sequence[Any]) -> Any:
    for each in types:
        try:
            return as_type(given, each)
        except WrongType:
            continue
    raise WrongType


def _as_tuple(given: Any, item: Any, length: int | None) -> tuple[Any, ...]:
    given = given.tolist() if hasattr(given, "tolist") else given
    if not isinstance(given, Collection) or isinstance(given, (str, bytes, bytearray, Mapping)):
        raise WrongType
    if length is not None and len(given) != length:
        raise WrongType
    return tuple(as_type(each, item) for each in given)


def _as_number(given: Any, wanted: type[Any]) -> Any:
    given = given.tolist() if hasattr(given, "tolist") else given
    if wanted is bool and isinstance(given, int):
        return bool(given)
    if isinstance(given, bool) or wanted is bool:
        raise WrongType
    if wanted is float and isinstance(given, float):
        return given
    try:
        return operator.index(given)
    except TypeError:
        raise WrongType from None
