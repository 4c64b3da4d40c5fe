"""`.keras` files: a zip with the architecture, the weights and the version that wrote them."""

import io
import json
import os
import zipfile
from typing import IO, Any

from penstock.core.kinds import FileFacts
from penstock.models.facts import Malformed, damaged, require_file, shown_bytes
from penstock.models.scan import hdf5, keras_config, keras_size
from penstock.models.scan.paths import check_archive
from penstock.models.single_file import SingleFile

RUNTIMES = ("tensorflow", "jax", "torch", "tf_keras")
_HINT = "save it again with model.save('model.keras')"
_HDF5 = ".h5"
_CONFIG_LIMIT = 1 << 30
_WEIGHTS_FLOOR = 256 << 20
_WEIGHTS_FACTOR = 16
_LOCAL_HEADER_BYTES = 30
_BROKEN = (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError)


def _is_ours(location: str) -> bool:
    """Whether a path is a `.keras` archive. Keras 2 also wrote HDF5 under this suffix, which is another format."""
    is_named = location.lower().endswith(".keras") and not os.path.isdir(location)
    return is_named and not hdf5.is_hdf5(require_file(location))


def writer(path: str) -> str:
    """What wrote a `.keras` file, as its metadata says."""
    try:
        with zipfile.ZipFile(path) as opened:
            metadata = json.loads(opened.read("metadata.json"))
        return f"Keras {metadata['keras_version']}, {metadata.get('date_saved', 'date unknown')}"
    except (KeyError, TypeError, AttributeError, ValueError, zipfile.BadZipFile):
        return "Keras, version unknown"


def _look(path: str, own: tuple[str, ...]) -> FileFacts:
    try:
        num_bytes, needs_more_trust = _rehearsed_weights(path)
        with zipfile.ZipFile(path) as opened:
            config = _config(opened)
        refuse_giant(config, num_bytes)
    except (Malformed, *_BROKEN) as error:
        raise damaged(path, "a .keras file", error, _HINT) from None
    needs_trust = (*keras_config.needs_trust(config, own), *needs_more_trust)
    return FileFacts(writer(path), os.path.getsize(path), needs_trust)


def weights_need_trust(path: str) -> list[str]:
    """What needs trust in the weights of an archive of which only the weights are used.

    Raises:
        ModelError: It is damaged.
    """
    try:
        return _rehearsed_weights(path)[1]
    except (Malformed, *_BROKEN) as error:
        raise damaged(path, "a .keras file", error, _HINT) from None


def _config(opened: zipfile.ZipFile) -> Any:
    if "config.json" not in opened.namelist():
        raise Malformed("it has no config.json")
    if opened.getinfo("config.json").file_size > _CONFIG_LIMIT:
        raise Malformed("its config.json is too large")
    return parsed(opened.read("config.json"))


def parsed(text: str | bytes) -> Any:
    """A model's description from JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the description of the model is no JSON: {error}") from None


def refuse_giant(config: Any, num_bytes: int) -> None:
    """Refuse layers that declare weights far beyond those that were saved: making them would take all memory."""
    least = keras_size.least_parameters(config)
    if least > _WEIGHTS_FLOOR and least > _WEIGHTS_FACTOR * num_bytes:
        raise Malformed(
            f"its layers declare more than {shown_bytes(least)} of weights, and it holds {shown_bytes(num_bytes)}"
        )


def _rehearsed_weights(path: str) -> tuple[int, list[str]]:
    hdf5.rehearse(lambda: _weights(path))
    return _weights(path)


def _weights(path: str) -> tuple[int, list[str]]:
    """How large the weights are, and what in them needs trust. They may be in several members, or in other forms."""
    needs_trust: list[str] = []
    num_bytes = 0
    with zipfile.ZipFile(path) as opened:
        check_archive(opened)
        for member in opened.infolist():
            if member.filename.endswith(_HDF5):
                contents = _look_at_member(opened, member, path)
                needs_trust += contents.needs_trust
                num_bytes += contents.num_bytes
            else:
                num_bytes += member.file_size
    return num_bytes, needs_trust


def _look_at_member(opened: zipfile.ZipFile, member: zipfile.ZipInfo, path: str) -> hdf5.Contents:
    if member.compress_type != zipfile.ZIP_STORED:
        return hdf5.look(io.BytesIO(opened.read(member)), member.file_size)
    with open(path, "rb") as file:
        return hdf5.look(io.BufferedReader(_Window(file, member)), member.file_size)


class _Window(io.RawIOBase):
    """A stored member of an archive as a file: only what is asked for is read, however large it is."""

    def __init__(self, file: IO[bytes], member: zipfile.ZipInfo) -> None:
        file.seek(member.header_offset)
        header = file.read(_LOCAL_HEADER_BYTES)
        if len(header) < _LOCAL_HEADER_BYTES:
            raise Malformed("a member is cut off")
        names = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        self._file = file
        self._start = member.header_offset + _LOCAL_HEADER_BYTES + names
        self._size = member.file_size
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._start + self._place)
        piece = self._file.read(max(0, min(len(buffer), self._size - self._place)))
        buffer[: len(piece)] = piece
        self._place += len(piece)
        return len(piece)


FORMAT = SingleFile("keras", "a .keras file", RUNTIMES, _is_ours, _look).format(".keras", has_steps=True)
