"""Kinds of option values: how texts of the shell, values of Python and JSON are read, and which values are allowed.

A `read` function takes all three forms, and a value that it returned before, so every form is read the same way.
"""

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from penstock import plugins
from penstock.errors import UsageError
from penstock.options import class_names
from penstock.options.class_names import ClassNames
from penstock.options.table import AUTO, Kind

MOST_PIXELS = 1 << 26
MOST_ROWS = 2**62
MOST_WORKERS = 4096
REPEATABLE = {"multiple": True}
_INPUTS = "NAME=COLUMN, NAME=COL1,COL2,… or NAME=prefix*; NAME is an input of the model, as `penstock inspect` lists it"


def _check_text(name: str, value: Any) -> None:
    if not value.strip():
        raise UsageError(f"{name} is empty", received=f"{name}={value!r}")


def text(metavar: str) -> Kind:
    return Kind(check=_check_text, metavar=metavar)


def path(metavar: str, *, is_kept: bool = False) -> Kind:
    """A path. One that is kept with the job is absolute: a resumed run may be started from another folder."""

    def read(given: Any, flag: str) -> str:
        is_relative = is_kept and given.strip() and "://" not in given
        return os.path.abspath(given) if is_relative else str(given)

    return Kind(read, _check_text, python="str | os.PathLike[str]", metavar=metavar)


