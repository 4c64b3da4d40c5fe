"""Nested arguments and answers of a saved function, flat and by name."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TensorLeaf:
    """A tensor, or its spec, and the keys that lead to it."""

    path: tuple[Any, ...]
    value: Any


def leaves(structure: Any, fallback: str) -> dict[str, TensorLeaf]:
    """Everything in a structure that is a tensor or the spec of one, in TensorFlow's order.

    Names are the keys of dicts, else what a spec calls itself, else `fallback`, with a number where there are several.
    """
    tensors = [leaf for leaf in _walk(structure, ()) if _is_tensor(leaf.value)]
    named: dict[str, TensorLeaf] = {}
    for position, leaf in enumerate(tensors):
        keys = [key for key in leaf.path if isinstance(key, str)]
        has_own = fallback == "input" and not hasattr(leaf.value, "numpy")  # eager tensors have no names
        own = getattr(leaf.value, "name", None) if has_own else None
        name = "/".join(map(str, leaf.path[leaf.path.index(keys[0]) :])) if keys else own
        name = name or (fallback if len(tensors) == 1 else f"{fallback}_{position}")
        named[name if name not in named else f"{name}_{position}"] = leaf
    return named


def rebuilt(structure: Any, values: Sequence[Any]) -> Any:
    """The same structure with `values` in the place of its tensors, in order. Everything else in it stays."""
    return _replaced(structure, iter(values))


def pick(functions: Sequence[Any]) -> Any:
    """The concrete function to serve with: not for training, of any batch size, and with the fewest fixed lengths."""

    def preference(function: Any) -> tuple[bool, bool, int]:
        arguments, keywords = function.structured_input_signature
        flags = [leaf.value for leaf in _walk((arguments, keywords), ()) if isinstance(leaf.value, bool)]
        specs = [leaf.value for leaf in _walk((arguments, keywords), ()) if _is_tensor(leaf.value)]
        shapes = [spec.shape for spec in specs if spec.shape.rank]
        is_fixed = any(shape[0] is not None for shape in shapes)
        return any(flags), is_fixed, sum(length is not None for shape in shapes for length in shape.as_list())

    return min(functions, key=preference)


def _walk(structure: Any, path: tuple[Any, ...]) -> Iterator[TensorLeaf]:
    if isinstance(structure, Mapping):
        for key in sorted(structure):
            yield from _walk(structure[key], (*path, key))
    elif isinstance(structure, (list, tuple)):
        for position, each in enumerate(structure):
            yield from _walk(each, (*path, position))
    else:
        yield TensorLeaf(path, structure)


def _replaced(structure: Any, values: Iterator[Any]) -> Any:
    if isinstance(structure, Mapping):
        return {key: _replaced(structure[key], values) for key in sorted(structure)}
    if isinstance(structure, (list, tuple)):
        made = [_replaced(each, values) for each in structure]
        if hasattr(structure, "_fields"):
            return type(structure)(*made)
        return tuple(made) if isinstance(structure, tuple) else made
    return next(values) if _is_tensor(structure) else structure


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")
