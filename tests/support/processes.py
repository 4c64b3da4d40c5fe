"""Processes of a test, found by a mark in their environment: also those that somebody forked and nobody waits for."""

import time
import uuid
from collections.abc import Callable

import psutil

MARK = "PENSTOCK_TEST_MARK"


def new_mark() -> str:
    return uuid.uuid4().hex


def marked(mark: str, module: str = "") -> list[psutil.Process]:
    """The living processes that inherited this mark, of which `module` is a part of the command."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            is_one = process.environ().get(MARK) == mark and any(module in word for word in process.cmdline())
            if is_one and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue  # it ended while we looked
    return found


def wait_until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait for something that happens sooner or later; the time is for the day when it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