def _check_switch(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise UsageError(f"{name} is on or off", received=f"{name}={value!r}", allowed="True, False")


SWITCH = Kind(check=_check_switch, python="bool", shell={"is_flag": True})
YES_OR_NO = Kind(check=_check_switch, python="bool")
"""A switch with a flag for each side, such as `--shuffle/--no-shuffle`."""


def choice(*names: str) -> Kind:
    def check(name: str, value: Any) -> None:
        if value not in names:
            raise UsageError(f"unknown {name}", received=f"{name}={value!r}", allowed=", ".join(names))

    return Kind(check=check, choices=lambda: names)


_DECODER = re.compile(r"auto|cpu|gpu(:0?\.0*[1-9][0-9]*|:1(\.0*)?)?")


def engine_share(decoder: str) -> float | None:
    """The share of photos that the engine of a GPU is to decode; None where the machine decides.

    >>> engine_share("cpu"), engine_share("gpu"), engine_share("gpu:0.4"), engine_share("auto")
    (0.0, None, 0.4, None)
    """
    who, _, share = decoder.partition(":")
    return float(share) if share else 0.0 if who == "cpu" else None


def _check_decoder(name: str, value: Any) -> None:
    if not _DECODER.fullmatch(value):
        allowed = "auto, cpu, gpu, gpu:SHARE (that share of the photos on the GPU, above 0 and up to 1)"
        raise UsageError(f"unknown {name}", received=f"{name}={value!r}", allowed=allowed)


DECODER = Kind(check=_check_decoder, metavar="auto|cpu|gpu")


def plugin(group: str, *, has_auto: bool = False) -> Kind:
    """The name of a plugin: of penstock's own, or of other packages."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, str) or not plugins.is_known(group, value):
            allowed = ", ".join(plugins.names(group))
            raise UsageError(f"unknown {name}", received=f"{name}={value!r}", allowed=allowed)

    return Kind(check=check, choices=lambda: plugins.names(group), has_auto=has_auto)


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _check_count(name: str, value: Any, most: int = MOST_ROWS) -> None:
    if not _is_whole(value, 1):
        raise UsageError(f"{name} must be a positive whole number", received=f"{name}={value!r}", allowed="1, 2, 3, …")
    if value > most:
        raise UsageError(f"{name} is too large", received=f"{name}={value!r:.30}", allowed=f"at most {most:,}")


def _check_whole(name: str, value: Any) -> None:
    if not _is_whole(value, 0):
        raise UsageError(f"{name} must be a whole number", received=f"{name}={value!r}", allowed="0, 1, 2, …")
    _check_count(name, value or 1)


def _read_count_or_auto(given: Any, flag: str) -> Any:
    if not isinstance(given, str):
        return given
    if not re.fullmatch("[0-9]{1,18}", given):
        raise UsageError(f"{flag} is not understood", received=f"{flag} {given!r}", allowed="auto, 1, 2, 3, …")
    return int(given)


def count(metavar: str = "N") -> Kind:
    return Kind(check=_check_count, python="int", metavar=metavar, shell={"type": int})


def count_or_auto(most: int) -> Kind:
    """How many of something, or `auto`."""
    check = partial(_check_count, most=most)
    return Kind(_read_count_or_auto, check, python="int | str", metavar="N|auto", has_auto=True)


def _read_count_or_measured(given: Any, flag: str) -> Any:
    return given if given == AUTO else _read_count_or_auto(given, flag)


def _check_count_or_measured(name: str, value: Any) -> None:
    if value != AUTO:
        _check_count(name, value)


COUNT_OR_MEASURED = Kind(
    _read_count_or_measured, _check_count_or_measured, python="int | str", metavar="N|auto", shell={"type": str}
)
"""How many of something; `auto`, which is not the default, is found out by measuring."""
WHOLE = Kind(check=_check_whole, python="int", metavar="N", shell={"type": int})


def number(metavar: str, is_allowed: Callable[[Any], bool], allowed: str, problem: str = "is out of range") -> Kind:
    def check(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not is_allowed(value):
            raise UsageError(f"{name} {problem}", received=f"{name}={value!r}", allowed=allowed)

    return Kind(check=check, python="float", metavar=metavar, shell={"type": float})


def _joined(context: Any, parameter: Any, given: tuple[str, ...]) -> str | None:
    """The names from all flags of an option, joined as one flag could have given them."""
    return ",".join(given) if given else None


def names(metavar: str, twice: str | None = None, *, has_commas: bool = False) -> Kind:
    """Names: one for each flag, or with commas between them. `twice` is the message for a name that comes twice."""

    def read(given: Any, flag: str) -> tuple[str, ...]:
        if not isinstance(given, str):
            return tuple(given)  # several flags, a sequence, or JSON
        return tuple(name.strip() for name in given.split(",")) if has_commas else (given,)

    def check(name: str, value: Any) -> None:
        if not all(each.strip() for each in value):
            raise UsageError("a name is empty", received=f"{name}={', '.join(map(repr, value))}")
        if twice is not None and len(set(value)) != len(value):
            raise UsageError(twice, received=f"{name}={', '.join(value)}")

    shell: dict[str, Any] = REPEATABLE | {"callback": _joined} if has_commas else REPEATABLE
    return Kind(read, check, python="str | Sequence[str]", metavar=metavar, shell=shell)


def _read_numbers(given: Any, flag: str) -> tuple[float, ...]:
    """One number, or several; in the shell `0.5,1,2`."""
    numbers: tuple[float, ...] = given if isinstance(given, tuple) else (given,)
    try:
        if isinstance(given, str):
            numbers = tuple(float(part) for part in given.split(","))
        is_understood = bool(numbers) and all(map(math.isfinite, numbers))
    except (ValueError, OverflowError):
        is_understood = False
    if not is_understood:
        allowed = "a number, or one for each channel: 1,2,3"
        raise UsageError(f"{flag} is not understood", received=f"{given!r:.80}", allowed=allowed)
    return numbers


def _read_lengths(given: Any, flag: str) -> tuple[float, ...]:
    return tuple(int(length) if length == length // 1 else length for length in _read_numbers(given, flag))


def _check_lengths(name: str, value: Any) -> None:
    if not value or not all(_is_whole(length, 1) for length in value) or list(value) != sorted(set(value)):
        raise UsageError(f"{name} are lengths that grow", received=f"{name}={value!r}", allowed="for example 32,64,128")


NUMBERS = Kind(_read_numbers, python="float | Sequence[float]", also=(str,), metavar="X[,…]")
LENGTHS = Kind(
    _read_lengths, _check_lengths, python="Sequence[int]", also=(Sequence[float], float, str), metavar="N,N,…"
)


def _read_pairs(entries: Sequence[str], flag: str, allowed: str, *, may_be_empty: bool = False) -> dict[str, str]:
    """Read `NAME=VALUE` entries: `a=b=c` is `{"a": "b=c"}`."""
    pairs: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        name = name.strip()
        if not name or not equals or not (value or may_be_empty) or name in pairs:
            problem = f"{flag} is given twice for one name" if name in pairs else f"{flag} is not understood"
            raise UsageError(problem, received=f"{flag} {entry!r}", allowed=allowed)
        pairs[name] = value
    return pairs


def pairs(metavar: str, allowed: str, *, has_names_as_values: bool = False) -> Kind:
    """A flag that takes NAME=VALUE, and a keyword that takes a dict."""

    def read(given: Any, flag: str) -> dict[str, str]:
        return dict(given) if isinstance(given, Mapping) else _read_pairs(given, flag, allowed)

    def check(name: str, value: Any) -> None:
        names = [*value, *value.values()] if has_names_as_values else list(value)
        if not all(text.strip() for text in names):
            raise UsageError("a name is empty", received=f"{name}={value!r}", allowed=allowed)

    return Kind(
        read,
        check,
        python="Mapping[str, str]",
        also=(Sequence[str],),
        metavar=metavar,
        shell=REPEATABLE,
        is_mapping=True,
    )


HOST_AND_PORT = re.compile(r"(?:ray://)?(?P<host>\[[^\]]+\]|[^:/]+):(?P<port>[0-9]+)")


def check_address(name: str, value: Any) -> None:
    if value not in (AUTO, "local") and HOST_AND_PORT.fullmatch(value) is None:
        raise UsageError(
            f"{name} is not understood",
            received=f"{name}={value!r}",
            allowed="auto, local, HOST:PORT, ray://HOST:PORT",
        )


ADDRESS = Kind(check=check_address, metavar="auto|HOST:PORT|ray://…")
"""Where a cluster is."""
_CPU = "CPU"
_AMOUNTS = (_CPU, "GPU", "memory")
_TEXTS = pairs("NAME=VALUE", "NAME=AMOUNT of a resource, or NAME=VALUE of a label, each name once")


def is_amount(value: str) -> bool:
    """Whether the value of a resource is an amount. Any other value is that of a label."""
    try:
        return 0 <= float(value) < math.inf
    except ValueError:
        return False


def _read_resources(given: Any, flag: str) -> dict[str, str]:
    return {name: str(value) for name, value in _TEXTS.read(given, flag).items()}


def _check_resources(name: str, value: Any) -> None:
    _TEXTS.check(name, value)
    for resource, given in value.items():
        received = f"--{name} {resource}={given}"
        if resource in _AMOUNTS and not is_amount(given):
            raise UsageError(
                f"--{name} takes an amount of {resource}",
                received=received,
                allowed=f"{resource}=1, {resource}=2, …; any other name may be that of a label: zone=eu",
            )
        amount = float(given) if is_amount(given) else 1.0
        if resource == _CPU and (amount < 1 or not amount.is_integer()):
            hint = "leave CPU out to take all that a node has"
            raise UsageError(f"--{name} takes whole CPUs", received=received, allowed="CPU=1, CPU=2, …", hint=hint)
        if amount > 1 and not amount.is_integer():
            allowed = f"{resource}=0.5, {resource}=1, {resource}=2, …"
            raise UsageError("Ray takes a part of one, but not of several", received=received, allowed=allowed)


RESOURCES = replace(_TEXTS, read=_read_resources, check=_check_resources, python="Mapping[str, str | float]")


def _read_inputs(given: Any, flag: str) -> dict[str, tuple[str, ...]]:
    """The columns of each input: `x=a,b` is `{"x": ("a", "b")}`."""
    if isinstance(given, Mapping):
        return {name: (value,) if isinstance(value, str) else tuple(value) for name, value in given.items()}
    inputs: dict[str, tuple[str, ...]] = {}
    for name, value in _read_pairs(given, flag, _INPUTS).items():
        inputs[name] = tuple(column.strip() for column in value.split(","))
        if not all(inputs[name]):
            raise UsageError(f"{flag} is not understood", received=f"{flag} {f'{name}={value}'!r}", allowed=_INPUTS)
    return inputs


def _check_inputs(name: str, value: Any) -> None:
    odd = [name for name, columns in value.items() if not columns or not all(map(str.strip, (name, *columns)))]
    if odd:
        received = f"{name}={{{odd[0]!r}: {value[odd[0]]!r}}}"
        raise UsageError(f"{name} is not understood", received=received, allowed=_INPUTS)


def _read_constants(given: Any, flag: str) -> dict[str, str]:
    if isinstance(given, Mapping):
        return {name: _text_of_constant(value) for name, value in given.items()}
    return _read_pairs(given, flag, "NAME=VALUE, for example keep_prob=1.0, each name once", may_be_empty=True)


def _text_of_constant(value: Any) -> str:
    """A value as it would be written after `--constant NAME=`: `[1, 2.5]` is `1,2.5`."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (list, tuple)):
        return ",".join(_text_of_constant(item) for item in value)
    if isinstance(value, (str, bool, int, float)):
        return str(value)
    raise UsageError(
        "a constant is a number, a text, or a list of them", received=f"{type(value).__name__} {value!r:.80}"
    )


def _read_params(given: Any, flag: str) -> Any:
    """The params of a `model_fn`: in the shell a JSON object, or the path of a file that holds one."""
    if not isinstance(given, str):
        return given
    text = given
    try:
        if not text.lstrip().startswith("{"):
            with open(text, encoding="utf-8") as file:
                text = file.read()
        params = json.loads(text)
    except (OSError, ValueError) as error:
        raise UsageError(f"{flag} is not understood", received=f"{text[:80]!r}: {error}") from None
    if not isinstance(params, dict):
        raise UsageError(f"{flag} is not understood", received=f"{text[:80]!r}", allowed='an object: {"hidden": 10}')
    return params


def _check_params(name: str, value: Any) -> None:
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{name} are plain values: they are kept with the job", received=f"{name}={value!r}: {error}"
        ) from None


