"""Host memory that the GPU reads directly. Memory that is not registered with CUDA is copied on the host first."""

import ctypes
import threading
from collections.abc import Callable

import numpy as np

from penstock.core.records import Array
from penstock.runtimes.cuda_driver import in_context

_PORTABLE = 1
_lock = threading.Lock()
_held: dict[int, memoryview] = {}
"""Registered memory by its first address. The reference keeps it mapped: if its address were given to other memory, the
GPU would still copy the old bytes."""


def register(memory: memoryview) -> Callable[[], None] | None:
    """Register memory with CUDA. Returns a function that undoes it; None where the driver refuses."""
    start = int(np.frombuffer(memory, np.uint8).ctypes.data)
    address, size = ctypes.c_void_p(start), ctypes.c_size_t(memory.nbytes)
    if not in_context(lambda driver: int(driver.cuMemHostRegister_v2(address, size, _PORTABLE))):
        return None
    with _lock:
        _held[start] = memory

    def undo() -> None:
        with _lock:
            held = _held.pop(start, None)
        if held is not None:
            in_context(lambda driver: int(driver.cuMemHostUnregister(address)))

    return undo


def is_registered(array: Array) -> bool:
    """Whether all of an array lies in registered memory, without gaps."""
    start = int(array.ctypes.data)
    with _lock:
        is_inside = any(first <= start <= first + held.nbytes - array.nbytes for first, held in _held.items())
    return is_inside and array.flags.c_contiguous
