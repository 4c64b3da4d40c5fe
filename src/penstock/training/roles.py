"""Roles of columns: inputs, targets and weights. Labels of text become numbers by a vocabulary."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from penstock.core.columns import OPAQUE, to_arrow
from penstock.core.deferred import Deferred
from penstock.core.protocols import Source
from penstock.core.records import STRING, Array, Binding, Block, SourceColumn, Span, TensorSpec
from penstock.errors import InputError
from penstock.evaluation.targets import as_text, class_codes, kind_of
from penstock.sources.derived.folder_names import FOLDER, FolderNames
from penstock.sources.derived.wrapper import Around
from penstock.training.cutting import TARGET, WEIGHT

_SCANNED_ROWS = 1 << 16
_MOST_CLASSES = 100_000


def in_role(role: str, bindings: Iterable[Binding]) -> tuple[Binding, ...]:
    """Bindings whose names begin with the role of their columns."""
    return tuple(
        replace(binding, input=role + binding.input, mask_of=binding.mask_of and role + binding.mask_of)
        for binding in bindings
    )


def with_folders(source: Source, columns: Iterable[str]) -> Source:
    """The source. If one of `columns` is `@folder`, it has the names of folders as a column."""
    return FolderNames(source) if FOLDER in columns and FOLDER not in source.schema() else source


def find_column(source: Source, name: str, option: str) -> TensorSpec:
    """The column that an option names.

    Raises:
        InputError: The input has none of this name, or it holds neither numbers nor text.
    """
    schema = source.schema()
    if name not in schema:
        hint = f"{option} {FOLDER} is the folder of every file" if "path" in source.keeps else None
        raise InputError(
            "the input has no such column",
            received=f"{option} {name}",
            allowed=", ".join(list(schema)[:20]),
            hint=hint,
        )
    if schema[name].dtype == OPAQUE and (kind := _kind_in(source, name)) is not None:
        raise InputError(
            "the column holds neither numbers nor text",
            received=f"{option} {name}, of {kind}",
            allowed="whole numbers, text, fractions, or lists of one length",
            hint="write dates and times as numbers or as text",
        )
    if schema[name].dtype == OPAQUE or schema[name].encoding is not None:
        raise InputError("the column holds neither numbers nor text", received=f"{option} {name}, of {schema[name]}")
    return schema[name]


def _kind_in(source: Source, name: str) -> str | None:
    """The kind of values in a column, taken from its first row; None where there is no row."""
    for span in source.divide(1):
        for block in source.read(span, [name]):
            column = block.columns[name]
            return kind_of(column.raw() if isinstance(column, Deferred) else column)
    return None


def target_binding(source: Source, column: str, output: str = "") -> Binding:
    """The binding of a target to its column: whole numbers stay, fractions become float32.

    If labels are text, the source must be a `CodedLabels` already.
    """
    spec = find_column(source, column, "--label")
    if spec.shape is None or None in spec.shape:
        raise InputError("the labels differ in their shape", received=f"--label {column}, of {spec}")
    dtype = "float32" if spec.dtype in ("float64", "float16") else spec.dtype
    return Binding(TARGET + output, (column,), dtype, spec.shape)


def weight_binding(source: Source, column: str, output: str = "") -> Binding:
    """The binding of the weight of every row to its column."""
    spec = find_column(source, column, "--weight")
    if spec.dtype == STRING or spec.shape != ():
        raise InputError("a weight is one number for each row", received=f"--weight {column}, of {spec}")
    return Binding(WEIGHT + output, (column,), "float32", ())


@dataclass(frozen=True)
class Classes:
    """The classes of a label column in ascending order, how many rows each has, and the class of every row."""

    values: tuple[str | int, ...]
    counts: Array
    codes: Array
    """int32: the place of every row's class in `values`; -1 where a row has none."""

    @property
    def vocabulary(self) -> tuple[str, ...] | None:
        """The classes, where they are text."""
        return tuple(str(value) for value in self.values) if isinstance(self.values[0], str) else None

    def balanced_weights(self, numbers: Array | None = None) -> dict[int, float]:
        """A weight for every class, so that all classes count alike: rows / (classes * rows of the class).

        Args:
            numbers: The rows that are counted; None for all. Classes without such a row get no weight.
        """
        counts = self.counts if numbers is None else self._counts_of(numbers)
        labels = [place if isinstance(value, str) else value for place, value in enumerate(self.values)]
        total, num_classes = int(counts.sum()), int(np.count_nonzero(counts))
        pairs = zip(labels, counts.tolist(), strict=True)
        return {label: total / (num_classes * count) for label, count in pairs if count}

    def missing_in(self, numbers: Array) -> list[str]:
        """The classes that none of these rows has."""
        found = self._counts_of(numbers)
        return [str(value) for value, count in zip(self.values, found.tolist(), strict=True) if not count]

    def _counts_of(self, numbers: Array) -> Array:
        codes = self.codes[numbers]
        return np.bincount(codes[codes >= 0], minlength=len(self.values))


