"""Finding the column of images in a table, where the model takes images and no column was named."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.columns import OPAQUE
from penstock.core.deferred import Deferred
from penstock.core.mapping import misfit
from penstock.core.protocols import Source
from penstock.core.records import STRING, Signature, SourceColumn, TensorSpec
from penstock.options.records import ReadOptions
from penstock.sources.images.columns import ImageColumns
from penstock.sources.images.files import IMAGE_SUFFIXES

_MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM", b"II*\x00", b"MM\x00*")
_LOOKED_AT = 32


def find_images(
    source: Source,
    signature: Signature,
    inputs: Mapping[str, Sequence[str]],
    reading: ReadOptions,
    keep: Sequence[str] = (),
) -> Source:
    """The source, with a column of encoded images, or of their paths, as images, if that is what the model needs.

    A column of bytes goes before one of paths, which may only say where they came from.
    """
    wanted = [spec for spec in signature.inputs if spec.shape is not None and len(spec.shape) == 3]
    wanted = [spec for spec in wanted if spec.dtype != STRING]
    schema = source.schema()
    if not wanted or any(misfit(column, spec) is None for spec in wanted for column in schema.values()):
        return source
    asked = {name for spec in wanted for name in inputs.get(spec.name, ())}
    candidates = [name for name, column in schema.items() if _may_hold(column) and (not asked or name in asked)]
    if not candidates:
        return source
    first = next(iter(source.divide(_LOOKED_AT)), None)
    block = next(iter(source.read(first, candidates)), None) if first is not None else None
    if block is None:
        return source
    found = [name for name in candidates if _holds_images(block.columns[name])]
    encoded = [name for name in found if not _is_path(block.columns[name])]
    chosen = found if asked else encoded or [name for name in found if name not in keep] or found
    # Nothing decides between two columns of images: the error that follows lists the columns.
    return ImageColumns(source, chosen, reading) if len(chosen) == 1 or (asked and chosen) else source


def _may_hold(column: TensorSpec) -> bool:
    return column.encoding is None and (column.dtype == OPAQUE or (column.dtype == STRING and column.shape == ()))


def _holds_images(column: SourceColumn) -> bool:
    """Whether the first values that are there look like images or their paths."""
    if isinstance(column, Deferred):
        return False
    values = column[:_LOOKED_AT].tolist() if isinstance(column, np.ndarray) else _first(column)
    known = [value for value in values if value]
    return bool(known) and sum(map(_is_image, known)) > len(known) // 2


def _is_path(column: SourceColumn) -> bool:
    values = column[:1].tolist() if isinstance(column, np.ndarray) else _first(column)
    return any(isinstance(value, str) for value in values)


def _first(column: pa.Array) -> list[Any]:
    found: list[Any] = column[:_LOOKED_AT].to_pylist()
    return found


def _is_image(value: Any) -> bool:
    if isinstance(value, dict):
        return _is_image(value.get("bytes") or value.get("path") or "")
    if isinstance(value, bytes):
        return value.startswith(_MAGIC) or (value[:4] == b"RIFF" and value[8:12] == b"WEBP")
    return isinstance(value, str) and os.path.splitext(value)[1].lower() in IMAGE_SUFFIXES
