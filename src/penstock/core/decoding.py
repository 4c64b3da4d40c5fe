"""Rows that are decoded at the replica, where the device can do that."""

from typing import Protocol

from penstock.core.deferred import BadRows
from penstock.core.records import Array


class Decoder(Protocol):
    """A live decoder. Several threads use it at once."""

    def decode(self, rows: Array, encoded: Array) -> BadRows:
        """Decode rows in their places, where so many bytes of each lie; 0 for one that is decoded already.

        Raises:
            OutOfMemory: The device has no memory left for it.
        """
        ...


class DeviceDecoder(Protocol):
    """How a share of the rows is decoded on a device. Picklable and light: libraries are imported in `open`."""

    @property
    def share(self) -> float: ...

    def open(self) -> Decoder:
        """Start it in this process, whose device was pinned before.

        Raises:
            DeviceError: A library is missing, or the device cannot do it.
            OutOfMemory: The device has no memory left for it.
        """
        ...
