"""Columns of encoded images: bytes at hand, or files to be read. Each is decoded straight into its batch."""

from __future__ import annotations

import abc
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Self, TypeVar

import numpy as np
import pyarrow as pa

from penstock.core.deferred import Announce, BadRows, Deferred
from penstock.core.records import Array, TensorSpec
from penstock.errors import DeviceError, InputError
from penstock.options.records import ReadOptions
from penstock.sources.files import paths as files
from penstock.sources.images.decoding import channels_of, decode_into, image_size
from penstock.sources.images.headers import BadImage, is_jpeg
from penstock.sources.images.resizing import KEEP, Rendition
from penstock.sources.images.routing import goes_to_engine

T = TypeVar("T")
Data = bytes | memoryview
MOST_FILE_BYTES = 512 << 20
"""A larger file is not read: no image that is small enough to be decoded needs so many bytes."""

_HEAD_BYTES = 64 << 10
_AT_ONCE = 16
_DEFAULT = Rendition()
_CHANNELS = {"grayscale": 1, "rgb": 3, "rgba": 4}


def image_spec(name: str, reading: ReadOptions) -> TensorSpec:
    """An image column as the schema lists it; the model decides what the options leave open."""
    height, width = reading.image_size or (None, None)
    channels = _CHANNELS[reading.color] if reading.color else None
    return TensorSpec(name, "uint8", (height, width, channels), encoding="image")


class Images(Deferred):
    """Encoded images, in memory or in files. An image that cannot be decoded is zero-filled and reported.

    `rendition` is how an image is resized to its place in the batch.
    """

    rendition: Rendition

    @abc.abstractmethod
    def __getitem__(self, rows: slice) -> Self: ...

    def natural(self) -> Self:
        kept = self[:]
        kept.rendition = replace(self.rendition, resize=KEEP)
        return kept

    def routed(self, share: float) -> Self:
        routed = self[:]
        routed.rendition = replace(self.rendition, engine_share=share)
        return routed

    @abc.abstractmethod
    def read(self, position: int) -> Data:
        """An encoded image."""

    def head(self, position: int) -> Data:
        """The first bytes of an encoded image: at least its header."""
        return self.read(position)

    def is_far(self) -> bool:
        """Whether reading means waiting for a network."""
        return False

    def fill(self, out: Array, announce: Announce) -> BadRows:
        channels = channels_of(out)
        bad = BadRows()
        rows = out if out.ndim == 4 else out[:, :, :, np.newaxis]
        is_straight = rows.dtype == np.uint8 and rows.strides[2:] == (channels, 1)
        buffer = None if is_straight else np.empty(rows.shape[1:], np.uint8)
        has_engine = self.rendition.engine_share > 0 and channels == 3 and out.flags.c_contiguous and is_straight
        with self._reading(self.read) as read:
            for position in range(len(self)):
                announce(position)
                try:
                    data = read(position)
                    if has_engine and goes_to_engine(data, rows[position].nbytes, self.rendition):
                        rows[position].reshape(-1)[: len(data)] = np.frombuffer(data, np.uint8)
                        bad.encoded[position] = len(data)
                        continue
                    decode_into(data, rows[position] if buffer is None else buffer, self.rendition)
                    if buffer is not None:
                        rows[position] = buffer
                except DeviceError:
                    raise  # a package is missing: no row is to blame
                except Exception as error:
                    bad.blame(position, error)
                    rows[position] = 0
        return bad

    def sizes(self) -> Array:
        """int64 of (rows, 2): heights and widths as they are decoded, from the headers alone; -1 where broken."""
        sizes = np.full((len(self), 2), -1, np.int64)
        with self._reading(self._size) as size:
            for position in range(len(self)):
                try:
                    sizes[position] = size(position)
                except DeviceError:
                    raise
                except Exception:
                    pass  # decoding it gives the reason
        return sizes

    def raw(self) -> pa.Array:
        values: list[bytes | None] = []
        with self._reading(self.read) as read:
            for position in range(len(self)):
                try:
                    values.append(bytes(read(position)))
                except (OSError, ValueError, InputError):
                    values.append(None)
        return pa.array(values, pa.large_binary())

    def _size(self, position: int) -> tuple[int, int]:
        head = self.head(position)
        size = partial(image_size, is_turned=self.rendition.is_turned)
        if len(head) < _HEAD_BYTES:
            return size(head)
        try:
            if is_jpeg(head) or bytes(head[:4]) == b"GIF8" or bytes(head[:2]) == b"BM":
                return size(head)
        except Exception:
            pass  # the header is longer than that, or broken: the whole file is looked at
        return size(self.read(position))

    @contextmanager
    def _reading(self, read: Callable[[int], T]) -> Iterator[Callable[[int], T]]:
        """A function that calls `read` for one position after another; over a network, several are read ahead."""
        if len(self) < 2 or not self.is_far():
            yield read
            return
        pool = ThreadPoolExecutor(_AT_ONCE, "penstock-fetch")
        positions = iter(range(len(self)))
        waiting: deque[Future[T]] = deque()

        def next_one(position: int) -> T:
            while len(waiting) < _AT_ONCE and (following := next(positions, None)) is not None:
                waiting.append(pool.submit(read, following))
            return waiting.popleft().result()

        try:
            yield next_one
        finally:
            pool.shutdown(cancel_futures=True)


