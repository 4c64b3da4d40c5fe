"""The JPEG engine without a GPU: its kernels compiled for this machine, and a slow decoder in the place of nvJPEG."""

from __future__ import annotations

import ctypes
import itertools
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from penstock.core.decoding import OnDevice
from penstock.core.records import Columns, Device, ModelFile, Signature, TensorSpec
from penstock.sources.images.engine import EngineDecoder, JpegEngine
from penstock.sources.images.kernels import CHECK, CHECK_BYTES, COLOUR, RESIZE
from penstock.sources.images.nvjpeg import NvJpegError
from penstock.sources.images.resizing import Rendition
from tests.support.jpeg_planes import planes_of

_HOST = r"""
#include <algorithm>
#include <cmath>
using std::max; using std::min;
#define __device__
#define __shared__
alignas(8) unsigned char memory[%d];
#define __global__
#define EACH_LANE for (int lane = 0; lane < 32; lane++)
struct Place { int x, y, z; };
static Place blockIdx, blockDim = {1, 1, 1}, threadIdx = {0, 0, 0};
%s
extern "C" void run_colour(const Planes* photos, int images, int) {
    for (int z = 0; z < images; z++)
        for (int y = 0; y < photos[z].height; y++) for (int x = 0; x < photos[z].width; x++) {
            blockIdx = {x, y, z};
            colour(photos);
        }
}
extern "C" void run_resize(const long long* table, const int* words, unsigned char* out,
                           int height, int width, int images, int) {
    for (int z = 0; z < images; z++) for (int y = 0; y < height; y++) for (int x = 0; x < width; x++) {
        blockIdx = {x, y, z};
        resize(table, words, out, height, width);
    }
}
extern "C" void run_check(const unsigned char* rows, const long long* places, const long long* sizes,
                          long long row_bytes, int* found, int photos, int blocks, int threads) {
    blockDim = {threads, 1, 1};
    for (int i = 0; i < blocks; i++) for (int n = 0; n < threads; n += 32) {
        blockIdx = {i, 0, 0}, threadIdx = {n, 0, 0};
        check(rows, places, sizes, row_bytes, found, photos);
    }
    blockDim = {1, 1, 1}, threadIdx = {0, 0, 0};
}
"""


class Pixels(np.ndarray):  # type: ignore[type-arg]
    """What of CuPy's arrays is called."""

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.__array_interface__

    def get(self) -> Any:
        return np.array(self)

    def set(self, rows: Any, stream: Any) -> None:
        self[...] = rows


class _Stream:
    ptr = 0

    def __init__(self, **options: Any) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...


class _Event:
    def __init__(self, *, block: bool, disable_timing: bool) -> None:
        assert block, "a thread that waits must not keep a core busy"
        self._stream: _Stream | None = None

    def record(self, stream: _Stream) -> None:
        self._stream = stream

    def synchronize(self) -> None:
        assert self._stream is not None, "it would not wait"


@dataclass(frozen=True)
class HostDecoder(EngineDecoder):
    """Starts the engine of this machine, whose kernels are compiled in `folder`."""

    folder: str = ""
    most: int | None = None
    """So many calls find memory."""

    def open(self) -> JpegEngine:
        return host_engine(Path(self.folder), self.rendition, Codec(most=self.most))


@dataclass(frozen=True)
class Colours:
    """A runtime without a framework: the mean colour of an image. It takes rows from the device, or does not."""

    takes_over: bool = True
    name: str = "colours"

    def environment(self, device: Device, threads: int) -> dict[str, str]:
        return {}

    def load(self, model: ModelFile, device: Device, threads: int) -> ColoursReplica:
        return ColoursReplica(takes_over=self.takes_over)


class ColoursReplica:
    signature = Signature((TensorSpec("x", "uint8", (32, 40, 3)),), (TensorSpec("y", "float64", (3,)),))

    def __init__(self, *, takes_over: bool) -> None:
        self._takes_over = takes_over

    def takes_over(self) -> bool:
        return self._takes_over

    def predict(self, batch: Columns) -> Columns:
        x: Any = batch["x"]
        if isinstance(x, OnDevice):
            assert self._takes_over
            x = x.array
        return {"y": np.asarray(x).mean(axis=(1, 2))}

    def close(self) -> None:
        pass


class Codec:
    """What of nvJPEG is called. For one photo that it does not take, it refuses all that come with it."""

    def __init__(self, refused: bytes | None = None, most: int | None = None, status: int = 4, off_by: int = 0) -> None:
        self._refused, self._most, self._status, self._off_by = refused, most, status, off_by
        self.calls: list[int] = []
        self.closed = 0

    def close(self) -> None:
        self.closed += 1

    def decode(self, addresses: Any, sizes: Any, planes: Any, stream: int) -> None:
        self.calls.append(len(sizes))
        if self._most is not None and len(self.calls) > self._most:
            raise MemoryError("there is no room for planes")
        photos = [ctypes.string_at(int(at), int(size)) for at, size in zip(addresses, sizes, strict=True)]
        if self._refused in photos:
            raise NvJpegError("nvjpegDecodeBatched", self._status)
        for photo, (places, strides) in zip(photos, planes, strict=True):
            for plane, address, stride in zip(planes_of(photo), places, strides, strict=False):
                for row, line in enumerate(np.clip(plane.astype(int) + self._off_by, 0, 255).astype(np.uint8)):
                    ctypes.memmove(int(address) + row * int(stride), line.tobytes(), len(line))


def host_engine(folder: Path, rendition: Rendition, *codecs: Codec) -> JpegEngine:
    """The engine, with a decoder for each line, or one for all; the kernels are compiled into `folder`, once."""
    library = folder / "kernels.so"
    if not library.exists():
        (folder / "kernels.cpp").write_text(_HOST % (CHECK_BYTES, CHECK + COLOUR + RESIZE))
        command = ["g++", "-O2", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error", "-shared", "-fPIC"]
        subprocess.run([*command, "-o", library, folder / "kernels.cpp"], check=True)
    loaded, turn = ctypes.CDLL(str(library)), threading.Lock()

    def kernel(name: str) -> Any:
        run = loaded[f"run_{name}"]

        def launch(
            grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...], shared_mem: int = 0
        ) -> None:
            given = [ctypes.c_void_p(a.ctypes.data) if a.ndim else ctypes.c_longlong(int(a)) for a in arguments]
            with turn:  # where the host is in its grid is the same for all threads
                run(*given, grid[-1], block[0])

        return launch

    given: Any = itertools.chain(codecs, itertools.repeat(codecs[-1]))
    return JpegEngine(host_cupy(kernel), lambda: next(given), rendition)


def host_cupy(kernel: Callable[[str], Any]) -> Any:
    """What of CuPy is called, with kernels by their names."""
    memory = SimpleNamespace(OutOfMemoryError=MemoryError)
    return SimpleNamespace(
        cuda=SimpleNamespace(Stream=_Stream, Event=_Event, memory=memory),
        get_default_memory_pool=lambda: SimpleNamespace(free_all_blocks=lambda: None),
        RawKernel=lambda source, name: kernel(name),
        empty=lambda shape, dtype: np.empty(shape, dtype).view(Pixels),
        asarray=np.asarray,
        uint8=np.uint8,
    )
