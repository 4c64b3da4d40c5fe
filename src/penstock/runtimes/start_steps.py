"""Steps of a replica's start: they are noted for the trace, and begin early where they can run at the same time."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from penstock.core.records import Device
from penstock.core.tracing import GPU_CONTEXT, Mark
from penstock.runtimes.cuda_driver import in_context

_noted: list[Mark] = []


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    """Note for the trace when this thread is inside the context; `what` says what it does there."""
    started = time.perf_counter()
    try:
        yield
    finally:
        _noted.append(Mark(what, threading.current_thread().name, started, time.perf_counter()))


def take_marks() -> tuple[Mark, ...]:
    """What was noted since the last call."""
    taken = tuple(_noted)
    del _noted[: len(taken)]
    return taken


def open_gpu(device: Device) -> None:
    """Make the CUDA context of the process's only GPU now, on a thread.

    This takes seconds, as does the import of a framework, which then finds the context made.
    """
    if device.kind == "gpu":
        beside("gpu", _make_context)


def beside(name: str, call: Callable[[], object]) -> None:
    """Run a call on another thread. Its errors are dropped: the same step fails again where its result is needed."""

    def run() -> None:
        with contextlib.suppress(Exception):
            call()

    threading.Thread(target=run, daemon=True, name=name).start()


def _make_context() -> None:
    with step(GPU_CONTEXT):
        in_context()
