"""CUDA's driver, called without any framework."""

import ctypes
import functools
from collections.abc import Callable
from typing import Any


def in_context(call: Callable[[Any], int] = lambda driver: 0) -> bool:
    """Whether a call of the driver succeeds in the context of the process's only GPU, which is made if need be.

    False, too, where there is no driver or no GPU.
    """
    driver, context = _driver_and_context()
    if context is None or driver.cuCtxPushCurrent_v2(context):
        return False
    try:
        return call(driver) == 0
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


@functools.cache
def _driver_and_context() -> tuple[Any, ctypes.c_void_p | None]:
    """The context is the one that every framework of the process uses; it is held until the process ends."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None, None
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return driver, None
    return driver, None if driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) else context