def scan_classes(source: Source, columns: Sequence[str]) -> dict[str, Classes]:
    """The classes of every label column. The columns are read once; memory is 4 bytes for each row and column.

    Raises:
        InputError: The labels are no classes: fractions, lists, or too many different values.
    """
    for column in columns:
        _check_scanned(source, column)
    known: dict[str, dict[str | int, int]] = {column: {} for column in columns}
    pieces: dict[str, list[Array]] = {column: [] for column in columns}
    for span in source.divide(_SCANNED_ROWS) if columns else ():
        for block in source.read(span, columns):
            for column in columns:
                pieces[column].append(_codes(block, column, known[column]))
    return {column: _as_classes(column, known[column], pieces[column]) for column in columns}


def _check_scanned(source: Source, column: str) -> None:
    spec = find_column(source, column, "--label")
    is_number = "int" in spec.dtype or "float" in spec.dtype or spec.dtype == "bool"
    if spec.shape != () or not (is_number or spec.dtype == STRING):
        raise InputError(
            "these labels are no classes",
            received=f"--label {column}, of {spec}",
            allowed="text or whole numbers, one for each row",
        )


def _as_classes(column: str, known: Mapping[str | int, int], pieces: Sequence[Array]) -> Classes:
    """The classes of a column in ascending order, from numbers in the order in which classes were found."""
    if len(known) > _MOST_CLASSES or not known:
        raise InputError(
            "these labels are no classes",
            received=f"--label {column}: {len(known):,} different values",
            allowed=f"1 to {_MOST_CLASSES:,}",
        )
    found = np.concatenate(pieces)
    values = sorted(known, key=lambda value: (str(type(value)), value))  # type: ignore[operator]
    places = np.full(len(values) + 1, -1, np.int32)  # the last one is for -1
    places[[known[value] for value in values]] = np.arange(len(values))
    codes = places[found]
    return Classes(tuple(values), np.bincount(codes[codes >= 0], minlength=len(values)), codes)


def _codes(block: Block, column: str, known: dict[str | int, int]) -> Array:
    """A number for the class of every row, in the order in which classes are found; -1 for a row without a class."""
    encoded = _plain(block.columns[column]).dictionary_encode()
    classes = [_as_class(value, column) for value in encoded.dictionary.to_pylist()]
    numbers = (-1 if value is None else known.setdefault(value, len(known)) for value in classes)
    lookup = np.array([*numbers, -1], np.int32)
    codes: Array = lookup[encoded.indices.fill_null(len(classes)).to_numpy(zero_copy_only=False)]
    codes[[failure.row - block.start for failure in block.failures]] = -1
    return codes


def _as_class(value: str | bytes | int | float, column: str) -> str | int | None:
    """A label as a class; None for NaN. Whole numbers may be floats: pandas makes them so if some are missing."""
    if not isinstance(value, float):
        return as_text(value)
    if math.isnan(value):
        return None
    if not value.is_integer():
        raise InputError(
            "these labels are no classes",
            received=f"--label {column}: {value}",
            allowed="text or whole numbers, one for each row",
        )
    return int(value)


def _plain(column: SourceColumn) -> pa.Array:
    arrow = to_arrow(column.raw() if isinstance(column, Deferred) else column)
    return arrow.dictionary_decode() if pa.types.is_dictionary(arrow.type) else arrow


class CodedLabels(Around):
    """A source in which labels of text are replaced by their places in a vocabulary. A row with another label fails."""

    def __init__(self, source: Source, column: str, vocabulary: Sequence[str]) -> None:
        super().__init__(source)
        self._column = column
        self._places = {name: place for place, name in enumerate(vocabulary)}

    def schema(self) -> dict[str, TensorSpec]:
        return {**self.source.schema(), self._column: TensorSpec(self._column, "int64", ())}

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        for block in self.source.read(span, columns):
            yield self._coded(block) if self._column in block.columns else block

    def _coded(self, block: Block) -> Block:
        labels = _plain(block.columns[self._column])
        codes = class_codes(labels, self._places)

        def explain(column: str, place: int) -> str:
            if column == self._column and labels[place].is_valid:
                return f"is {labels[place].as_py()!r}, which is not among the {len(self._places):,} known labels"
            return block.explain_null(column, place) if block.explain_null is not None else "is null"

        return replace(block, columns={**block.columns, self._column: codes}, explain_null=explain)
