"""Names of classes: one list for every output of a model, or a list for each output that has names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.errors import UsageError

ClassNames = tuple[str, ...] | Mapping[str, tuple[str, ...]]
"""The names in the order of the classes; for several outputs, by output. Empty where there are none."""

ALLOWED = '["cat", "dog"] or {"0": "cat", "1": "dog"}; of several outputs {"OUTPUT": ["cat", "dog"], …}'


def names_of(names: ClassNames, output: str) -> tuple[str, ...]:
    """The names of the classes of an output; empty where it has none.

    >>> names_of(("cat", "dog"), "kind"), names_of({"kind": ("cat", "dog")}, "age")
    (('cat', 'dog'), ())
    """
    return tuple(names.get(output, ())) if isinstance(names, Mapping) else names


def check_named(names: ClassNames, outputs: Iterable[str]) -> None:
    """Check that names are for outputs that the model has.

    Raises:
        UsageError: The model has no output of that name.
    """
    known = list(outputs)
    unknown = [output for output in names if output not in known] if isinstance(names, Mapping) else []
    if unknown:
        raise UsageError(
            "the model has no such output", received=f"--labels: names for {unknown[0]!r}", allowed=", ".join(known)
        )


def of(given: Any) -> ClassNames:
    """Class names as options and manifests hold them: a list, or a dict from outputs to lists."""
    return {output: tuple(each) for output, each in given.items()} if isinstance(given, Mapping) else tuple(given)


def from_json(document: Any) -> ClassNames:
    """Class names from a user's file: a list, a dict from numbers to names, or a dict from outputs to either of these.

    >>> from_json({"1": "dog", "0": "cat"}), from_json({"kind": ["cat", "dog"]})
    (('cat', 'dog'), {'kind': ('cat', 'dog')})

    Raises:
        ValueError: There is not one name for each class, or the document is of another kind.
    """
    if not isinstance(document, dict):
        return _in_order(document)
    is_numbered = all(number.strip().isdecimal() for number in document)
    return _in_order(document) if is_numbered else {output: _in_order(each) for output, each in document.items()}


def _in_order(listed: Any) -> tuple[str, ...]:
    if isinstance(listed, dict):
        numbered = {int(number): name for number, name in listed.items()}
        if sorted(numbered) != list(range(len(listed))):
            raise ValueError(f"the numbers of classes are not 0 to {len(listed) - 1}")
        listed = [numbered[number] for number in range(len(numbered))]
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise ValueError(f"{listed!r:.40} is no list of names")
    # ImageNet's own list has `["n02123045", "tabby"]` for a class: the last one is its name.
    return tuple(str(each[-1] if isinstance(each, list) else each) for each in listed)
