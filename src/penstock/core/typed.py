"""Checks that a record that was read from JSON has the types that its class declares."""

import functools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

Check = Callable[[Any], bool]


def check_types(record: Any) -> None:
    """Compare every field of a dataclass, and of those inside it, with its annotation.

    Raises:
        TypeError: A field has a value of another type.
    """
    kind: type = type(record)
    for name, fits in _fields(kind):
        if not fits(vars(record)[name]):
            raise TypeError(f"{kind.__name__.lower()}.{name} is {vars(record)[name]!r:.60}")


@functools.cache
def _fields(kind: type) -> list[tuple[str, Check]]:
    return [(name, _check_of(hint)) for name, hint in typing.get_type_hints(kind).items()]


def _check_of(hint: Any) -> Check:
    """The check of a value against an annotation. It is made once for a class: a manifest may have 100,000 spans."""
    origin, inside = typing.get_origin(hint), [_check_of(each) for each in typing.get_args(hint) if each is not ...]
    if origin in (types.UnionType, typing.Union):
        return lambda value: any(fits(value) for fits in inside)
    if origin is dict or origin is Mapping:
        return lambda value: type(value) is dict and all(inside[0](k) and inside[1](v) for k, v in value.items())
    if origin is Sequence or (origin is tuple and typing.get_args(hint)[-1] is ...):
        return lambda value: type(value) in (tuple, list) and all(map(inside[0], value))
    if origin is tuple:
        return lambda value: (
            type(value) is tuple
            and len(value) == len(inside)
            and all(fits(v) for fits, v in zip(inside, value, strict=True))
        )
    if is_dataclass(hint):
        fields = _fields(typing.cast(type, hint))
        return lambda value: type(value) is hint and all(fits(value.__dict__[name]) for name, fits in fields)
    if hint is Any:
        return lambda value: True
    return (lambda value: type(value) in (int, float)) if hint is float else lambda value: type(value) is hint
