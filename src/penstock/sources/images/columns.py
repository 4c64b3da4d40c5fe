"""Columns of a table that hold images: encoded bytes, paths or URLs, or both as Hugging Face datasets write them.

Where the model takes images and no column was named, the column is found by what its first values look like.
"""

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.columns import OPAQUE, is_text, storage_of
from penstock.core.deferred import Deferred
from penstock.core.mapping import misfit
from penstock.core.protocols import Source, SourceTraits
from penstock.core.records import STRING, Array, Block, Signature, SourceColumn, Span, TensorSpec
from penstock.errors import InputError, UsageError
from penstock.options.records import ReadOptions
from penstock.sources.derived.wrapper import Around
from penstock.sources.files.paths import is_url
from penstock.sources.images.decoding import PACKAGES
from penstock.sources.images.encoded import EncodedImages, ImagePaths, Images, MixedImages, image_spec
from penstock.sources.images.files import IMAGE_SUFFIXES
from penstock.sources.images.resizing import Rendition

_LOOKED_AT = 32
_MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM", b"II*\x00", b"MM\x00*")


class ImageColumns(Around):
    """A source whose columns `names` are images; everything else is as in the source inside.

    A value may be the encoded bytes, or text: a path or a URL. A relative path begins at the folder in which the table
    lies (for several tables, the deepest folder that holds them all).

    Args:
        source: Where the columns come from.
        names: Columns that hold images.
        reading: The size and colours to decode to, and how to get there.
        base: The folder or URL at which relative paths begin, if it is not the table's.

    Raises:
        UsageError: There is no such column, or it holds numbers.
    """

    def __init__(
        self, source: Source, names: Sequence[str], reading: ReadOptions | None = None, base: str | None = None
    ) -> None:
        super().__init__(source)
        self._names = tuple(names)
        self._reading = reading or ReadOptions()
        self._base = base if base is not None else folder_of(self.paths)
        schema = source.schema()
        for name in self._names:
            _check(name, schema)

    @property
    def traits(self) -> SourceTraits:
        inner = self.source.traits
        return replace(inner, packages=tuple(dict.fromkeys((*inner.packages, *PACKAGES))))

    @cached_property
    def keeps(self) -> tuple[str, ...]:
        """The columns that the inner source keeps, and the paths, which match predictions to images."""
        first = next(iter(self.source.divide(_LOOKED_AT)), None)
        block = next(iter(self.source.read(first, self._names)), None) if first is not None else None
        columns = block.columns if block is not None else {}
        return (*self.source.keeps, *(name for name in self._names if name in columns and _holds_paths(columns[name])))

    def schema(self) -> dict[str, TensorSpec]:
        schema = self.source.schema()
        return {name: image_spec(name, self._reading) if name in self._names else spec for name, spec in schema.items()}

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        for block in self.source.read(span, columns):
            made = {name: self._images(name, block.columns[name]) for name in self._names if name in block.columns}
            yield replace(block, columns={**block.columns, **made}) if made else block

    def _images(self, name: str, column: SourceColumn) -> Images:
        if isinstance(column, Deferred):
            raise InputError("the column is decoded already", received=name)
        values = _plain(_from_numpy(column) if isinstance(column, np.ndarray) else column)
        rendition = Rendition.of(self._reading)
        if pa.types.is_struct(values.type):
            encoded, named = _fields(name, values)
            return MixedImages(EncodedImages(encoded, rendition), ImagePaths(self._located(named), rendition))
        if _is_bytes(values.type):
            return EncodedImages(values, rendition)
        if is_text(values.type) or pa.types.is_null(values.type):
            return ImagePaths(self._located(values), rendition, texts=values)
        raise _not_images(name, str(values.type))

    def _located(self, paths: pa.Array) -> list[str | None]:
        return [path and _join(self._base, path) for path in paths.to_pylist()]


def folder_of(paths: Sequence[str]) -> str:
    """The deepest folder that holds all of `paths`; without paths, the current folder.

    >>> folder_of(["/data/a/1.csv", "/data/b/2.csv"])
    '/data'
    """
    folders = {path.rpartition("/")[0] if is_url(path) else os.path.dirname(os.path.abspath(path)) for path in paths}
    if not folders:
        return os.getcwd()
    if any(map(is_url, folders)):
        names = zip(*(folder.split("/") for folder in folders), strict=False)
        return "/".join(alike[0] for alike in itertools.takewhile(lambda alike: len(set(alike)) == 1, names))
    return os.path.commonpath(folders)


