"""The binding of nvJPEG, with a library of our own in its place: what it is called with, and what its answers mean."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from penstock.core.decoding import Undecoded
from penstock.core.memory import speaks_of_memory
from penstock.errors import DeviceError
from penstock.sources.images import engine, nvjpeg
from penstock.sources.images.engine import EngineDecoder
from penstock.sources.images.nvjpeg import PLANES, NvJpegError, PlaneDecoder
from penstock.sources.images.resizing import Rendition
from tests.support.host_engine import host_cupy

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler here")

_LIBRARY = r"""
#include <stddef.h>
typedef struct { unsigned char* channel[4]; size_t pitch[4]; } Image;
int backend, answer, initialized, batch, format, open_things;
void* stream;
int nvjpegCreateEx(int asked, void* device, void* pinned, unsigned flags, void** handle) {
    if (answer) return answer;
    backend = asked, open_things++, *handle = &backend;
    return device || pinned || flags;
}
int nvjpegJpegStateCreate(void* handle, void** state) { open_things++, *state = &batch; return handle != &backend; }
int nvjpegJpegStateDestroy(void* state) { open_things--; return 0; }
int nvjpegGetProperty(int place, int* value) { *value = 12 + place; return 0; }
int nvjpegDestroy(void* handle) { open_things--; return 0; }
int nvjpegDecodeBatchedInitialize(void* handle, void* state, int count, int threads, int asked) {
    if (answer) return answer;
    initialized++, batch = count, format = asked;
    return handle != &backend || state != &batch || threads != 1;
}
int nvjpegDecodeBatched(void* handle, void* state, const unsigned char* const* data, const size_t* sizes,
                        Image* images, void* on) {
    stream = on;
    if (answer) return answer;
    for (int i = 0; i < batch; i++)  // the last byte of a photo goes to the second row of each plane
        for (int c = 0; c < 3; c++) images[i].channel[c][images[i].pitch[c]] = data[i][sizes[i] - 1] + c;
    return 0;
}
"""


@pytest.fixture
def library(tmp_path: Path) -> Any:
    source, path = tmp_path / "nvjpeg.c", tmp_path / "libnvjpeg.so.12"
    source.write_text(_LIBRARY)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", path, source], check=True)
    return ctypes.CDLL(str(path))


def value(library: Any, name: str) -> int:
    return ctypes.c_int.in_dll(library, name).value


def test_photos_and_planes_are_given_by_their_addresses(library: Any) -> None:
    decoder = PlaneDecoder(library)
    assert value(library, "backend") == 5  # the engine, which reads what lies on the GPU
    photos = [np.array([1, 2, 30], np.uint8), np.array([40], np.uint8)]
    planes = np.zeros((2, 3, 2, 8), np.uint8)
    told = np.zeros(2, PLANES)
    told["address"][:, :3] = planes.ctypes.data + np.arange(6).reshape(2, 3) * 16
    told["stride"] = 8
    addresses = np.array([photo.ctypes.data for photo in photos], np.uint64)
    decoder.decode(addresses, np.array([3, 1], np.uint64), told, 77)
    assert planes[:, :, 1, 0].tolist() == [[30, 31, 32], [40, 41, 42]]
    assert not planes[:, :, 0].any()
    assert (value(library, "batch"), value(library, "format")) == (2, 1)
    assert ctypes.c_void_p.in_dll(library, "stream").value == 77


def test_answers_that_are_no_success_are_errors_that_say_what_they_mean(library: Any) -> None:
    decoder, answer = PlaneDecoder(library), ctypes.c_int.in_dll(library, "answer")
    nothing = np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, PLANES)
    for status, is_memory in ((3, False), (5, True), (6, False)):
        answer.value = status
        with pytest.raises(NvJpegError, match=f"nvjpegDecodeBatched returned {status}") as caught:
            decoder.decode(*nothing, 0)
        assert caught.value.is_short_of_memory == is_memory
        assert speaks_of_memory(str(caught.value)) == is_memory
    answer.value = 7
    with pytest.raises(NvJpegError, match="nvjpegCreateEx returned 7") as caught:
        PlaneDecoder(library)
    assert caught.value.is_without_engine


def test_a_batch_size_whose_preparation_failed_leaves_none_prepared(library: Any) -> None:
    decoder, answer = PlaneDecoder(library), ctypes.c_int.in_dll(library, "answer")
    planes, told = np.zeros((3, 2, 8), np.uint8), np.zeros(2, PLANES)
    told["address"][:, :3] = planes.ctypes.data + np.arange(3) * 16
    told["stride"] = 8
    photo = np.array([1], np.uint8)
    addresses, sizes = np.full(2, photo.ctypes.data, np.uint64), np.ones(2, np.uint64)
    decoder.decode(addresses[:1], sizes[:1], told[:1], 0)
    answer.value = 6
    with pytest.raises(NvJpegError, match="nvjpegDecodeBatchedInitialize returned 6"):
        decoder.decode(addresses, sizes, told, 0)
    answer.value = 0
    decoder.decode(addresses[:1], sizes[:1], told[:1], 0)
    assert value(library, "initialized") == 2


def test_a_gpu_without_an_engine_is_told_where_one_was_asked_for_and_else_loaders_decode(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "find_library", lambda: library)
    monkeypatch.setitem(sys.modules, "cupy", host_cupy(lambda name: SimpleNamespace()))
    ctypes.c_int.in_dll(library, "answer").value = 7
    with pytest.raises(DeviceError, match="this GPU has no JPEG engine"):
        EngineDecoder(Rendition(engine_share=0.5)).open()
    with pytest.raises(Undecoded, match="this GPU has no JPEG engine"):
        EngineDecoder(Rendition(engine_share=0.5), is_asked_for=False).open()
    assert value(library, "open_things") == 0


def test_the_version_is_that_of_the_library_itself(library: Any) -> None:
    assert nvjpeg.version_of(library) == "12.13.14"


def test_what_was_made_is_given_back(library: Any) -> None:
    decoder = PlaneDecoder(library)
    assert value(library, "open_things") == 2
    decoder.close()
    decoder.close()
    assert value(library, "open_things") == 0


def test_a_library_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvjpeg, "_NAMES", ("libnvjpeg.so.1",))
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    with pytest.raises(OSError, match=r"libnvjpeg\.so\.1"):
        nvjpeg.find_library()


def test_the_library_of_a_package_comes_before_that_of_the_system(
    library: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = SimpleNamespace(abs_path=str(tmp_path / "libnvjpeg.so.12"))
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", SimpleNamespace(load_nvidia_dynamic_lib=lambda name: found))
    assert nvjpeg.version_of(nvjpeg.find_library()) == "12.13.14"
