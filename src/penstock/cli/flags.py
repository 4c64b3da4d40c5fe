"""Flags of the commands: those of a job derive from the table of options."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from penstock.errors import UsageError
from penstock.options.fit_records import EVERY_OPTION, FIT_OPTIONS, FITTED_WITH
from penstock.options.records import OPTIONS, PredictOptions, make_options
from penstock.options.table import AUTO, Option, twins_of
from penstock.options.training_records import EVALUATE_OPTIONS, EVALUATED_WITH

Command = TypeVar("Command", bound=Callable[..., Any])

_MOST_USED = (
    "output", "label", "epochs", "metrics", "inputs", "keep", "preset", "preprocess", "top_k", "batch_size", "devices",
    "limit", "dry_run",
)  # fmt: skip
"""The options that the help lists first; each option is listed once."""


_NOT_OF_PLANS = ("plan", "trace")
"""Options that a search for a plan refuses."""


_MOST_ARGUMENTS = 9
"""A command with more arguments is shown with MODEL and INPUT in their place: the shell may have expanded a glob to
thousands of files."""


class _OneOf(click.ParamType):  # type: ignore[type-arg]  # not generic in older versions
    """One of some names, which are looked up when the help, a completion or a value needs them."""

    name = "choice"

    def __init__(self, option: Option) -> None:
        self._option = option

    def _names(self) -> tuple[str, ...]:
        find = self._option.kind.choices
        assert find is not None
        return (AUTO, *find()) if self._option.kind.has_auto else find()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value not in self._names():
            self.fail(f"{value!r} is not one of {', '.join(self._names())}", param, ctx)
        return value

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return f"[{'|'.join(self._names())}]"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        return [click.shell_completion.CompletionItem(name) for name in self._names() if name.startswith(incomplete)]


def flag_of(option: Option) -> Callable[[Command], Command]:
    """The flag of an option."""
    kind = option.kind
    settings: dict[str, Any] = dict(kind.shell)
    if kind.choices is not None:
        settings["type"] = _OneOf(option)
    if kind.metavar is not None:
        settings["metavar"] = kind.metavar
    default = AUTO if kind.has_auto else kind.write(option.default)
    if isinstance(default, (str, int, float)) and not isinstance(default, bool):
        settings |= {"default": default, "show_default": True}
    elif "/" in option.flag:
        settings["default"] = None  # neither side was given
    return click.option(option.flag, option.name, help=option.help, **settings)


def job_options(command: Command) -> Command:
    """The options of a prediction job."""
    for option in reversed(list(OPTIONS.values())):
        command = flag_of(option)(command)
    return command


def some_options(*names: str) -> Callable[[Command], Command]:
    """Some options of a job, for another command."""

    def decorate(command: Command) -> Command:
        for name in reversed(names):
            command = flag_of(EVERY_OPTION[name])(command)
        return command

    return decorate


def evaluation_options(command: Command) -> Command:
    """The options of an evaluation: what is measured, and the options that it shares with a job."""
    for option in reversed([*EVALUATE_OPTIONS.values(), *(OPTIONS[name] for name in EVALUATED_WITH)]):
        command = flag_of(option)(command)
    return command


def fit_options(command: Command) -> Command:
    """The options of training: what is learned and how, and the options that it shares with a job."""
    for option in reversed([*FIT_OPTIONS.values(), *FITTED_WITH.values()]):
        command = flag_of(option)(command)
    return command


class GroupedCommand(click.Command):
    """A command whose help shows the options of a job under headings."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what was given.

        Raises:
            UsageError: The flag belongs to another command, and this command has other flags for the same purpose.
        """
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            twins = twins_of(error.option_name[2:].replace("-", "_"), [str(each.name) for each in self.get_params(ctx)])
            if not twins:
                raise
            flags = " or ".join(EVERY_OPTION[name].flag for name in twins)
            problem = f"penstock {ctx.info_name} has no such option"
            raise UsageError(problem, received=error.option_name, hint=f"did you mean {flags}?") from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        entries = {str(option.name): entry for option in options if (entry := option.get_help_record(ctx))}
        first = FIT_OPTIONS if "epochs" in entries else EVALUATE_OPTIONS if "label" in entries else OPTIONS
        own = {**first, **EVERY_OPTION, **first}
        groups: dict[str, list[tuple[str, str]]] = {"Options most used": []}
        for name in _MOST_USED:
            if name in entries:
                groups["Options most used"].append(entries.pop(name))
        for name in [*own, *(name for name in entries if name not in own)]:
            if name in entries:
                heading = own[name].group if name in own else "Other options"
                groups.setdefault(heading, []).append(entries[name])
        for heading, lines in groups.items():
            with formatter.section(heading):
                formatter.write_dl(lines)


def output_options(command: Command) -> Command:
    """The options that decide what a command prints: --json, --verbose and --quiet."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, all else on stderr."),
        click.option("--verbose", is_flag=True, help="Let the frameworks write all they want to the log."),
        click.option("--quiet", is_flag=True, help="Show errors only."),
    ):
        command = option(command)
    return command


def plan_command(context: click.Context) -> str:
    """The `penstock plan` line with the model, input and options that were given to `penstock predict`."""
    words = ["penstock", "plan"]
    for param in context.command.params:
        value = context.params[str(param.name)]
        if isinstance(param, click.Argument):
            words += value if len(value) <= _MOST_ARGUMENTS else ("MODEL", "INPUT")
        elif param.name in OPTIONS and param.name not in _NOT_OF_PLANS and _is_given(context, param):
            words += _flags(param, value)
    return shlex.join(map(str, words))


def _is_given(context: click.Context, param: click.Parameter) -> bool:
    return context.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE


def _flags(param: click.Parameter, value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [param.opts[0] if value else param.secondary_opts[0]]
    return [word for each in (value if param.multiple else [value]) for word in (param.opts[0], each)]


def options_from_flags(values: Mapping[str, Any]) -> PredictOptions:
    """The options of a job. Only --estimator makes MODEL an Estimator's function; --checkpoint alone does not."""
    return make_options({**values, "estimator": values["estimator"] is not None})
