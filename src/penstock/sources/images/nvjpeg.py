"""nvJPEG, NVIDIA's library for the JPEG engine of a GPU, by ctypes: JPEGs become planes on the GPU.

A JPEG consists of planes: one of light, and two of colour, often at half the size. From them, the very pixels of
libjpeg-turbo can be made; nvJPEG rounds its own RGB in another way.
"""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

import numpy as np

from penstock.core.records import Array

PLANES = np.dtype([("address", np.uint64, 4), ("stride", np.uint64, 4)])
"""Where the planes of a photo go: `nvjpegImage_t`. Three of the four are used."""

_ENGINE_READS_GPU = 5  # NVJPEG_BACKEND_HARDWARE_DEVICE
_TO_PLANES = 1  # NVJPEG_OUTPUT_YUV
_REFUSED = (3, 4, 9, 10)  # bad, not supported, not implemented, incomplete
_NO_ENGINE = (7, 9)  # NVJPEG_STATUS_ARCH_MISMATCH, NVJPEG_STATUS_IMPLEMENTATION_NOT_SUPPORTED
_NO_MEMORY = 5  # NVJPEG_STATUS_ALLOCATOR_FAILURE
_NAMES = ("libnvjpeg.so.13", "libnvjpeg.so.12")


class NvJpegError(Exception):
    """A call of nvJPEG failed."""

    def __init__(self, call: str, status: int) -> None:
        super().__init__(f"{call} returned {status}{': out of memory' if status == _NO_MEMORY else ''}")
        self.is_short_of_memory = status == _NO_MEMORY
        self.is_refusal = status in _REFUSED
        self.is_without_engine = status in _NO_ENGINE


def find_library() -> Any:
    """nvJPEG, from its package or from the system. It is light, and touches no GPU before it is called.

    Raises:
        OSError: It is not there.
    """
    for name in (_path_of_package(), *_NAMES):
        try:
            if name is not None:
                return ctypes.CDLL(name)
        except OSError as error:
            missing = error
    raise missing


def _path_of_package() -> str | None:
    try:
        path: str | None = importlib.import_module("cuda.pathfinder").load_nvidia_dynamic_lib("nvjpeg").abs_path
    except (ImportError, RuntimeError, OSError):
        return None
    return path


def version_of(library: Any) -> str:
    numbers = []
    for place in range(3):
        number = ctypes.c_int()
        library.nvjpegGetProperty(place, ctypes.byref(number))
        numbers.append(str(number.value))
    return ".".join(numbers)


class PlaneDecoder:
    """One user of the engine. Its calls must come one after another."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._handle, self._state = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("nvjpegCreateEx", _ENGINE_READS_GPU, None, None, 0, ctypes.byref(self._handle))
        try:
            self._call("nvjpegJpegStateCreate", self._handle, ctypes.byref(self._state))
        except NvJpegError:
            self.close()
            raise
        self._made_for = 0
        self._given: tuple[Array, ...] = ()

    def decode(self, addresses: Array, sizes: Array, planes: Array, stream: int) -> None:
        """Let photos be decoded, in the order of a stream. The call before must have been carried out.

        Args:
            addresses: Where each lies on the GPU.
            sizes: How many bytes it has.
            planes: Where its planes go.
            stream: The stream of CUDA.

        Raises:
            NvJpegError: The engine does not take one of the photos, or memory is short. Then none of the planes is
                valid.
        """
        assert addresses.dtype == sizes.dtype == np.uint64
        assert planes.dtype == PLANES
        self._given = (addresses, sizes, planes)  # kept: nvJPEG may read them after the call
        made_for, self._made_for = self._made_for, 0
        if len(sizes) != made_for:
            threads = 1
            self._call("nvjpegDecodeBatchedInitialize", self._handle, self._state, len(sizes), threads, _TO_PLANES)
        given = [ctypes.c_void_p(each.ctypes.data) for each in self._given]
        self._call("nvjpegDecodeBatched", self._handle, self._state, *given, ctypes.c_void_p(stream))
        self._made_for = len(sizes)

    def close(self) -> None:
        """Free its memory on the GPU. All decoding must have ended."""
        if self._state:
            self._library.nvjpegJpegStateDestroy(self._state)
        if self._handle:
            self._library.nvjpegDestroy(self._handle)
        self._handle, self._state = ctypes.c_void_p(), ctypes.c_void_p()

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise NvJpegError(name, status)
