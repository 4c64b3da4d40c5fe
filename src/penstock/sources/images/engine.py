"""The JPEG engine of a GPU, through nvJPEG: photos are decoded there, and small kernels resize them.

Before resizing, pixels are those of libjpeg-turbo to the bit: a kernel makes them from the planes that nvJPEG gives.

All rows of a batch lie in one array on the GPU, which frameworks take over.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from penstock.core.decoding import OnDevice, Undecoded
from penstock.core.deferred import BadRows
from penstock.core.memory import speaks_of_memory
from penstock.core.queues import drained
from penstock.core.records import Array
from penstock.errors import DeviceError, OutOfMemory, one_line
from penstock.sources.images.coefficients import sums_of
from penstock.sources.images.decoding import decode_into
from penstock.sources.images.kernels import CHECK, CHECK_BYTES, CHECKED_AT_ONCE, COLOUR, RESIZE
from penstock.sources.images.nvjpeg import PLANES, NvJpegError, PlaneDecoder, find_library, version_of
from penstock.sources.images.resizing import Rendition, Size, simplejpeg
from penstock.sources.images.routing import has_same_pixels

T = TypeVar("T")

INSTALL = "pip install 'penstock[gpu]' (CUDA 12) or 'penstock[gpu-cuda13]'"
AT_ONCE = 256
"""Photos that the engine gets in one call."""
AT_ONCE_BYTES = 512 << 20
"""The most bytes of planes and pixels in one call: more than 256 photos of 500 pixels a side need."""
_SIDES = (32, 8)
"""Threads of a block, across and down."""
_ALIGNED = 256


def is_installed() -> bool:
    """Whether the libraries are there; CuPy is not imported."""
    try:
        find_library()
    except OSError:
        return False
    return importlib.util.find_spec("cupy") is not None


def version() -> str:
    """The version of nvJPEG, for a manifest."""
    return version_of(find_library())


@dataclass(frozen=True)
class EngineDecoder:
    """See `core.decoding.DeviceDecoder`."""

    rendition: Rendition
    is_asked_for: bool = True

    @property
    def share(self) -> float:
        return self.rendition.engine_share

    @property
    def decides_bits(self) -> bool:
        return not has_same_pixels(self.rendition)

    def on_host(self) -> LibjpegDecoder:
        return LibjpegDecoder(self.rendition)

    def open(self) -> JpegEngine:
        try:
            return self._open()
        except DeviceError as error:
            if self.is_asked_for:
                raise
            raise Undecoded(error.problem, received=error.received) from None

    def _open(self) -> JpegEngine:
        try:
            cupy, library = importlib.import_module("cupy"), find_library()
        except (ImportError, OSError) as error:
            raise DeviceError(
                "what decodes JPEGs on a GPU is not installed", received=one_line(error), hint=INSTALL
            ) from None
        try:
            engine = JpegEngine(cupy, lambda: PlaneDecoder(library), self.rendition)
            with contextlib.ExitStack() as on_failure:
                on_failure.callback(engine.close)
                engine.try_out()
                on_failure.pop_all()
        except Exception as error:
            short = _what_was_short(cupy, error)
            if short is not None:
                raise short from None
            if isinstance(error, NvJpegError) and error.is_without_engine:
                raise DeviceError(
                    "this GPU has no JPEG engine",
                    received=one_line(error),
                    allowed="GPUs such as A100, H100, H200 and B200",
                    hint="--decoder cpu",
                ) from None
            raise DeviceError(
                "the JPEG engine of the GPU does not start", received=one_line(error), hint="--decoder cpu"
            ) from error
        return engine


@dataclass(frozen=True)
class LibjpegDecoder:
    """Decodes photos that loaders left to an engine as they would have. See `core.decoding.DeviceDecoder`."""

    rendition: Rendition
    decides_bits: bool = False

    @property
    def share(self) -> float:
        return self.rendition.engine_share

    def on_host(self) -> LibjpegDecoder:
        return self

    def open(self) -> LibjpegDecoder:
        return self

    def decode(self, rows: Array, encoded: Array, real: int) -> tuple[OnDevice, BadRows]:
        pixels, bad = np.array(rows), BadRows()
        for place in np.flatnonzero(encoded[:real]).tolist():
            _decode_here(_bytes_of(rows, encoded, place), pixels[place], self.rendition, place, bad)
        pixels[real:] = pixels[real - 1]
        return OnDevice(pixels, lambda: pixels), bad

    def reserve(self, shape: tuple[int, ...], batches: int, at_once: int) -> None: ...
    def close(self) -> None: ...


class JpegEngine:
    """The live engine, on the only GPU of this process."""

    def __init__(self, cupy: Any, make_decoder: Callable[[], PlaneDecoder], rendition: Rendition) -> None:
        self._cupy, self._make_decoder, self._rendition = cupy, make_decoder, rendition
        sources = {"check": CHECK, "colour": COLOUR, "resize": RESIZE}
        self._kernels = {name: cupy.RawKernel(source, name) for name, source in sources.items()}
        self._kernels["check"].max_dynamic_shared_size_bytes = CHECK_BYTES
        self._idle: queue.SimpleQueue[Line] = queue.SimpleQueue()
        self._is_closed = False
        self._memory_of = cupy.cuda.Stream(non_blocking=True)

    def try_out(self) -> None:
        """Decode a picture of each sampling, so that every step for undamaged photos runs once.

        Raises:
            NvJpegError: The engine does not decode them.
            RuntimeError: The GPU finds damage in them, or their pixels are too far from those that loaders make.
        """
        picture = np.arange(250 * 199 * 3, dtype=np.uint32).reshape(250, 199, 3).astype(np.uint8)
        rows, sizes = np.zeros((3, 180, 160, 3), np.uint8), np.zeros(3, np.int64)
        for place, sampling in enumerate(("420", "422", "444")):
            data = np.frombuffer(simplejpeg().encode_jpeg(picture, colorsubsampling=sampling), np.uint8)
            rows[place].reshape(-1)[: len(data)] = data
            sizes[place] = len(data)
        pixels = self._room(rows.shape)
        with self.line() as line:
            photos = self.put_and_look(line, rows, pixels, np.arange(3), sizes)
            if len(photos) < len(rows):
                raise RuntimeError("the GPU sees damage in a picture that has none")
            self.show(line, photos, pixels)
            line.wait()
        found, expected = pixels.get(), LibjpegDecoder(self._rendition).decode(rows, sizes, len(rows))[0].on_host()
        far = int(np.abs(found.astype(np.int16) - expected).max())
        if far > (0 if has_same_pixels(self._rendition) else 1):
            raise RuntimeError(f"its pixels are up to {far} of 255 from those of libjpeg")

    def decode(self, rows: Array, encoded: Array, real: int) -> tuple[OnDevice, BadRows]:
        """See `core.decoding.Decoder`."""
        return self._within_memory(lambda: self._decode_batch(rows, encoded, real))

    def reserve(self, shape: tuple[int, ...], batches: int, at_once: int) -> None:
        """See `core.decoding.Decoder`."""
        with contextlib.ExitStack() as held:
            self._within_memory(lambda: [held.enter_context(self.line()) for _ in range(at_once)])
        self._within_memory(lambda: [self._room(shape) for _ in range(batches)])

    def close(self) -> None:
        """See `core.decoding.Decoder`."""
        self._is_closed = True
        for line in drained(self._idle):
            line.close()
        self._cupy.get_default_memory_pool().free_all_blocks()

    @contextlib.contextmanager
    def line(self) -> Iterator[Line]:
        """A line for one batch: one that no other thread uses, or a new one."""
        try:
            line = self._idle.get_nowait()
        except queue.Empty:
            line = Line(self._cupy, self._make_decoder)
        try:
            yield line
        finally:
            # After a failure, work that is under way must end before the arrays that it writes to are freed.
            with contextlib.suppress(Exception):
                line.wait()
            self._idle.put(line)
            if self._is_closed:
                self.close()

    def _room(self, shape: tuple[int, ...]) -> Any:
        # CuPy keeps freed memory for the stream it was taken on: with one stream, all lines share that memory.
        with self._memory_of:
            return self._cupy.empty(shape, self._cupy.uint8)

    def _within_memory(self, run: Callable[[], T]) -> T:
        try:
            return run()
        except Exception as error:
            short = _what_was_short(self._cupy, error)
            if short is None:
                raise
        # Outside of the except block: the traceback of the error keeps arrays on the GPU alive.
        for line in drained(self._idle):
            line.close()
            self._idle.put(line)
        self._cupy.get_default_memory_pool().free_all_blocks()
        raise short

    def _decode_batch(self, rows: Array, encoded: Array, real: int) -> tuple[OnDevice, BadRows]:
        bad = BadRows()
        places = np.flatnonzero(encoded[:real])
        pixels = self._room(rows.shape)
        with self.line() as line, line.stream:
            # The whole batch in one copy: encoded photos are checked where they lie, then overwritten with their
            # pixels.
            photos = self.put_and_look(line, rows, pixels, places, encoded[places])
            left = np.setdiff1d(places, photos.places).tolist()
            for some in photos.divided():
                left += self._decode_some(line, some, pixels)
            for place in left:
                row = np.zeros(pixels.shape[1:], np.uint8)
                _decode_here(_bytes_of(rows, encoded, place), row, self._rendition, place, bad)
                pixels[place].set(row, stream=line.stream)
            if real < len(rows):
                pixels[real:] = pixels[real - 1]
            line.wait()
        return OnDevice(pixels, pixels.get), bad

    def put_and_look(self, line: Line, rows: Array, pixels: Any, places: Array, sizes: Array) -> Photos:
        """Copy rows to the GPU, and return the photos in which libjpeg would see no damage.

        The engine would decode damaged photos, too.
        """
        with line.stream:
            # Allocated before the copy: if memory is short here, `pixels` is freed, and nothing may be writing to it.
            found = self._cupy.empty((len(places), 4), np.int32)
            given = (self._cupy.asarray(places), self._cupy.asarray(sizes))
            pixels.set(rows, stream=line.stream)
            if len(places):
                arguments = (pixels, *given, np.int64(pixels[0].nbytes), found, np.int32(len(places)))
                blocks = -(-len(places) // CHECKED_AT_ONCE)
                self._kernels["check"]((blocks,), (32 * CHECKED_AT_ONCE,), arguments, shared_mem=CHECK_BYTES)
            line.wait()
            is_whole, heights, widths, samplings = np.asarray(found.get(), np.int64).T
        return Photos(places, sizes, heights, widths, samplings)[is_whole != 0]

    def _decode_some(self, line: Line, photos: Photos, pixels: Any) -> list[int]:
        """Decode photos into their places, and return the places of those that the engine does not take."""
        try:
            self.show(line, photos, pixels)
            return []
        except NvJpegError as error:
            if error.is_short_of_memory:
                raise
            problem = error
        if len(photos) == 1:
            return [int(photos.places[0])]
        # One photo that the engine does not take fails the whole call, so it is searched for by halves.
        half = len(photos) // 2
        left = [place for each in (photos[:half], photos[half:]) for place in self._decode_some(line, each, pixels)]
        if len(left) == len(photos) and not problem.is_refusal:
            raise problem  # the photos are not the reason
        return left

    def show(self, line: Line, photos: Photos, pixels: Any) -> None:
        """Write the pixels of photos over their encoded bytes, in the order of the line's stream."""
        planes, table = line.decode(photos, pixels)
        with line.stream:
            largest = int(photos.widths.max()), int(photos.heights.max())
            self._run("colour", largest, len(photos), planes)
            room: Size = (int(pixels.shape[1]), int(pixels.shape[2]))
            weights, words = self._weights(photos, room)
            table = np.column_stack([table, weights, photos.places])
            self._run("resize", room[::-1], len(photos), table, words, pixels, *map(np.int32, room))

    def _run(self, kernel: str, size: tuple[int, int], photos: int, *arguments: Any) -> None:
        grid = (-(-size[0] // _SIDES[0]), -(-size[1] // _SIDES[1]), photos)
        on_gpu = [self._cupy.asarray(each, order="C") if isinstance(each, np.ndarray) else each for each in arguments]
        self._kernels[kernel](grid, _SIDES, tuple(on_gpu))

    def _weights(self, photos: Photos, room: Size) -> tuple[Array, Array]:
        """A table of the photos, and the weights of all their sizes, for the kernel `resize`.

        A photo has 4 numbers for each direction, and one that says which direction comes first.
        """
        words: list[Array] = []
        placed: dict[Size, list[int]] = {}
        length = 0
        sizes: list[Size] = list(zip(photos.heights.tolist(), photos.widths.tolist(), strict=True))
        for size in sizes:
            if size in placed:
                continue
            sums = sums_of(size, room, self._rendition)
            numbers: list[int] = []
            for axis in (sums.down, sums.across):
                weights = axis.weights.reshape(-1).view(np.int32)
                bits = -1 if axis.bits is None else axis.bits
                numbers += [length, length + len(axis.first), axis.weights.shape[1], bits]
                words += [axis.first, weights]
                length += len(axis.first) + len(weights)
            placed[size] = [*numbers, int(sums.is_down_first)]
        return np.array([placed[size] for size in sizes], np.int64), np.concatenate(words)


@dataclass(frozen=True)
class Photos:
    """Places, sizes and samplings of photos whose encoded bytes lie in their rows of a batch."""

    places: Array
    sizes: Array
    """Bytes."""
    heights: Array
    widths: Array
    samplings: Array
    """See `kernels.COLOUR`."""

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, which: Any) -> Photos:
        arrays = (self.places, self.sizes, self.heights, self.widths, self.samplings)
        return Photos(*(each[which] for each in arrays))

    def divided(self) -> Iterator[Photos]:
        """The photos in groups that may be decoded in one call."""
        start = 0
        while start < len(self):
            some = self[start : start + AT_ONCE]
            ends = np.cumsum(some.needed().sum(axis=1))
            count = max(1, int(np.searchsorted(ends, AT_ONCE_BYTES, "right")))
            yield some[:count]
            start += count

    def strides(self) -> tuple[Array, Array]:
        """The strides of the plane of light, and those of the planes of colour."""
        coarse = np.where(self.samplings > 0, (self.widths + 1) // 2, self.widths)
        return _aligned(self.widths), _aligned(coarse)

    def needed(self) -> Array:
        """The bytes of the planes of each photo, and of its pixels."""
        stride, coarse_stride = self.strides()
        coarse = coarse_stride * np.where(self.samplings > 1, (self.heights + 1) // 2, self.heights)
        return np.column_stack([stride * self.heights, coarse, coarse, _aligned(self.heights * self.widths * 3)])


class Line:
    """What decodes one batch at a time: a decoder, its stream, and memory for planes and pixels.

    The engine waits for its turn between the kernels of the model, so two lines are faster than one beside a model.
    """

    def __init__(self, cupy: Any, make_decoder: Callable[[], PlaneDecoder]) -> None:
        self._cupy, self._make_decoder = cupy, make_decoder
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self._through = cupy.cuda.Event(block=True, disable_timing=True)
        self._decoder: PlaneDecoder | None = make_decoder()
        self.memory: Any = None

    def close(self) -> None:
        """Free all memory; the next call takes it again. The stream must be idle."""
        if self._decoder is not None:
            self._decoder.close()
        self._decoder = self.memory = None

    def wait(self) -> None:
        """Sleep until the work of the stream is done: CUDA's usual wait keeps a core busy, which loaders need."""
        self._through.record(self.stream)
        self._through.synchronize()

    def decode(self, photos: Photos, rows: Any) -> tuple[Array, Array]:
        """Let photos be decoded that lie in these rows, in the order of the stream.

        Returns two tables for the kernels: planes and pixels of each photo for `colour`, pixels for `resize`.
        """
        needed, (strides, coarse_strides) = photos.needed(), photos.strides()
        ends = np.cumsum(needed.reshape(-1))
        self.wait()  # until the decoder, and the kernels that read its planes, are done
        self._take_memory(int(ends[-1]))
        starts = (_address(self.memory) + ends).reshape(-1, 4) - needed
        planes = np.zeros(len(photos), PLANES)
        planes["address"][:, :3] = starts[:, :3]
        planes["stride"][:, :3] = np.column_stack([strides, coarse_strides, coarse_strides])
        encoded = (_address(rows) + photos.places * rows[0].nbytes).astype(np.uint64)
        if self._decoder is None:
            self._decoder = self._make_decoder()
        self._decoder.decode(encoded, photos.sizes.astype(np.uint64), planes, self.stream.ptr)
        table = [starts[:, :3], strides, coarse_strides, photos.widths, photos.heights, photos.samplings, starts[:, 3]]
        return np.column_stack(table), np.column_stack([starts[:, 3], photos.widths * 3])

    def _take_memory(self, num_bytes: int) -> None:
        if self.memory is None or self.memory.nbytes < num_bytes:
            self.memory = None
            with self.stream:
                # CuPy keeps freed memory, so there should be few sizes: powers of two.
                self.memory = self._cupy.empty(1 << (num_bytes - 1).bit_length(), self._cupy.uint8)


def _decode_here(data: Array, row: Array, rendition: Rendition, place: int, bad: BadRows) -> None:
    """Decode a photo that the engine does not take by libjpeg-turbo, which gives the reason if it is damaged."""
    try:
        decode_into(data.tobytes(), row, rendition)
    except DeviceError:
        raise  # a package is missing: no row is to blame
    except Exception as error:
        bad.blame(place, error)
        row[:] = 0


def _aligned(sizes: Array) -> Array:
    return -(-sizes // _ALIGNED) * _ALIGNED


def _address(array: Any) -> int:
    return int(array.__cuda_array_interface__["data"][0])


def _bytes_of(rows: Array, encoded: Array, place: int) -> Array:
    """A photo as it lies in its place."""
    row: Array = rows[place].reshape(-1)
    return row[: encoded[place]]


def _what_was_short(cupy: Any, error: Exception) -> OutOfMemory | None:
    """The error to raise if the memory of the GPU was the reason; else None."""
    if not isinstance(error, cupy.cuda.memory.OutOfMemoryError) and not speaks_of_memory(str(error)):
        return None
    return OutOfMemory("the GPU has no memory left for decoding JPEGs", received=one_line(error), hint="--decoder cpu")