INPUTS = Kind(
    _read_inputs,
    _check_inputs,
    python="Mapping[str, str | Sequence[str]]",
    also=(Sequence[str],),
    metavar="NAME=COLUMN[,…]",
    shell=REPEATABLE,
    is_mapping=True,
)
CONSTANTS = Kind(
    _read_constants,
    python="Mapping[str, Any]",
    also=(Sequence[str],),
    metavar="NAME=VALUE",
    shell=REPEATABLE,
    is_mapping=True,
)
PARAMS = Kind(_read_params, _check_params, python="Mapping[str, Any]", also=(str,), metavar="JSON|FILE")


def _read_labels(given: Any, flag: str) -> ClassNames:
    """The names of classes, for every output or by output, or a file of them: one a line, or JSON."""
    if not isinstance(given, str):
        return class_names.of(given)
    path = given
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
    except (OSError, ValueError) as error:
        raise UsageError("the labels cannot be read", received=f"{flag} {path}: {error}") from None
    try:
        if path.lower().endswith(".json"):
            labels = class_names.from_json(json.loads(text))
        else:
            labels = tuple(line.strip() for line in text.rstrip("\n").split("\n")) if text.strip() else ()
    except (ValueError, RecursionError) as error:
        raise UsageError(
            "the labels are not understood",
            received=f"{flag} {path}: {type(error).__name__} {error}",
            allowed=class_names.ALLOWED,
        ) from None
    if not labels:
        raise UsageError("the file of labels is empty", received=f"{flag} {path}", allowed="one name a line")
    return labels


