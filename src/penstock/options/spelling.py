"""Errors for Python: `inputs={'x': 'COLUMN'}` in place of `--input x=COLUMN`, and tracebacks without our own frames."""

import functools
import os
import re
from collections.abc import Callable, Iterator
from types import GeneratorType, TracebackType
from typing import Any, ParamSpec, TypeVar

from penstock.errors import PenstockError, UsageError
from penstock.options.fit_records import EVERY_OPTION as OPTIONS
from penstock.options.table import Option, keywords_of

_BY_FLAG = {option.flag.split("/")[0][2:].replace("-", "_"): option for option in OPTIONS.values()}
_SWITCHES_OF_COMMANDS = ("overwrite", "append", "verbose", "fresh")
_OF_COMMANDS = ("output", "dry_run", *_SWITCHES_OF_COMMANDS)
"""Flags of commands that are no options of a job; their keywords have the same names."""
_WORDS = ("all", "cpu", "gpu", "off", "auto")
"""Values of options that have no list of choices."""
_FLAG = re.compile(r"--(?P<flag>[a-z][a-z-]*[a-z])\b(?P<value>[ =](?:'[^']*'|[^\s'`;)]+))?")
_TWO_DICTS = re.compile(r"[}] (?:" + "|".join(name for name, each in OPTIONS.items() if each.kind.is_mapping) + ")=[{]")
_GIVEN = re.compile(rf"(?:^|(?<=, ))({'|'.join(OPTIONS)})=")
_PLAIN = re.compile(rf"(?<![\w'\"./-])({'|'.join(name for name in OPTIONS if '_' in name)})\b")
"""Keywords that are no English words."""
_LEADING = re.compile(rf"({'|'.join(OPTIONS)})(?= )")
_SHELL = re.compile(r"(`[^`]*`|\bpenstock resume .*)")
"""Commands of the shell, which stay as they are."""
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def in_python(text: str, *, is_quoted: bool = False) -> str:
    """A message with options as keywords. `is_quoted` means that only its value follows a flag.

    >>> in_python("name it: --input x=COLUMN, or --devices cpu")
    "name it: inputs={'x': 'COLUMN'}, or devices='cpu'"
    >>> in_python("--batch-size 1,024 is more than the memory holds")
    'batch_size=1024 is more than the memory holds'
    """

    def spell(match: re.Match[str]) -> str:
        return _keyword(match, text, is_quoted)

    pieces = _SHELL.split(text)
    pieces[::2] = [_FLAG.sub(spell, piece) for piece in pieces[::2]]
    pieces[1::2] = map(_command, pieces[1::2])
    return _TWO_DICTS.sub(", ", "".join(pieces))


def _command(shell: str) -> str:
    """The Python twin of a command that stands between backticks and has no arguments; any other command unchanged."""
    match = re.fullmatch(r"`penstock (inspect|devices|status|resume|plan)`", shell)
    return f"`penstock.{match[1]}`" if match else shell


def _keyword(match: re.Match[str], text: str, is_quoted: bool) -> str:
    """A flag, and its value if it has one, as a keyword; anything that looks like a flag and is none stays."""
    flag, value = match["flag"].replace("-", "_"), match["value"]
    option = _BY_FLAG.get(flag)
    if option is None and flag not in _OF_COMMANDS:
        return match[0]
    name = option.name if option is not None else flag
    if flag in _SWITCHES_OF_COMMANDS or (option is not None and option.kind.is_switch):
        return f"{name}=True{value or ''}"
    if value is None:
        return name
    tail = re.search(r"[,.:]*$", value)
    ending = tail[0] if tail else ""
    stripped = value[1 : len(value) - len(ending)].strip("'")
    if option is not None and option.kind.is_mapping and "=" in stripped:
        key, _, inside = stripped.partition("=")
        return f"{name}={{{key!r}: {_literal(inside)}}}{ending}"
    is_last = not text[text.find(match[0]) + len(match[0]) :].strip(" ,.;)")
    if is_quoted or is_last or ending or _is_value(stripped, option):
        return f"{name}={_literal(stripped)}{ending}"
    return name + value


def _is_value(word: str, option: Option | None) -> bool:
    """Whether a word behind a flag is its value, and not the next word of the sentence."""
    is_placeholder = word.isupper() or word.startswith(("MODULE", "module:"))
    if is_placeholder or word in _WORDS or any(character.isdigit() for character in word):
        return True
    return option is not None and option.kind.choices is not None and word in option.kind.choices()


def _literal(word: str) -> str:
    number = word.replace(",", "")
    if re.fullmatch(r"-?\d+(\.\d+)?", number):
        return number
    return word if word in ("N", "…", "VALUE") else repr(word.split(",") if "," in word else word)


def spelled(error: PenstockError) -> PenstockError:
    """The same error with options spelled as keywords."""
    error.problem = in_python(error.problem)
    if error.received is not None:
        error.received = in_python(error.received, is_quoted=error.received.startswith("--"))
    error.allowed = None if error.allowed is None else in_python(error.allowed)
    error.hint = None if error.hint is None else in_python(error.hint)
    error.args = (str(error),)
    return error


def in_shell(error: UsageError) -> UsageError:
    """The same error with options as flags: `--batch-size 0` in the place of `batch_size=0`."""
    leading = _LEADING.match(error.problem)
    if leading is not None and (error.received or "").startswith(f"{leading[1]}="):
        error.problem = _flag(leading) + error.problem[leading.end() :]  # _PLAIN leaves out words of English
    error.problem = _PLAIN.sub(_flag, error.problem)
    if error.received is not None:
        error.received = _GIVEN.sub(lambda match: f"{_flag(match)} ", error.received)
    error.allowed = None if error.allowed is None else _PLAIN.sub(_flag, error.allowed)
    error.args = (str(error),)
    return error


def _flag(match: re.Match[str]) -> str:
    return OPTIONS[match[1]].flag.split("/")[0]


def for_python(function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """A public function whose errors spell options as keywords, and whose tracebacks show only the caller's lines.

    Penstock's own frames are removed. The cause of an error stays if the caller's code raised it: a generator, or a
    function that preprocesses.
    """

    @functools.wraps(function)
    def called(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        try:
            answer = function(*args, **kwargs)
            return _yielded(answer) if isinstance(answer, GeneratorType) else answer  # type: ignore[return-value]
        except PenstockError as error:
            refusal, cause = spelled(error).with_traceback(None), _cause_of_caller(error.__cause__)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            # The call itself does not fit the parameters.
            refusal, cause = UsageError(str(error), allowed=", ".join(keywords_of(function))), None
        raise refusal from cause

    return called


def _yielded(blocks: Iterator[Any]) -> Iterator[Any]:
    """The blocks of a generator; its errors spell options as keywords."""
    try:
        yield from blocks
    except PenstockError as error:
        refusal, cause = spelled(error).with_traceback(None), _cause_of_caller(error.__cause__)
    else:
        return
    raise refusal from cause


def _cause_of_caller(error: BaseException | None) -> BaseException | None:
    """The cause of an error, if the caller's own code raised it."""
    last = _last_frame(error.__traceback__) if error is not None else None
    if last is None or isinstance(error, PenstockError):
        return None
    is_ours = last.startswith(_HERE + os.sep)
    return None if is_ours or "site-packages" in last or "dist-packages" in last else error


def _last_frame(trace: TracebackType | None) -> str | None:
    """The file of the last frame of a traceback, in which the error was raised."""
    frame: Any = None
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
    return None if frame is None else str(frame.f_code.co_filename)
