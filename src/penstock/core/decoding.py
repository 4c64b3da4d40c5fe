"""Rows that are decoded at the replica, where the device can do that."""

from collections.abc import Callable
from typing import Any, Protocol

from penstock.core.deferred import BadRows
from penstock.core.records import Array
from penstock.errors import OutOfMemory


class Undecoded(OutOfMemory):
    """The device has no memory for decoding rows beside the model; or it cannot decode, and the user did not ask for
    that. Loaders can decode all rows instead."""


class OnDevice:
    """Rows of a batch that lie on the device. A runtime that can use `array` takes it over without a copy.

    All others use this object as a read-only array: its rows are copied to the host once. Only one thread at a time may
    use it so.
    """

    def __init__(self, array: Any, fetch: Callable[[], Array]) -> None:
        self.array = array
        self.shape: tuple[int, ...] = tuple(array.shape)
        self.dtype = array.dtype
        self.nbytes = int(array.nbytes)
        self._fetch = fetch
        self._host: Array | None = None

    def on_host(self) -> Array:
        if self._host is None:
            self._host = self._fetch()
        return self._host

    def copy(self) -> Array:
        return self.on_host().copy()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Any:
        is_whole = isinstance(rows, slice) and rows.indices(len(self)) == (0, len(self), 1)
        return self if is_whole else self.on_host()[rows]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        host = self.on_host()
        return host.astype(dtype, copy=bool(copy)) if dtype is not None else host


class Decoder(Protocol):
    """A live decoder. A few threads use it at once, each for a batch."""

    def decode(self, rows: Array, encoded: Array, real: int) -> tuple[OnDevice, BadRows]:
        """All rows on the device, decoded; and those that cannot be decoded, which are zero.

        Args:
            rows: A batch; it is not read any more afterwards.
            encoded: How many bytes of each row lie in its place; 0 for one that is decoded already.
            real: How many rows are real; the others become copies of the last real one.

        Raises:
            OutOfMemory: The device has no memory left for it.
        """
        ...

    def reserve(self, shape: tuple[int, ...], batches: int, at_once: int) -> None:
        """Allocate what `batches` batches need, of which `at_once` are decoded at the same time: allocating while the
        model runs would hold it up."""
        ...

    def close(self) -> None:
        """Give its memory on the device back. Nothing is decoded any more."""
        ...


class DeviceDecoder(Protocol):
    """How a share of the rows is decoded on a device. Picklable and light: libraries are imported in `open`."""

    @property
    def share(self) -> float: ...

    @property
    def decides_bits(self) -> bool:
        """Whether rows that it decodes differ from those that loaders decode, even if only in the last bit."""
        ...

    def on_host(self) -> "DeviceDecoder":
        """The same decoder with the method that loaders use, for a replica whose device cannot decode."""
        ...

    def open(self) -> Decoder:
        """Start it in this process, whose device was pinned before.

        Raises:
            DeviceError: The user asked for this decoder, and a library is missing or the device cannot decode.
            OutOfMemory: The device has no memory left for it; `Undecoded` instead of a DeviceError where the user did
                not ask for it.
        """
        ...
