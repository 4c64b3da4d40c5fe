"""The one table of options: each option is a field that carries its flag, its kind, its help and what depends on it.

Flags of the shell, keywords of Python, the request in a manifest, the fingerprint, the keys of plans and the spelling
of messages all derive from it. A new option is one field of a record in `penstock.options.records`.
"""

import contextlib
import dataclasses
import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, TypeVar

from penstock.errors import UsageError
from penstock.options.value_types import WrongType, as_type, type_of

AUTO = "auto"
"""The value, in the shell and in Python, for what measuring or a rule decides."""

_TWINS = {"workers": ("loaders", "max_nodes"), "max_nodes": ("workers",)}
"""Options that serve the same purpose in other commands: `workers` of fit is `loaders` or `max_nodes` of predict."""

Record = TypeVar("Record")


class Decides(Enum):
    """What an option changes. Options that decide the output are in the fingerprint, and kept for a resumed run."""

    OUTPUT = "output"
    SPEED = "speed"
    NOTHING = "nothing"


class PlanKey(Enum):
    """Which key of a plan an option is part of."""

    STEP = "step"
    """The compiled step, and so every plan for it."""
    RUN = "run"
    """The plan only: another value runs the same step."""
    NONE = "none"


def plain(value: Any) -> Any:
    """A value of an option as JSON has it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {name: plain(entry) for name, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True)
class Kind:
    """How the values of an option are read, checked and written.

    Args:
        read: Makes the value from what was given (texts of the shell, a value of Python, or JSON) and the flag.
        check: Raises for a value that is not allowed; it takes the option's name and the value.
        write: Makes JSON from the value, which `read` takes.
        python: The type of the keyword.
        also: Types of other forms that `read` takes: texts of the shell, JSON, and what it returned before.
        metavar: What stands for the value in the help.
        choices: Returns the allowed values; called only when they are needed, because plugins add to them.
        shell: Settings of `click.option`.
        has_auto: Whether `auto` stands for None.
        is_mapping: Whether the flag takes NAME=VALUE, and the keyword a dict.
        is_function: Whether the value is a function of the user, whose code the fingerprint covers.
    """

    read: Callable[[Any, str], Any] = lambda given, flag: given
    check: Callable[[str, Any], None] = lambda name, value: None
    write: Callable[[Any], Any] = plain
    python: str = "str"
    also: tuple[Any, ...] = ()
    metavar: str | None = None
    choices: Callable[[], tuple[str, ...]] | None = None
    shell: Mapping[str, Any] = field(default_factory=dict)
    has_auto: bool = False
    is_mapping: bool = False
    is_function: bool = False

    @property
    def is_switch(self) -> bool:
        return self.python == "bool"


@dataclass(frozen=True)
class Option:
    """One option.

    Args:
        kind: How its values are read, checked and written.
        decides: What it changes.
        plan: Which key of a plan it is part of.
        group: The heading in the help.
        help: A sentence or two, for the shell.
        flag: How the shell writes it.
        name: The keyword in Python, and the field of its record.
        default: The value where it is not given.
    """

    kind: Kind
    decides: Decides
    plan: PlanKey
    group: str
    help: str
    flag: str = ""
    name: str = ""
    default: Any = None

    def read(self, given: Any) -> Any:
        """The value of what was given.

        Raises:
            UsageError: It is of another type than the option's, or not understood.
        """
        if self.kind.has_auto and isinstance(given, str) and given == AUTO:
            return self.default
        return self.kind.read(self._typed(given), self.flag.split("/")[0])

    def _typed(self, given: Any) -> Any:
        for wanted in (type_of(self.kind.python), *self.kind.also):
            with contextlib.suppress(WrongType):
                return as_type(given, wanted)
        with contextlib.suppress(TypeError, ValueError, AttributeError):
            self.check(given)  # its error says more, if it takes a value of any type
        received = " ".join(repr(given).split())
        raise UsageError(
            f"{self.name} is not understood", received=f"{self.name}={received:.80}", allowed=self.kind.python
        )

    def check(self, value: Any) -> None:
        if value is not None or self.default is not None:
            self.kind.check(self.name, value)


def option(
    kind: Kind, decides: Decides, plan: PlanKey, *, group: str, help: str, default: Any = None, flag: str = ""
) -> Any:
    """A field of a record of options. By default, the flag is the field's name."""
    made = Option(kind, decides, plan, group, help, flag, default=default)
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata={"option": made})
    return field(default=default, metadata={"option": made})


