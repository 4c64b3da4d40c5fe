"""The JPEG engine of a GPU, through nvImageCodec: photos are decoded there and resized by one small kernel.

All rows of a batch come together in one array there, which frameworks take over. Only the engine itself is asked for,
never the GPU's cores or the CPU in its place: which one decodes an image decides its bits.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import queue
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from penstock.core.decoding import OnDevice
from penstock.core.deferred import BadRows
from penstock.core.memory import speaks_of_memory
from penstock.core.queues import drained
from penstock.core.records import Array
from penstock.errors import DeviceError, OutOfMemory, one_line
from penstock.sources.images.coefficients import sums_of
from penstock.sources.images.decoding import decode_into
from penstock.sources.images.kernels import CHECK, CHECK_BYTES, CHECKED_AT_ONCE, RESIZE
from penstock.sources.images.resizing import Rendition, Size, simplejpeg

T = TypeVar("T")

INSTALL = "pip install 'penstock[gpu]' (CUDA 12) or 'penstock[gpu-cuda13]'"
AT_ONCE = 256
"""Measured on an H200: 20,600 images/s in batches of 256 on one thread; less with smaller ones, or more threads."""
CPU_THREADS = 1
"""They look at headers; loaders need the cores."""
_SIDES = (32, 8)
"""Threads of a block, across and down."""


def is_installed() -> bool:
    """Whether the libraries are there; nothing is imported but the folder that NVIDIA's packages share."""
    try:
        return all(importlib.util.find_spec(name) is not None for name in ("cupy", "nvidia.nvimgcodec"))
    except ImportError:
        return False


