"""Run one command of either side: its wall time, and the JSON document that it prints."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

TIMEOUT_S = 3600.0
QUIET_KERAS = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}


class BenchError(Exception):
    """A side crashed, or answered something wrong: unlike a slow figure, this fails the benchmark."""


@dataclass(frozen=True)
class Finished:
    """A command that ended well."""

    seconds: float
    """From starting the process to its end, as a user at the shell sees it."""
    document: dict[str, Any]
    errors: str = ""
    """What it wrote to standard error."""


def run(command: Sequence[str], extra_env: Mapping[str, str] | None = None) -> Finished:
    """Run a command to its end and read the JSON document it prints.

    Args:
        command: the program and its arguments.
        extra_env: variables on top of this process's own.

    Raises:
        BenchError: it failed, took too long, or printed no document.
    """
    env = {**os.environ, **(extra_env or {})}
    began = time.perf_counter()
    process = subprocess.Popen(
        command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    output, errors = _communicate(process)
    seconds = time.perf_counter() - began
    if process.returncode != 0:
        raise failure(command, process.returncode, errors)
    return Finished(seconds, parse_document(output, command), errors)


def parse_document(output: str, command: Sequence[str]) -> dict[str, Any]:
    """Return the JSON document in a command's standard output."""
    begin = output.find("{")
    try:
        document: dict[str, Any] = json.loads(output[max(begin, 0) :])
    except json.JSONDecodeError as error:
        raise BenchError(f"no JSON document from {' '.join(command)}\n{_tail(output)}") from error
    return document


def failure(command: Sequence[str], exit_code: int, errors: str) -> BenchError:
    """Return what to raise for a command that failed."""
    return BenchError(f"exit code {exit_code} from {' '.join(command)}\n{_tail(errors)}")


def _tail(text: str, num_lines: int = 15) -> str:
    return "\n".join(text.splitlines()[-num_lines:])


def _communicate(process: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        return process.communicate(timeout=TIMEOUT_S)
    except BaseException as error:
        # Also on Ctrl-C: the command has a session of its own, so it would outlive us.
        _end_session(process)
        if isinstance(error, subprocess.TimeoutExpired):
            raise BenchError(f"not finished after {TIMEOUT_S:.0f} s: {process.args!r}") from error
        raise


def _end_session(process: subprocess.Popen[str]) -> None:
    """End the command and what it started; the session was made for it, so nothing else is in it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
