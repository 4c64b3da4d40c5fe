"""Structures of arrays are taken apart and put together again."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.nesting import ArrayLeaf, Branch, flatten, leaves, name_of, nesting_of, rebuilt

STRUCTURES: list[Any] = [1, [1, 2], (1, [2, 3]), {"x": [1, 2], "y": 3}, [{"a": 1}, ({"b": 2}, 3)], {"b": 1, "a": 2}]


def is_branch(value: Any) -> bool:
    return not isinstance(value, int)


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_what_was_taken_apart_is_put_together_as_it_was(structure: Any) -> None:
    nesting = nesting_of(structure, is_branch, lambda value: ArrayLeaf())
    assert rebuilt(nesting, [value for _, value in flatten(structure, is_branch)]) == structure
    assert [path for path, _ in leaves(nesting)] == [path for path, _ in flatten(structure, is_branch)]
    assert hash(nesting) == hash(nesting_of(structure, is_branch, lambda value: ArrayLeaf()))


def test_lists_and_tuples_are_told_apart() -> None:
    as_list, as_tuple = (nesting_of(value, is_branch, lambda value: ArrayLeaf()) for value in ([1, 2], (1, 2)))
    assert as_list != as_tuple
    assert isinstance(as_tuple, Branch)
    assert as_tuple.kind == "tuple"


def test_names_are_the_keys_that_lead_to_an_array() -> None:
    paths = [path for path, _ in flatten({"x": [1, 2], "y": 3}, is_branch)]
    assert [name_of(path) for path in paths] == ["x/0", "x/1", "y"]
    assert name_of(()) is None
    assert name_of((0, 1)) is None
