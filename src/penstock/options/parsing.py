"""Options as they are written on a command line, and what they mean."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from penstock.errors import UsageError


def parse_inputs(entries: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Turn `NAME=COLUMN`, `NAME=COL1,COL2` and `NAME=prefix*` into a mapping.

    >>> parse_inputs(("x=a,b", "y=pixels"))
    {'x': ('a', 'b'), 'y': ('pixels',)}
    """
    inputs: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        name, equals, columns = entry.partition("=")
        parts = tuple(part.strip() for part in columns.split(","))
        if not equals or not name.strip() or not all(parts):
            raise UsageError(
                "--input is not understood",
                received=f"--input {entry!r}",
                allowed="NAME=COLUMN, NAME=COL1,COL2,… or NAME=prefix*",
                hint="NAME is an input of the model: `penstock inspect MODEL` lists them",
            )
        if name.strip() in inputs:
            raise UsageError("an input is given twice", received=f"--input {entry!r}")
        inputs[name.strip()] = parts
    return inputs


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


def parse_features(entries: tuple[str, ...]) -> dict[str, str]:
    """Turn `NAME=dtype[shape]` entries into a mapping; what stands behind the sign is read by the source.

    >>> parse_features(("image=uint8[28,28]",))
    {'image': 'uint8[28,28]'}
    """
    features: dict[str, str] = {}
    for entry in entries:
        name, _, kind = entry.partition("=")
        if not name or not kind or name in features:
            raise UsageError(
                "--feature is not understood",
                received=f"--feature {entry!r}",
                allowed="NAME=dtype[shape], for example image=uint8[28,28], each name once",
            )
        features[name] = kind
    return features


def parse_renames(entries: tuple[str, ...]) -> dict[str, str]:
    """Turn `OLD=NEW` entries into a mapping.

    >>> parse_renames(("dense_1=score",))
    {'dense_1': 'score'}
    """
    renames: dict[str, str] = {}
    for entry in entries:
        old, _, new = entry.partition("=")
        if not old or not new:
            raise UsageError("--rename is not understood", received=f"--rename {entry!r}", allowed="OLD=NEW")
        renames[old] = new
    return renames


def parse_constants(entries: tuple[str, ...]) -> dict[str, str]:
    """Turn `NAME=VALUE` entries into a mapping; the model says what kind of value it takes.

    >>> parse_constants(("keep_prob=1.0",))
    {'keep_prob': '1.0'}
    """
    constants: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not name or not equals or name in constants:
            raise UsageError(
                "--constant is not understood",
                received=f"--constant {entry!r}",
                allowed="NAME=VALUE, for example keep_prob=1.0, each name once",
            )
        constants[name] = value
    return constants


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
        found = json.loads(text)
        if isinstance(found, dict):
            places = {int(place): _name_of_class(name) for place, name in found.items()}
            found = [places[place] for place in range(len(places))]
        return tuple(_name_of_class(name) for name in found) or _no_labels(path)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            "the labels are not understood",
            received=f"--labels {path}: {type(error).__name__} {error}",
            allowed='["cat", "dog"] or {"0": "cat", "1": "dog"}',
        ) from None


def _name_of_class(found: Any) -> str:
    """`"cat"`, or the last of `["n02123045", "tabby"]`, as ImageNet's own list has it."""
    return str(found[-1]) if isinstance(found, list) else str(found)


def _no_labels(path: str) -> tuple[str, ...]:
    raise UsageError("the file of labels is empty", received=f"--labels {path}", allowed="one name a line")
