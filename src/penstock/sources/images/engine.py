"""The JPEG engine of a GPU, through nvJPEG: photos are decoded there, and small kernels resize them.

Pixels are libjpeg-turbo's to the bit, before resizing, as a kernel makes them of the planes that nvJPEG gives.

All rows of a batch come together in one array there, which frameworks take over.
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
"""More than the planes and pixels of 256 photos of 500 pixels a side have."""
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
    """Decodes what loaders left to an engine as they would have done it. See `core.decoding.DeviceDecoder`."""

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
        """Decode pictures of all samplings: all that a whole photo goes through runs once.

        Raises:
            NvJpegError: The engine does not decode them.
            RuntimeError: They are not what loaders make of them, though they should be.
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
        """A line for one batch, of those that no other thread has now, or a new one."""
        try:
            line = self._idle.get_nowait()
        except queue.Empty:
            line = Line(self._cupy, self._make_decoder)
        try:
            yield line
        finally:
            # Where it failed half-way, nothing may be written any more to what is let go of.
            with contextlib.suppress(Exception):
                line.wait()
            self._idle.put(line)
            if self._is_closed:
                self.close()

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
            line.close()
            self._idle.put(line)
        self._cupy.get_default_memory_pool().free_all_blocks()
        raise short

    def _decode_batch(self, rows: Array, encoded: Array, real: int) -> tuple[OnDevice, BadRows]:
        bad = BadRows()
        places = np.flatnonzero(encoded[:real])
        pixels = self._room(rows.shape)
        with self.line() as line, line.stream:
            # All of it in one copy: what is encoded is looked through, and then overwritten.
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
        """Copy rows to the GPU, and find the photos without damage that libjpeg would see: an engine gives pixels of
        all."""
        with line.stream:
            # Where memory is short for these, no copy may be under way into pixels that are let go of.
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
        # One that it does not take costs all that came with it: it is looked for by halves.
        half = len(photos) // 2
        left = [place for each in (photos[:half], photos[half:]) for place in self._decode_some(line, each, pixels)]
        if len(left) == len(photos) and not problem.is_refusal:
            raise problem  # it is not the photos
        return left

    def show(self, line: Line, photos: Photos, pixels: Any) -> None:
        """Write the pixels of photos over what they were decoded from, in the order of the stream of a line."""
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
        """What is resized by: the weights of all sizes; and of each photo, 4 numbers for each direction, and which of
        them is the first."""
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
    """What is known of photos that lie encoded in their places of a batch."""

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
        """As many as may be decoded at once, again and again."""
        start = 0
        while start < len(self):
            some = self[start : start + AT_ONCE]
            ends = np.cumsum(some.needed().sum(axis=1))
            count = max(1, int(np.searchsorted(ends, AT_ONCE_BYTES, "right")))
            yield some[:count]
            start += count

    def strides(self) -> tuple[Array, Array]:
        """Of the plane of light, and of those of colour."""
        coarse = np.where(self.samplings > 0, (self.widths + 1) // 2, self.widths)
        return _aligned(self.widths), _aligned(coarse)

    def needed(self) -> Array:
        """The bytes of the planes of each photo, and of its pixels."""
        stride, coarse_stride = self.strides()
        coarse = coarse_stride * np.where(self.samplings > 1, (self.heights + 1) // 2, self.heights)
        return np.column_stack([stride * self.heights, coarse, coarse, _aligned(self.heights * self.widths * 3)])


class Line:
    """What one batch at a time is decoded with: a decoder, its stream, and memory for planes and pixels.

    The engine waits for its turn between the kernels of the model: two lines are faster than one beside a model.
    """

    def __init__(self, cupy: Any, make_decoder: Callable[[], PlaneDecoder]) -> None:
        self._cupy, self._make_decoder = cupy, make_decoder
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self._through = cupy.cuda.Event(block=True, disable_timing=True)
        self._decoder: PlaneDecoder | None = make_decoder()
        self.memory: Any = None

    def close(self) -> None:
        """Give all memory back; the next call takes it anew. The stream is still."""
        if self._decoder is not None:
            self._decoder.close()
        self._decoder = self.memory = None

    def wait(self) -> None:
        """Wait until the stream is through, asleep: CUDA's usual wait keeps a core busy, which loaders need."""
        self._through.record(self.stream)
        self._through.synchronize()

    def decode(self, photos: Photos, rows: Any) -> tuple[Array, Array]:
        """Have photos decoded that lie in these rows, in the order of the stream.

        Returns two tables of addresses: of the planes, and where their pixels are to go, as the kernels read them.
        """
        needed, (strides, coarse_strides) = photos.needed(), photos.strides()
        ends = np.cumsum(needed.reshape(-1))
        self.wait()  # the decoder, and whoever read what it wrote, are through
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
                # CuPy keeps what is freed: sizes that double are few.
                self.memory = self._cupy.empty(1 << (num_bytes - 1).bit_length(), self._cupy.uint8)


def _decode_here(data: Array, row: Array, rendition: Rendition, place: int, bad: BadRows) -> None:
    """What an engine does not take: libjpeg-turbo decodes it, or says what is wrong with it."""
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
    """The error to raise where it was the memory of the GPU."""
    if not isinstance(error, cupy.cuda.memory.OutOfMemoryError) and not speaks_of_memory(str(error)):
        return None
    return OutOfMemory("the GPU has no memory left for decoding JPEGs", received=one_line(error), hint="--decoder cpu")