def part(record: type[Any]) -> Any:
    """A field that holds another record of options, which the shell and Python list among the others."""
    return field(default_factory=record, metadata={"part": record})


_TABLES: dict[type[Any], Mapping[str, Option]] = {}
_CHECKED: dict[type[Any], list[Option]] = {}
"""The table of each record, and the options that it checks itself, made once: a small call makes several records."""


def options_of(record: type[Any]) -> Mapping[str, Option]:
    """Every option of a record and of its parts, by name, in the order of the help.

    Raises:
        TypeError: A field is no option, so it is unknown whether it decides the output.
    """
    if record in _TABLES:
        return _TABLES[record]
    options: dict[str, Option] = {}
    for entry in dataclasses.fields(record):
        if "part" in entry.metadata:
            options |= options_of(entry.metadata["part"])
        elif "option" in entry.metadata:
            made: Option = entry.metadata["option"]
            flag = made.flag or "--" + entry.name.replace("_", "-")
            options[entry.name] = dataclasses.replace(made, name=entry.name, flag=flag)
        else:
            raise TypeError(f"{record.__name__}.{entry.name} is not classified: make it with option(…)")
    return _TABLES.setdefault(record, MappingProxyType(options))


def check_values(record: Any) -> None:
    """Check each option of a record by itself, unless it has its default.

    Raises:
        UsageError: One is not allowed.
    """
    kind, values = type(record), vars(record)
    if kind not in _CHECKED:
        _CHECKED[kind] = [each for name, each in options_of(kind).items() if name in values]
    for each in _CHECKED[kind]:
        if values[each.name] is not each.default:
            each.check(values[each.name])


def values_of(record: Any) -> dict[str, Any]:
    """The values of all options of a record and of its parts."""
    values: dict[str, Any] = {}
    for entry in dataclasses.fields(record):
        value = getattr(record, entry.name)
        values |= values_of(value) if "part" in entry.metadata else {entry.name: value}
    return values


def as_json(
    record: Any, wanted: Callable[[Option], bool], describe: Callable[[Any, str], Any] = lambda function, name: function
) -> dict[str, Any]:
    """The options that are wanted, as plain JSON. `describe` makes JSON from a user's function."""
    values = values_of(record)
    return {
        name: describe(values[name], name) if option.kind.is_function else option.kind.write(values[name])
        for name, option in options_of(type(record)).items()
        if wanted(option)
    }


def read_given(record: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of what was given, in the shell, in Python or in JSON; None counts as not given.

    Raises:
        UsageError: One is unknown, or not understood.
    """
    options = options_of(record)
    check_known(given, options)
    return {name: options[name].read(value) for name, value in given.items() if value is not None}


def check_known(
    given: Iterable[str], options: Mapping[str, Option], function: Callable[..., Any] | None = None
) -> None:
    """Check that options exist. The error also lists the keywords of `function`, which was called with them.

    Raises:
        UsageError: One is unknown.
    """
    unknown = sorted(name for name in given if name not in options)
    if unknown:
        known = [*(keywords_of(function) if function is not None else ()), *options]
        close = twins_of(unknown[0], known) or difflib.get_close_matches(unknown[0], known, n=1)
        raise UsageError(
            "unknown option",
            received=", ".join(unknown),
            allowed=", ".join(dict.fromkeys(known)),
            hint=f"did you mean {' or '.join(map(repr, close))}?" if close else None,
        )


def twins_of(name: str, known: Collection[str]) -> list[str]:
    """The options among `known` that serve the purpose that the option `name` has in another command.

    >>> twins_of("workers", ["limit", "loaders", "max_nodes"])
    ['loaders', 'max_nodes']
    """
    return [twin for twin in _TWINS.get(name, ()) if twin in known]


def keywords_of(function: Callable[..., Any]) -> list[str]:
    """The parameters of a function that may be given by name."""
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD]


def make(record: type[Record], given: Mapping[str, Any]) -> Record:
    """A record of what was given, in the shell, in Python or in JSON; the rest has its default."""
    return _filled(record, read_given(record, given))


def _filled(record: type[Record], values: Mapping[str, Any]) -> Record:
    made: dict[str, Any] = {}
    for entry in dataclasses.fields(record):  # type: ignore[arg-type]
        if "part" in entry.metadata:
            made[entry.name] = _filled(entry.metadata["part"], values)
        elif entry.name in values:
            made[entry.name] = values[entry.name]
    return record(**made)
