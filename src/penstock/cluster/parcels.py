"""Parcels: what a node does not have, sent once, and kept there under its digest.

A parcel is a tar archive in pieces: the model, a module with its own code, or the step that another node of its
kind has converted. It is unpacked in the user's cache folder, whole or not at all. A model or a module counts only
where its digest is the one that was asked for.
"""

import contextlib
import importlib
import os
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from typing import IO, Generic, TypeVar, cast

from penstock.errors import OutputError
from penstock.jobs.bring_up import Started
from penstock.models.belongings import num_bytes
from penstock.planning import store
from penstock.private_cache import CONVERTED, cache_folder
from penstock.storage.disk import output_errors

PIECE_BYTES = 32 << 20
MOST_BYTES = 4 << 30
"""The most bytes of one parcel. A larger model belongs on a disk that all nodes see."""


PARCELS, STEPS = "parcels", CONVERTED
"""Folders of the cache: models and modules, and the converted steps of `planning.store`."""
_Shared = TypeVar("_Shared")


class _Pieces(Generic[_Shared]):
    """The file that tarfile writes to: each write is a piece."""

    def __init__(self, share: Callable[[bytes], _Shared]) -> None:
        self._share = share
        self.shared: list[_Shared] = []

    def write(self, piece: bytes) -> None:
        self.shared.append(self._share(piece))


def can_be_sent(*paths: str) -> bool:
    return all(map(os.path.exists, paths)) and sum(map(num_bytes, paths)) <= MOST_BYTES


def pack(paths: Mapping[str, str], share: Callable[[bytes], _Shared]) -> list[_Shared]:
    """Give files and folders to `share`, piece by piece; returns what it made of them.

    The keys of `paths` are the names in the parcel; the content of a folder with the name "." lies at its top.
    """
    pieces = _Pieces(share)
    stream = cast(IO[bytes], pieces)
    with tarfile.open(mode="w|", fileobj=stream, bufsize=PIECE_BYTES, dereference=True) as archive:
        for name, path in paths.items():
            archive.add(path, name, filter=_regular)
    return pieces.shared


def _regular(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return entry if entry.isfile() or entry.isdir() else None


def folder_of(digest: str) -> str:
    """Where a parcel is kept on this machine."""
    return os.path.join(cache_folder(), PARCELS, digest)


def converted_step(started: Started) -> tuple[str, list[bytes]] | None:
    """The name of the converted step that a job runs by, and the step in pieces; None where it runs by the model."""
    model = started.decision.setting.model
    if model is None or model.kind != "converted" or not can_be_sent(model.location):
        return None
    return os.path.basename(model.location), pack({".": model.location}, bytes)


def has_step(name: str) -> bool:
    """Whether this machine has a converted step."""
    return store.is_whole(os.path.join(cache_folder(), STEPS, name))


def kept(digest: str, name: str) -> str | None:
    """The path of what a parcel of this digest holds; None where it is not here."""
    path = os.path.join(folder_of(digest), name)
    if not os.path.exists(path):
        return None
    store.touch(folder_of(digest))
    return path


def make_importable(digest: str) -> None:
    """Let this process, and those that it starts, import what a parcel holds."""
    folder = folder_of(digest)
    if os.path.isdir(folder) and folder not in sys.path:
        sys.path.append(folder)
        importlib.invalidate_caches()


class Arrivals:
    """Parcels that are on their way to this machine."""

    def __init__(self) -> None:
        self._files: dict[str, IO[bytes]] = {}

    def receive(self, digest: str, piece: bytes, *, is_last: bool, folder: str = PARCELS) -> None:
        """Take the next piece of a parcel; with the last one the parcel is here, in a folder of the cache.

        Raises:
            OutputError: The disk refuses it.
        """
        with output_errors("free space, or set PENSTOCK_CACHE to another folder on this node"):
            if digest not in self._files:
                os.makedirs(cache_folder(), exist_ok=True)
                self._files[digest] = tempfile.TemporaryFile(dir=cache_folder())  # noqa: SIM115 - closed below
            file = self._files[digest]
            file.write(piece)
            if is_last:
                with contextlib.closing(self._files.pop(digest)):
                    file.seek(0)
                    _unpack(file, os.path.join(cache_folder(), folder, digest))

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


def _unpack(file: IO[bytes], folder: str) -> None:
    try:
        is_whole = store.is_whole if os.path.basename(os.path.dirname(folder)) == STEPS else os.listdir
        with store.staged(folder, is_whole) as staging, tarfile.open(fileobj=file) as archive:
            archive.extractall(staging, filter="data")
    except tarfile.TarError as error:
        raise OutputError("what was sent to this node cannot be unpacked", received=str(error)) from error