def _read_size(given: Any, flag: str) -> tuple[int, int]:
    """Height and width; in the shell `224x320`, or `96` for both."""
    if isinstance(given, str):
        match = re.fullmatch(r"([1-9][0-9]{0,5})(?:[x×]([1-9][0-9]{0,5}))?", given)
        if match is None:
            allowed = "HxW, for example 224x224"
            raise UsageError("the image size is not understood", received=f"{given!r}", allowed=allowed)
        return int(match[1]), int(match[2] or match[1])
    height, width = (given, given) if isinstance(given, int) else given
    return height, width


def _check_size(name: str, value: tuple[int, int]) -> None:
    height, width = value
    if height < 1 or width < 1 or height * width > MOST_PIXELS:
        raise UsageError(
            "the image size is out of range",
            received=f"{name}={height}x{width}",
            allowed=f"at least 1x1, at most {MOST_PIXELS:,} pixels",
        )


LABELS = Kind(
    _read_labels, python="str | os.PathLike[str] | Sequence[str] | Mapping[str, Sequence[str]]", metavar="FILE"
)
IMAGE_SIZE = Kind(_read_size, _check_size, python="int | tuple[int, int] | str", metavar="HxW")


def _read_function(given: Any, flag: str) -> Any:
    """A function, `module:function`, or the record of one in a request: its location, and whether it was pickled."""
    if not isinstance(given, Mapping):
        return given
    if not {"by_value", "location"} <= given.keys():
        raise UsageError(f"{flag} is not understood", received=f"{given!r:.80}", allowed="a function, or its place")
    if given["by_value"]:
        raise UsageError(
            f"the {_called(flag[2:])} function of this job was of the script that began it",
            received=given["location"],
            hint="call penstock.predict again with the same arguments",
        )
    return given["location"]


