"""Calls that are tried again."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from penstock.core.retrying import LONGEST_WAIT_S, http_status, may_pass, retrying, wait_after


def failing(errors: list[Exception]) -> Callable[[], str]:
    """A call that raises these errors, one each time, and then succeeds."""

    def call() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    return call


def test_call_that_succeeds_is_made_once() -> None:
    waits: list[float] = []
    assert retrying(failing([]), is_transient=may_pass, sleep=waits.append) == "done"
    assert waits == []


def test_call_is_tried_again_after_errors_that_may_pass_and_waits_longer_each_time() -> None:
    waits: list[float] = []
    errors: list[Exception] = [TimeoutError(), ConnectionResetError(), BrokenPipeError()]
    assert retrying(failing(errors), is_transient=may_pass, sleep=waits.append) == "done"
    assert [0.1 <= waits[0] <= 0.2, 0.2 <= waits[1] <= 0.4, 0.4 <= waits[2] <= 0.8] == [True] * 3


def test_error_that_does_not_pass_is_raised_at_once() -> None:
    waits: list[float] = []
    with pytest.raises(PermissionError):
        retrying(failing([PermissionError("no")]), is_transient=may_pass, sleep=waits.append)
    assert waits == []


def test_last_error_is_raised_after_the_last_try() -> None:
    waits: list[float] = []
    errors: list[Exception] = [TimeoutError(str(number)) for number in range(9)]
    with pytest.raises(TimeoutError, match="3"):
        retrying(failing(errors), is_transient=may_pass, sleep=waits.append, tries=4)
    assert len(waits) == 3


def test_waiting_is_bounded() -> None:
    assert all(wait_after(attempt) <= LONGEST_WAIT_S for attempt in range(1, 60))


class Answer(Exception):
    """An error with an HTTP status, as several stores have it."""

    def __init__(self, **fields: object) -> None:
        vars(self).update(fields)


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (TimeoutError(), True),
        (ConnectionRefusedError(), True),
        (OSError(errno.EBUSY, "slow down"), True),
        (OSError(errno.ENOSPC, "full"), False),
        (FileNotFoundError(), False),
        (ValueError(), False),
        (Answer(status=503), True),
        (Answer(status=403), False),
        (Answer(status=501), False),
        (Answer(status_code=429), True),
        (Answer(code=500), True),
        (Answer(code="E1"), False),
        (Answer(response={"ResponseMetadata": {"HTTPStatusCode": 500}}), True),
        (Answer(response={"ResponseMetadata": {"HTTPStatusCode": 412}}), False),
    ],
)
def test_errors_that_may_pass_are_known_by_type_and_status(error: Exception, passes: bool) -> None:
    assert may_pass(error) == passes


def test_status_is_found_behind_an_error_that_was_translated() -> None:
    translated = OSError(errno.EINVAL, "a condition did not hold")
    translated.__cause__ = Answer(response={"ResponseMetadata": {"HTTPStatusCode": 412}})
    assert http_status(translated) == 412
    assert http_status(OSError("no answer at all")) is None
