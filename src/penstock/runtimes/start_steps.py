"""Steps of a replica's start: noted for the trace, and begun early where they can run beside one another."""

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
    """Note what this thread does inside the block."""
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
    """Have the driver make the context of the process's only GPU now, on a thread: it takes seconds, and so does
    importing a framework, which then finds the context made."""
    if device.kind == "gpu":
        beside("gpu", _make_context)


def beside(name: str, call: Callable[[], object]) -> None:
    """Run something on a thread while this one goes on. What fails there fails again where it is needed."""

    def run() -> None:
        with contextlib.suppress(Exception):
            call()

    threading.Thread(target=run, daemon=True, name=name).start()


def _make_context() -> None:
    with step(GPU_CONTEXT):
        in_context()