def _check_function(name: str, value: Any) -> None:
    if isinstance(value, str) and not re.fullmatch(r"[\w.]+:\w+", value):
        raise UsageError(
            f"the {_called(name)} function is not understood", received=f"{value!r}", allowed="module:function"
        )


def _called(name: str) -> str:
    return name if name == "step" else name.replace("-", "_").removesuffix("_row") + "ing"


FUNCTION = Kind(
    _read_function,
    _check_function,
    python="str | Callable[..., Any]",
    also=(Mapping[str, Any],),
    metavar="MODULE:FUNCTION",
    is_function=True,
)


ESTIMATOR = Kind(check=_check_switch, python="bool", metavar="MODULE:FUNCTION")
"""In the shell, the value is the location of the function. In Python, `model` is, and this option marks it as an
Estimator's."""


def _write_plan(plan: Any) -> Any:
    """The part of a plan that decides the output: its recipe. Without a plan, the job decides the recipe once."""
    if plan is None or isinstance(plan, (str, Mapping)):
        return None if plan == NO_PLAN else plan
    return {name: getattr(plan.choice, name) for name in _OF_A_PLAN}


def _check_plan(name: str, value: Any) -> None:
    if isinstance(value, Mapping) and value.keys() != set(_OF_A_PLAN):
        allowed = "a file, off, or what penstock.plan returns"
        raise UsageError(f"{name} is not understood", received=f"{name}={value!r:.80}", allowed=allowed)


NO_PLAN = "off"
"""The value, in place of a plan's file, for rules of thumb without a search."""
_OF_A_PLAN = ("runtime", "batch_size", "threads", "precision")
PLAN = Kind(
    check=_check_plan,
    write=_write_plan,
    python="str | os.PathLike[str] | Plan",
    also=(Mapping[str, Any],),
    metavar="FILE|off",
)
