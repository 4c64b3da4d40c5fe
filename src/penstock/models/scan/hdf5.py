"""HDF5 files, looked at with h5py and never followed out of: links, storage and sizes before anything is loaded."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from penstock.errors import DeviceError
from penstock.models.facts import Malformed, shown_bytes

_LISTED = ("layer_names",)
_ATTRIBUTES = ("model_config", "keras_version", "backend", *_LISTED)
MAGIC = b"\x89HDF\r\n\x1a\n"
_BOMB_FLOOR = 64 << 20
_BOMB_FACTOR = 200
"""A file that declares more than this, and this many times what it holds, is refused. Keras compresses nothing."""


@dataclass
class Contents:
    """What an HDF5 file holds: those attributes of its root that tell of a model, and what needs trust."""

    attributes: dict[str, Any] = field(default_factory=dict)
    groups: frozenset[str] = frozenset()
    needs_trust: list[str] = field(default_factory=list)
    num_bytes: int = 0
    """What all arrays take when they are loaded."""


def is_hdf5(path: str) -> bool:
    """Whether a file is HDF5: its mark is at the start, or at 512, 1024, 2048 … after a block of the user's own."""
    with open(path, "rb") as file:
        for offset in (0, 512, 1024, 2048, 4096):
            file.seek(offset)
            if file.read(len(MAGIC)) == MAGIC:
                return True
    return False


def look(file: str | IO[bytes], file_bytes: int) -> Contents:
    """Walk a file without following what leads out of it.

    Raises:
        Malformed: It is damaged, or declares arrays far beyond its size.
        DeviceError: h5py is not installed.
    """
    try:
        import h5py
    except ImportError as error:
        raise DeviceError(
            "h5py is not installed", received="a model in HDF5", hint="pip install 'penstock[tensorflow]'"
        ) from error
    try:
        with h5py.File(file, "r") as opened:
            contents = Contents(_attributes(opened, file_bytes), frozenset(opened))
            for path, kind, item in _items(opened):
                _check(contents, path, kind, item)
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, UnicodeDecodeError) as error:
        raise Malformed(f"HDF5: {error}") from None
    if contents.num_bytes > _BOMB_FLOOR and contents.num_bytes > _BOMB_FACTOR * file_bytes:
        declared, real = shown_bytes(contents.num_bytes), shown_bytes(file_bytes)
        raise Malformed(f"it declares arrays of {declared} in a file of {real}")
    return contents


def _attributes(root: Any, file_bytes: int) -> dict[str, Any]:
    """The attributes that tell of a model. Others are not read: one may name the same text a million times."""
    import h5py

    attributes: dict[str, Any] = {}
    for name in _ATTRIBUTES:
        if name not in root.attrs:
            continue
        attribute = h5py.h5a.open(root.id, name.encode())
        if name in _LISTED:
            attributes[name] = None  # that it is there is enough
        elif attribute.shape != () or attribute.get_storage_size() > file_bytes:
            raise Malformed(f"the attribute {name} is no text")
        else:
            attributes[name] = root.attrs[name]
    return attributes


def _items(root: Any) -> Iterator[tuple[str, str, Any]]:
    """Every link and every array, each object once, as (path, kind, thing)."""
    import h5py

    pending, seen = [("", root)], set()
    while pending:
        path, group = pending.pop()
        for name in group:
            below = f"{path}/{name}"
            link = group.get(name, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                yield below, "link", link
            if not isinstance(link, h5py.HardLink):
                continue  # a soft link leads to something that is seen under its own name, or behind a link
            item = group[name]
            info = h5py.h5o.get_info(item.id)
            if (info.fileno, info.addr) in seen:
                continue
            seen.add((info.fileno, info.addr))
            if isinstance(item, h5py.Group):
                pending.append((below, item))
            elif isinstance(item, h5py.Dataset):
                yield below, "array", item


def _check(contents: Contents, path: str, kind: str, item: Any) -> None:
    if kind == "link":
        contents.needs_trust.append(f"{path} is a link into another file: {item.filename}:{item.path}")
        return
    contents.num_bytes += int(item.nbytes)
    if item.external:
        names = ", ".join(str(name) for name, *_ in item.external[:3])
        contents.needs_trust.append(f"{path} keeps its values in another file: {names}")
    if item.is_virtual:
        names = ", ".join(sorted({str(source.file_name) for source in item.virtual_sources()} - {"."})[:3])
        if names:
            contents.needs_trust.append(f"{path} is put together from other files: {names}")