def _join(base: str, path: str) -> str:
    if is_url(path):
        return path
    return f"{base}/{path.lstrip('/')}" if is_url(base) else os.path.join(base, path)


def _check(name: str, schema: dict[str, TensorSpec]) -> None:
    if name not in schema:
        raise UsageError(
            "there is no such column to read images from",
            received=f"images={name}",
            allowed=", ".join(list(schema)[:20]),
        )
    if schema[name].encoding is None and (schema[name].dtype not in (STRING, OPAQUE) or schema[name].shape != ()):
        raise _not_images(name, str(schema[name]))


def _not_images(name: str, kind: str) -> UsageError:
    return UsageError(
        "the column does not hold encoded images",
        received=f"images={name}, of {kind}",
        allowed="bytes, text (paths or URLs), or a struct of `bytes` and `path`",
        hint="arrays of pixels need no --image: they are fed as they are",
    )


def _from_numpy(column: Array) -> pa.Array:
    values = column.tolist()
    return pa.array(values, pa.large_binary() if any(isinstance(value, bytes) for value in values) else None)


def _plain(values: pa.Array) -> pa.Array:
    """The values without extension types, dictionaries and views, whose single values are slow to read."""
    values = storage_of(values)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_binary_view(values.type):
        return values.cast(pa.large_binary())
    return values.cast(pa.large_string()) if pa.types.is_string_view(values.type) else values


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _fields(name: str, values: pa.StructArray) -> tuple[pa.Array, pa.Array]:
    """`bytes` and `path` of a struct; one of them may be missing, and is null then."""
    # Only `flatten` makes the fields of a null struct null.
    fields = dict(zip((field.name for field in values.type), values.flatten(), strict=True))
    if not fields.keys() & {"bytes", "path"}:
        raise _not_images(name, str(values.type))
    encoded, named = (fields.get(field, pa.nulls(len(values))) for field in ("bytes", "path"))
    return encoded.cast(pa.large_binary()), named.cast(pa.large_string())


def find_images(
    source: Source,
    signature: Signature,
    inputs: Mapping[str, Sequence[str]],
    reading: ReadOptions,
    keep: Sequence[str] = (),
) -> Source:
    """The source; where the model takes images, a column of encoded images or of their paths is read as images.

    A column of bytes is preferred to one of paths, which may only record where the images came from.
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
    images = [name for name in candidates if _holds_images(block.columns[name])]
    encoded = [name for name in images if not _holds_paths(block.columns[name])]
    chosen = images if asked else encoded or [name for name in images if name not in keep] or images
    # Nothing decides between two columns of images: the error that follows lists the columns.
    return ImageColumns(source, chosen, reading) if len(chosen) == 1 or (asked and chosen) else source


def _may_hold(column: TensorSpec) -> bool:
    return column.encoding is None and (column.dtype == OPAQUE or (column.dtype == STRING and column.shape == ()))


def _holds_images(column: SourceColumn) -> bool:
    """Whether most of the first values that are there look like images or their paths."""
    known = [value for value in _values(column[:_LOOKED_AT]) if value]
    return bool(known) and sum(map(_is_image, known)) > len(known) // 2


def _holds_paths(column: SourceColumn) -> bool:
    return any(isinstance(value, str) for value in _values(column))


def _values(column: SourceColumn) -> list[Any]:
    if isinstance(column, Deferred):
        return []
    values: list[Any] = column.tolist() if isinstance(column, np.ndarray) else column.to_pylist()
    return values


def _is_image(value: Any) -> bool:
    if isinstance(value, dict):
        return _is_image(value.get("bytes") or value.get("path") or "")
    if isinstance(value, bytes):
        return value.startswith(_MAGIC) or (value[:4] == b"RIFF" and value[8:12] == b"WEBP")
    return isinstance(value, str) and os.path.splitext(value)[1].lower() in IMAGE_SUFFIXES
