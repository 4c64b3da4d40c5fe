"""The exception tree: exit codes, messages, and the way from a replica to the coordinator."""

from __future__ import annotations

import copy
import pickle
import signal

import pytest

from penstock import errors
from penstock.errors import Interrupted, PenstockError, UsageError, one_line

EXIT_CODES = {
    "PenstockError": 1,
    "UsageError": 2,
    "TooManyFailures": 4,
    "InputError": 5,
    "ModelError": 6,
    "RefusedByRuntime": 6,
    "OutputError": 7,
    "DeviceError": 8,
    "OutOfMemory": 8,
    "WorkersDied": 9,
    "Interrupted": 130,
}


def classes() -> dict[str, type[PenstockError]]:
    found = {name: value for name, value in vars(errors).items() if isinstance(value, type)}
    return {name: value for name, value in found.items() if issubclass(value, PenstockError)}


def test_every_error_has_the_exit_code_that_the_documents_promise() -> None:
    assert {name: kind.exit_code for name, kind in classes().items()} == EXIT_CODES


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = [line for line in (errors.__doc__ or "").splitlines() if line.startswith("    ")]
    words = [[word for word in line.split() if word.isalnum()] for line in drawn]
    codes = {name: int(code) for name, code, *_ in words}
    assert codes == EXIT_CODES


@pytest.mark.parametrize("name", EXIT_CODES)
def test_pickling_keeps_class_fields_and_exit_code(name: str) -> None:
    error = classes()[name]("it broke", received="x=1", allowed="x=2", hint="try y")
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is type(error)
    assert (copied.problem, copied.received, copied.allowed, copied.hint) == ("it broke", "x=1", "x=2", "try y")
    assert copied.exit_code == error.exit_code
    assert str(copied) == str(error)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_pickling_keeps_the_exit_code_of_a_signal(number: signal.Signals) -> None:
    error = Interrupted.by_signal(number, "stopped", hint="resume")
    assert pickle.loads(pickle.dumps(error)).exit_code == copy.copy(error).exit_code == 128 + number


def test_interrupts_take_the_exit_code_of_their_signal_and_leave_the_class_alone() -> None:
    assert Interrupted.by_signal(signal.SIGTERM, "stopped").exit_code == 143
    assert Interrupted.by_signal(signal.SIGINT, "stopped").exit_code == 130
    assert Interrupted("stopped").exit_code == Interrupted.exit_code == 130


def test_message_says_problem_received_allowed_hint_each_on_its_line() -> None:
    error = UsageError("it broke", received="x=1", allowed="x=2", hint="try y")
    assert str(error) == "it broke\nreceived: x=1\nallowed: x=2\nhint: try y"


def test_message_leaves_out_what_is_not_known() -> None:
    assert str(UsageError("it broke")) == "it broke"
    assert str(UsageError("it broke", hint="try y")) == "it broke\nhint: try y"
    assert str(UsageError("it broke", received="")) == "it broke\nreceived: "


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("bad\nand more"), "ValueError: bad"),
        (ValueError("\n\n  spaced  \n"), "ValueError: spaced"),
        (ValueError(""), "ValueError"),
        (KeyError("name"), "KeyError: 'name'"),
        (ValueError("Graph execution error:\n\nDetected at node x\n  File y\nbad shape"), "ValueError: bad shape"),
        (TypeError("in user code:\n\n  File x\n  the reason"), "TypeError: the reason"),
        (RuntimeError("x" * 500), "RuntimeError: " + "x" * 286),
        (
            ConnectionAbortedError("Initialization failure from server:\nTraceback (most recent call last):\n\nX: no"),
            "ConnectionAbortedError: X: no",
        ),
    ],
)
def test_reason_of_a_framework_fits_one_line(error: Exception, expected: str) -> None:
    assert one_line(error) == expected
    assert "\n" not in one_line(error)
