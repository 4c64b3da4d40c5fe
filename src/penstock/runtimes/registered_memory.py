"""Host memory that the GPU copies from by itself: registered with CUDA once, and held from then on.

What is not registered is copied on the host first, into a buffer that is.
"""

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.core.records import Array

_PORTABLE = 1
_lock = threading.Lock()
_held: dict[int, memoryview] = {}
"""Registered memory by its first address. It is held, so that it stays mapped: where an address came to mean other
memory, the GPU would copy what lay there before."""


def register(memory: memoryview) -> Callable[[], None] | None:
    """Register memory with CUDA, in the context of the process's only GPU.

    Gives what undoes it; None where it fails.
    """
    start = int(np.frombuffer(memory, np.uint8).ctypes.data)

    def undo() -> None:
        with _lock:
            if _held.pop(start, None) is not None:
                _in_context(lambda driver: driver.cuMemHostUnregister(ctypes.c_void_p(start)))

    with _lock:
        size = ctypes.c_size_t(memory.nbytes)
        if not _in_context(lambda driver: driver.cuMemHostRegister_v2(ctypes.c_void_p(start), size, _PORTABLE)):
            return None
        _held[start] = memory
    return undo


def is_registered(array: Array) -> bool:
    """Whether all of an array lies in registered memory, without gaps."""
    start = int(array.ctypes.data)
    with _lock:
        is_inside = any(first <= start <= first + held.nbytes - array.nbytes for first, held in _held.items())
    return is_inside and array.flags.c_contiguous


def _in_context(call: Callable[[Any], int]) -> bool:
    """Whether a call of the driver succeeds; False, too, where there is no driver or no GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return False
    if driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) or driver.cuCtxPushCurrent_v2(context):
        return False
    try:
        return call(driver) == 0
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))