class EncodedImages(Images):
    """Images whose bytes are here: an Arrow array of binary values."""

    def __init__(self, values: pa.Array, rendition: Rendition = _DEFAULT) -> None:
        self.values = values
        self.rendition = rendition

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice) -> EncodedImages:
        return EncodedImages(self.values[rows], self.rendition)

    def read(self, position: int) -> Data:
        buffer = self.values[position].as_buffer()
        if buffer is None:
            raise BadImage("there is no image: the value is null")
        if not buffer.size:
            raise BadImage("there is no image: the value is empty (0 bytes)")
        return memoryview(buffer).cast("B")  # Arrow calls its bytes signed, which simplejpeg does not take

    def raw(self) -> pa.Array:
        return self.values


class ImagePaths(Images):
    """Images in files, each read when its turn comes; None stands for a row that names no file.

    `texts` is the column of a table that the paths come from; `kept` returns it.
    """

    def __init__(
        self, paths: Sequence[str | None], rendition: Rendition = _DEFAULT, texts: pa.Array | None = None
    ) -> None:
        self.paths = paths
        self.rendition = rendition
        self._texts = texts

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, rows: slice) -> ImagePaths:
        return ImagePaths(self.paths[rows], self.rendition, None if self._texts is None else self._texts[rows])

    def kept(self) -> pa.Array:
        return self.raw() if self._texts is None else self._texts

    def read(self, position: int) -> Data:
        return read_image(self._path(position))

    def head(self, position: int) -> Data:
        path = self._path(position)
        return files.read_bytes(path, 0, _HEAD_BYTES) if files.is_url(path) else _read_local(path, _HEAD_BYTES)

    def is_far(self) -> bool:
        return any(path is not None and files.is_url(path) for path in self.paths)

    def _path(self, position: int) -> str:
        path = self.paths[position]
        if not path:
            raise BadImage("there is no image: the path is " + ("null" if path is None else "empty"))
        return path


class MixedImages(Images):
    """Bytes where they are given, else a file: how Hugging Face datasets keep images."""

    def __init__(self, encoded: EncodedImages, named: ImagePaths) -> None:
        self._encoded = encoded
        self._named = named
        self.rendition = encoded.rendition

    def __len__(self) -> int:
        return len(self._encoded)

    def __getitem__(self, rows: slice) -> MixedImages:
        sliced = MixedImages(self._encoded[rows], self._named[rows])
        sliced.rendition = self.rendition
        return sliced

    def read(self, position: int) -> Data:
        return self._of(position).read(position)

    def head(self, position: int) -> Data:
        return self._of(position).head(position)

    def is_far(self) -> bool:
        return self._encoded.values.null_count > 0 and self._named.is_far()

    def _of(self, position: int) -> Images:
        has_bytes = self._encoded.values[position].is_valid or self._named.paths[position] is None
        return self._encoded if has_bytes else self._named


def read_image(path: str) -> bytes:
    """The bytes of an image file.

    Raises:
        BadImage: It is no file, or is empty or much too large.
        OSError, InputError: It is not there, or cannot be read.
    """
    data = files.read_bytes(path) if files.is_url(path) else _read_local(path)
    if not data:
        raise BadImage(f"the file is empty (0 bytes): {path}")
    return data


def _read_local(path: str, most: int | None = None) -> bytes:
    """Read a file, or its first `most` bytes, without Python's file objects, as `files.read_bytes` does.

    It is opened without blocking, because opening a pipe may wait for ever, and checked once it is open, because a
    device never ends.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        _check_file(path, status)
        pieces = [os.read(descriptor, status.st_size if most is None else most)]
        while most is None and (piece := os.read(descriptor, 1 << 20)):  # it grew, or came in pieces
            pieces.append(piece)
    finally:
        os.close(descriptor)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _check_file(path: str, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise BadImage(f"this is a folder, not a file: {path}")
    if not stat.S_ISREG(status.st_mode):
        raise BadImage(f"this is a pipe or a device, not a file: {path}")
    if status.st_size > MOST_FILE_BYTES:
        raise BadImage(f"the file is too large for an image ({status.st_size:,} bytes): {path}")
