"""Arrays and a JSON document in one file, in the safetensors format: no pickle, and other tools can open it.

The last tensor of a file is the CRC32C of everything before it.
"""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Mapping
from typing import IO, Any

import google_crc32c
import numpy as np

from penstock.core.records import Array

_METADATA, _DOCUMENT, _CHECKSUM = "__metadata__", "penstock", "checksum"
_CHECKSUM_BYTES = 4
_MOST_HEADER_BYTES = 100_000_000
_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
}
_OF_ML_DTYPES = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}


class DamagedTensors(Exception):
    """A file is not whole, or was altered."""


@functools.cache
def _dtypes() -> dict[str, np.dtype[Any]]:
    dtypes = {name: np.dtype(dtype) for name, dtype in _DTYPES.items()}
    try:
        import ml_dtypes  # comes with every framework that has such numbers
    except ImportError:
        return dtypes
    return dtypes | {name: np.dtype(vars(ml_dtypes)[dtype]) for name, dtype in _OF_ML_DTYPES.items()}


def write_tensors(file: IO[bytes], arrays: Mapping[str, Array], document: Any) -> None:
    """Write arrays and a JSON document.

    Raises:
        OSError: The disk refuses.
        ValueError: An array has a type that the format does not have.
    """
    tensors: dict[str, Any] = {_METADATA: {_DOCUMENT: json.dumps(document)}}
    names = {dtype: name for name, dtype in _dtypes().items()}
    end = 0
    for name, array in arrays.items():
        if array.dtype not in names:
            raise ValueError(f"{name} has the type {array.dtype}, which cannot be kept")
        tensors[name] = _described(names[array.dtype], array.shape, end, end + array.nbytes)
        end += array.nbytes
    tensors[_CHECKSUM] = _described("U32", (), end, end + _CHECKSUM_BYTES)
    header = json.dumps(tensors).encode()
    header += b" " * (-len(header) % 8)
    checksum = 0
    for piece in (len(header).to_bytes(8, "little"), header):
        file.write(piece)
        checksum = google_crc32c.extend(checksum, piece)
    for array in arrays.values():
        content = _bytes_of(np.ascontiguousarray(array))
        file.write(content)
        checksum = google_crc32c.extend(checksum, content)
    file.write(checksum.to_bytes(_CHECKSUM_BYTES, "little"))


def read_tensors(path: str) -> tuple[dict[str, Array], Any]:
    """The arrays and the document of a file.

    Raises:
        DamagedTensors: The file is cut off, or its checksum differs.
        OSError: It cannot be read.
    """
    with open(path, "rb") as file:
        try:
            return _read(file, os.fstat(file.fileno()).st_size)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedTensors(f"{type(error).__name__}: {error}") from error


def _read(file: IO[bytes], size: int) -> tuple[dict[str, Array], Any]:
    length = file.read(8)
    header_bytes = int.from_bytes(length, "little")
    if len(length) < 8 or not 0 < header_bytes <= min(_MOST_HEADER_BYTES, size - 8):
        raise DamagedTensors("it is cut off")
    header = file.read(header_bytes)
    checksum = google_crc32c.extend(google_crc32c.value(length), header)
    tensors = json.loads(header)
    metadata = tensors.pop(_METADATA)
    if 8 + header_bytes + tensors.pop(_CHECKSUM)["data_offsets"][1] != size:
        raise DamagedTensors("it is cut off")
    arrays: dict[str, Array] = {}
    left = size - 8 - header_bytes - _CHECKSUM_BYTES
    for name, described in tensors.items():
        dtype, shape = _dtypes()[described["dtype"]], tuple(described["shape"])
        if (left := left - math.prod(shape) * dtype.itemsize) < 0 or min(shape, default=0) < 0:
            raise DamagedTensors("its header does not fit its size")
        arrays[name] = np.empty(shape, dtype)
        content = _bytes_of(arrays[name])
        if file.readinto(content) != len(content):  # type: ignore[attr-defined]
            raise DamagedTensors("it is cut off")
        checksum = google_crc32c.extend(checksum, content)
    if int.from_bytes(file.read(), "little") != checksum:
        raise DamagedTensors("its checksum differs")
    return arrays, json.loads(metadata[_DOCUMENT])


def _described(dtype: str, shape: tuple[int, ...], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def _bytes_of(array: Array) -> Any:
    """The memory of an array, without a copy."""
    return array.reshape(-1).view(np.uint8)
