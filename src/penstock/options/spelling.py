"""Messages for Python: `inputs={'x': 'COLUMN'}` in the place of `--input x=COLUMN`, and without our own frames."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator
from types import GeneratorType, TracebackType
from typing import Any, ParamSpec, TypeVar

from penstock.errors import PenstockError
from penstock.options.keywords import Keywords

_DICTS = {"input": "inputs", "constant": "constants", "rename": "rename", "feature": "features"}
"""Flags that take NAME=VALUE, and the keyword that takes a dict."""
_SWITCHES = (
    "overwrite",
    "trust_model",
    "verbose",
    "check",
    "argmax",
    "as_example",
    "estimator",
    "fresh",
    "fast_decode",
)
_OTHERS = {"image": "images", "output": "output", "outputs": "outputs", "dry_run": "dry_run"}
_FLAG = re.compile(r"--(?P<flag>[a-z][a-z-]*[a-z])\b(?P<value>[ =](?:'[^']*'|[^\s'`;)]+))?")
_TWO_DICTS = re.compile(r"[}] (?:inputs|constants|rename|features)=[{]")
_SHELL = re.compile(r"(`[^`]*`)")
_CHOICES = (
    "all", "cpu", "gpu", "off", "auto", "parquet", "npy", "jsonl", "csv", "onnx", "openvino", "tf_keras", "tensorflow",
    "torch", "jax", "model", "int8", "bfloat16", "float16", "always", "never",
)  # fmt: skip
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def in_python(text: str, *, is_quoted: bool = False) -> str:
    """A message with options as keywords. `is_quoted` says that a flag is followed by its value and nothing else.

    >>> in_python("name it: --input x=COLUMN, or --devices cpu")
    "name it: inputs={'x': 'COLUMN'}, or devices='cpu'"
    >>> in_python("--batch-size 1,024 is more than the memory holds")
    'batch_size=1024 is more than the memory holds'
    """
    pieces = _SHELL.split(text)
    told = "".join(
        _command(piece) if piece.startswith("`") else _FLAG.sub(lambda found: _keyword(found, text, is_quoted), piece)
        for piece in pieces
    )
    return _TWO_DICTS.sub(", ", told)


def _command(shell: str) -> str:
    """A command between backticks, by the name of its twin where it has nothing but a name."""
    found = re.fullmatch(r"`penstock (inspect|devices|status|resume|plan)`", shell)
    return f"`penstock.{found[1]}`" if found else shell


def _keyword(found: re.Match[str], text: str, is_quoted: bool) -> str:
    flag, value = found["flag"].replace("-", "_"), found["value"]
    name = _DICTS.get(flag) or _OTHERS.get(flag) or flag
    if name not in Keywords.__annotations__ and flag not in (*_SWITCHES, *_OTHERS):
        return found[0]
    if flag in _SWITCHES:
        return f"{name}=True{value or ''}"
    if value is None:
        return name
    tail = re.search(r"[,.:]*$", value)
    ending = tail[0] if tail else ""
    stripped = value[1 : len(value) - len(ending)].strip("'")
    if flag in _DICTS and "=" in stripped:
        key, _, inside = stripped.partition("=")
        return f"{name}={{{key!r}: {_literal(inside)}}}{ending}"
    is_last = not text[text.find(found[0]) + len(found[0]) :].strip(" ,.;)")
    if is_quoted or is_last or ending or _is_value(stripped):
        return f"{name}={_literal(stripped)}{ending}"
    return name + value


def _is_value(word: str) -> bool:
    is_place = word.isupper() or word.startswith(("MODULE", "module:"))
    return is_place or word in _CHOICES or any(character.isdigit() for character in word)


def _literal(word: str) -> str:
    number = word.replace(",", "")
    if re.fullmatch(r"-?\d+(\.\d+)?", number):
        return number
    return word if word in ("N", "…", "VALUE") else repr(word.split(",") if "," in word else word)


def spelled(error: PenstockError) -> PenstockError:
    """The error as Python users write their calls."""
    error.problem = in_python(error.problem)
    if error.received is not None:
        error.received = in_python(error.received, is_quoted=error.received.startswith("--"))
    error.allowed = None if error.allowed is None else in_python(error.allowed)
    error.hint = None if error.hint is None else in_python(error.hint)
    error.args = (str(error),)
    return error


def for_python(function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """A public function whose refusals are in the caller's spelling, with the caller's own lines in the traceback.

    What lies between the call and the refusal is ours, and tells the caller nothing. The cause stays where code of the
    caller's own raised it: a generator, or a function that preprocesses.
    """

    @functools.wraps(function)
    def called(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        try:
            answer = function(*args, **kwargs)
            return _told(answer) if isinstance(answer, GeneratorType) else answer  # type: ignore[return-value]
        except PenstockError as error:
            told, cause = spelled(error).with_traceback(None), _of_the_caller(error.__cause__)
        raise told from cause

    return called


def _told(blocks: Iterator[Any]) -> Iterator[Any]:
    """What a generator yields, and what it raises in the caller's spelling."""
    try:
        yield from blocks
    except PenstockError as error:
        told, cause = spelled(error).with_traceback(None), _of_the_caller(error.__cause__)
    else:
        return
    raise told from cause


def _of_the_caller(error: BaseException | None) -> BaseException | None:
    last = _last_frame(error.__traceback__) if error is not None else None
    if last is None or isinstance(error, PenstockError):
        return None
    is_ours = last.startswith(_HERE + os.sep)
    return None if is_ours or "site-packages" in last or "dist-packages" in last else error


def _last_frame(trace: TracebackType | None) -> str | None:
    """The file in which something was raised."""
    frame: Any = None
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
    return None if frame is None else str(frame.f_code.co_filename)
