"""Texts of the command line, and what they mean."""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from penstock.errors import UsageError

COLUMNS = "NAME=COLUMN, NAME=COL1,COL2,… or NAME=prefix*; NAME is an input of the model, as `penstock inspect` lists it"


def parse_pairs(entries: Sequence[str], flag: str, allowed: str, *, may_be_empty: bool = False) -> dict[str, str]:
    """Turn `NAME=VALUE` entries into a mapping.

    >>> parse_pairs(("dense_1=score", "a=b=c"), "--rename", "OLD=NEW")
    {'dense_1': 'score', 'a': 'b=c'}
    """
    pairs: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        name = name.strip()
        if not name or not equals or not (value or may_be_empty) or name in pairs:
            problem = f"{flag} is given twice for one name" if name in pairs else f"{flag} is not understood"
            raise UsageError(problem, received=f"{flag} {entry!r}", allowed=allowed)
        pairs[name] = value
    return pairs


def parse_columns(text: str, flag: str, name: str) -> tuple[str, ...]:
    """Read `COL1,COL2` and `prefix*`, which feed the input `name`.

    >>> parse_columns("a, b", "--input", "x")
    ('a', 'b')
    """
    columns = tuple(part.strip() for part in text.split(","))
    if not all(columns):
        raise UsageError(f"{flag} is not understood", received=f"{flag} {f'{name}={text}'!r}", allowed=COLUMNS)
    return columns


def parse_size(text: str) -> tuple[int, int]:
    """Read `224x224` (height by width) or `224`.

    >>> parse_size("224x320"), parse_size("96")
    ((224, 320), (96, 96))
    """
    match = re.fullmatch(r"([1-9][0-9]{0,5})(?:[x×]([1-9][0-9]{0,5}))?", text)
    if match is None:
        raise UsageError("the image size is not understood", received=f"{text!r}", allowed="HxW, for example 224x224")
    return int(match[1]), int(match[2] or match[1])


def parse_numbers(text: str, flag: str) -> tuple[float, ...]:
    """Read one number, or several with commas.

    >>> parse_numbers("0.5,1,2", "--scale")
    (0.5, 1.0, 2.0)
    """
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or not all(math.isfinite(number) for number in numbers):
        raise UsageError(
            f"{flag} is not understood", received=repr(text), allowed="a number, or one for each channel: 1,2,3"
        )
    return numbers


def text_of_constant(value: Any) -> str:
    """A value as it would be written after `--constant NAME=`.

    >>> text_of_constant(True), text_of_constant([1, 2.5]), text_of_constant(b"abc")
    ('True', '1,2.5', 'abc')
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (list, tuple)):
        return ",".join(text_of_constant(item) for item in value)
    if isinstance(value, (str, bool, int, float)):
        return str(value)
    raise UsageError(
        "a constant is a number, a text, or a list of them", received=f"{type(value).__name__} {value!r:.80}"
    )


def parse_params(text: str) -> dict[str, Any]:
    """Read the params of a `model_fn`: a JSON object, or the path of a file that holds one.

    >>> parse_params('{"hidden": [10, 10]}')
    {'hidden': [10, 10]}
    """
    try:
        if not text.lstrip().startswith("{"):
            with open(text, encoding="utf-8") as file:
                text = file.read()
        params = json.loads(text)
    except (OSError, ValueError) as error:
        raise UsageError("--params is not understood", received=f"{text[:80]!r}: {error}") from None
    if not isinstance(params, dict):
        raise UsageError("--params is not understood", received=f"{text[:80]!r}", allowed='an object: {"hidden": 10}')
    return params


def read_labels(path: str) -> tuple[str, ...]:
    """The names of classes: a text file with one a line, or a JSON list, or a JSON object from numbers to names.

    Raises:
        UsageError: There is no such file, or it holds something else.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("the labels cannot be read", received=f"--labels {path}: {error}") from None
    if not path.lower().endswith(".json"):
        return tuple(line.strip() for line in text.rstrip("\n").split("\n")) if text.strip() else _no_labels(path)
    try:
        listed = json.loads(text)
        if isinstance(listed, dict):
            numbered = {int(number): name for number, name in listed.items()}
            listed = [numbered[number] for number in range(len(numbered))]
        return tuple(_name_of_class(name) for name in listed) or _no_labels(path)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            "the labels are not understood",
            received=f"--labels {path}: {type(error).__name__} {error}",
            allowed='["cat", "dog"] or {"0": "cat", "1": "dog"}',
        ) from None


def _name_of_class(entry: Any) -> str:
    """`"cat"`, or the last of `["n02123045", "tabby"]`, as ImageNet's own list has it."""
    return str(entry[-1]) if isinstance(entry, list) else str(entry)


def _no_labels(path: str) -> tuple[str, ...]:
    raise UsageError("the file of labels is empty", received=f"--labels {path}", allowed="one name a line")