def version() -> str:
    """The version of nvImageCodec, for a manifest."""
    for name in ("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "not installed as a package"


@dataclass(frozen=True)
class EngineDecoder:
    """See `core.decoding.DeviceDecoder`."""

    rendition: Rendition

    @property
    def share(self) -> float:
        return self.rendition.engine_share

    def open(self) -> JpegEngine:
        try:
            cupy, codec = (importlib.import_module(name) for name in ("cupy", "nvidia.nvimgcodec"))
        except ImportError as error:
            raise DeviceError(
                "what decodes JPEGs on a GPU is not installed", received=one_line(error), hint=INSTALL
            ) from None
        try:
            engine = JpegEngine(cupy, codec, self.rendition)
            is_there = engine.can_decode()
        except Exception as error:
            short = _what_was_short(cupy, error)
            if short is not None:
                raise short from None
            raise DeviceError(
                "the JPEG engine of the GPU does not start", received=one_line(error), hint="--decoder cpu"
            ) from error
        if not is_there:
            raise DeviceError(
                "this GPU has no JPEG engine, or libnvjpeg is not found",
                received=f"nvImageCodec {codec.__version__} decodes nothing on it",
                allowed="GPUs such as A100, H100, H200 and B200",
                hint="--decoder cpu",
            )
        return engine


class JpegEngine:
    """The live engine, on the only GPU of this process."""

    def __init__(self, cupy: Any, codec: Any, rendition: Rendition) -> None:
        self._cupy, self._codec, self._rendition = cupy, codec, rendition
        self._check, self._kernel = cupy.RawKernel(CHECK, "check"), cupy.RawKernel(RESIZE, "resize")
        self._check.max_dynamic_shared_size_bytes = CHECK_BYTES
        self._idle: queue.SimpleQueue[Line] = queue.SimpleQueue()
        self._memory_of = cupy.cuda.Stream(non_blocking=True)

    def can_decode(self) -> bool:
        """Whether it decodes a picture: a GPU without an engine gives none. All that runs in a job runs once."""
        picture = np.arange(256 * 256 * 3, dtype=np.uint32).reshape(256, 256, 3).astype(np.uint8)
        data = np.frombuffer(simplejpeg().encode_jpeg(picture, colorsubsampling="420"), np.uint8)
        rows = np.zeros((1, *picture.shape), np.uint8)
        rows.reshape(-1)[: len(data)] = data
        self.decode(rows, np.array([len(data)]), 1)
        with self.line() as line:
            return line.decode([self._codec.CodeStream(data)])[0] is not None

    def decode(self, rows: Array, encoded: Array, real: int) -> tuple[OnDevice, BadRows]:
        """See `core.decoding.Decoder`."""
        return self._within_memory(lambda: self._decode_batch(rows, encoded, real))

    def reserve(self, shape: tuple[int, ...], batches: int, at_once: int) -> None:
        """See `core.decoding.Decoder`."""
        with contextlib.ExitStack() as held:
            self._within_memory(lambda: [held.enter_context(self.line()) for _ in range(at_once)])
        self._within_memory(lambda: [self._room(shape) for _ in range(batches)])

    @contextlib.contextmanager
    def line(self) -> Iterator[Line]:
        """A line for one batch, of those that no other thread has now, or a new one."""
        try:
            line = self._idle.get_nowait()
        except queue.Empty:
            line = Line(self._cupy, self._codec)
        try:
            yield line
        finally:
            # Where it failed half-way, nothing may be written any more to what is let go of.
            with contextlib.suppress(Exception):
                line.stream.synchronize()
            self._idle.put(line)

    def _room(self, shape: tuple[int, ...]) -> Any:
        # CuPy keeps what is freed for the stream that it was taken on, and any line may take what another has left.
        with self._memory_of:
            return self._cupy.empty(shape, self._cupy.uint8)

    def _within_memory(self, run: Callable[[], T]) -> T:
        try:
            return run()
        except Exception as error:
            short = _what_was_short(self._cupy, error)
            if short is None:
                raise
        # Outside the except block: the traceback of the error holds what is on the GPU.
        for line in drained(self._idle):
            line.images = []
            self._idle.put(line)
        self._cupy.get_default_memory_pool().free_all_blocks()
        raise short

    def _decode_batch(self, rows: Array, encoded: Array, real: int) -> tuple[OnDevice, BadRows]:
        bad = BadRows()
        places = np.flatnonzero(encoded[:real])
        pixels = self._room(rows.shape)
        with self.line() as line, line.stream:
            # All of it in one copy: what is encoded is looked through, and then overwritten.
            is_whole = self.put_and_look(line, rows, pixels, places, encoded[places])
            for place in places[~is_whole].tolist():
                self._decode_here(_bytes_of(rows, encoded, place), place, pixels, line, bad)
            whole = places[is_whole]
            for start in range(0, len(whole), AT_ONCE):
                self._decode_some(line, rows, encoded, whole[start : start + AT_ONCE], pixels, bad)
            if real < len(rows):
                pixels[real:] = pixels[real - 1]
            line.stream.synchronize()
        return OnDevice(pixels, pixels.get), bad

    def put_and_look(self, line: Line, rows: Array, pixels: Any, places: Array, sizes: Array) -> Array:
        """Copy rows to the GPU, and find which photos have no damage that libjpeg would see: an engine gives pixels of
        all."""
        with line.stream:
            # Where memory is short for these, no copy may be under way into pixels that are let go of.
            found = self._cupy.empty(len(places), self._cupy.uint8)
            photos = (self._cupy.asarray(places), self._cupy.asarray(sizes))
            pixels.set(rows, stream=line.stream)
            if len(places):
                arguments = (pixels, *photos, np.int64(pixels[0].nbytes), found, np.int32(len(places)))
                blocks = -(-len(places) // CHECKED_AT_ONCE)
                self._check((blocks,), (32 * CHECKED_AT_ONCE,), arguments, shared_mem=CHECK_BYTES)
            line.stream.synchronize()
            return np.asarray(found.get(), bool)

    def _decode_some(self, line: Line, rows: Array, encoded: Array, places: Array, pixels: Any, bad: BadRows) -> None:
        streams = [self._codec.CodeStream(_bytes_of(rows, encoded, place)) for place in places.tolist()]
        images = line.decode(streams)
        done = [nth for nth, image in enumerate(images) if image is not None]
        if done:
            self.resize(line, [images[nth] for nth in done], places[done], pixels)
        for nth, image in enumerate(images):
            if image is None:
                place = int(places[nth])
                self._decode_here(_bytes_of(rows, encoded, place), place, pixels, line, bad)

    def _decode_here(self, data: Array, place: int, pixels: Any, line: Line, bad: BadRows) -> None:
        """What the engine does not take: libjpeg-turbo decodes it, or says what is wrong with it."""
        row = np.zeros(pixels.shape[1:], np.uint8)
        try:
            decode_into(bytes(data), row, self._rendition)
        except DeviceError:
            raise  # a package is missing: no row is to blame
        except Exception as error:
            bad.blame(place, error)
            row[:] = 0
        pixels[place].set(row, stream=line.stream)

    def resize(self, line: Line, images: Sequence[Any], places: Array, pixels: Any) -> None:
        room: Size = (int(pixels.shape[1]), int(pixels.shape[2]))
        table, words = self._table(images, places, room)
        grid = (-(-room[1] // _SIDES[0]), -(-room[0] // _SIDES[1]), len(images))
        with line.stream:
            arguments = (self._cupy.asarray(table), self._cupy.asarray(words), pixels, *map(np.int32, room))
            self._kernel(grid, _SIDES, arguments)
        # The next images are decoded into the memory of these.
        line.stream.synchronize()

    def _table(self, images: Sequence[Any], places: Array, room: Size) -> tuple[Array, Array]:
        """What the kernel reads: the weights of all sizes, and 12 numbers of each image: its address and stride, 4 for
        each direction, which of them is the first, and the row that its pixels go to."""
        words: list[Array] = []
        placed: dict[Size, list[int]] = {}
        length = 0
        table: list[list[int]] = []
        for image, place in zip(images, places.tolist(), strict=True):
            interface = image.__cuda_array_interface__
            height, width, _ = interface["shape"]
            if (height, width) not in placed:
                sums = sums_of((height, width), room, self._rendition)
                numbers: list[int] = []
                for axis in (sums.down, sums.across):
                    weights = axis.weights.reshape(-1).view(np.int32)
                    bits = -1 if axis.bits is None else axis.bits
                    numbers += [length, length + len(axis.first), axis.weights.shape[1], bits]
                    words += [axis.first, weights]
                    length += len(axis.first) + len(weights)
                placed[height, width] = [*numbers, int(sums.is_down_first)]
            strides = interface.get("strides")
            stride = strides[0] if strides else width * 3
            table.append([interface["data"][0], stride, *placed[height, width], place])
        return np.array(table, np.int64), np.concatenate(words)


class Line:
    """What one batch at a time is decoded with: a decoder, its stream, and images that are used again and again.

    A decoder has the engine work on about 14 photos at once, and turns the colours of each by a kernel, which waits for
    its turn between those of the model: two lines are faster than one beside a model, and no faster alone.
    """

    def __init__(self, cupy: Any, codec: Any) -> None:
        # Images must be gone before the decoder and its stream are, else the process dies: they go in this order.
        self.images: list[Any] = []
        backends = [codec.Backend(codec.BackendKind.HW_GPU_ONLY)]
        # As libjpeg does it, colours between two samples are interpolated.
        options = ":fancy_upsampling=1"
        self._decoder = codec.Decoder(max_num_cpu_threads=CPU_THREADS, backends=backends, options=options)
        self.stream = cupy.cuda.Stream(non_blocking=True)
        params = codec.DecodeParams(apply_exif_orientation=False, color_spec=codec.ColorSpec.SRGB)
        self._options = {"params": params, "cuda_stream": self.stream.ptr}

    def decode(self, streams: Sequence[Any]) -> list[Any]:
        """An image of the GPU for each; None where the engine gives none."""
        if len(self.images) < len(streams):
            self.images = []
            images = self._decoder.decode(streams, **self._options)
            self.images = images if None not in images else []
        else:
            images = self._decoder.decode(streams, images=self.images[: len(streams)], **self._options)
        if None in images and len(images) > 1:
            # One that it does not take may cost others that came with it: each once more, alone.
            pairs = zip(images, streams, strict=True)
            images = [image if image is not None else self._alone(stream) for image, stream in pairs]
        return list(images)

    def _alone(self, stream: Any) -> Any:
        return self._decoder.decode([stream], **self._options)[0]


def _bytes_of(rows: Array, encoded: Array, place: int) -> Array:
    """A photo as it lies in its place."""
    row: Array = rows[place].reshape(-1)
    return row[: encoded[place]]


def _what_was_short(cupy: Any, error: Exception) -> OutOfMemory | None:
    """The error to raise where it was the memory of the GPU."""
    if not isinstance(error, cupy.cuda.memory.OutOfMemoryError) and not speaks_of_memory(str(error)):
        return None
    return OutOfMemory("the GPU has no memory left for decoding JPEGs", received=one_line(error), hint="--decoder cpu")
