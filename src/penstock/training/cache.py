"""Decoded rows, kept in memory or on disk: the input is read once, and its rows are then available in any order."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from penstock.core.records import STRING, Array, Binding, Columns, RowFailure
from penstock.core.training import TrainingData
from penstock.errors import OutputError, UsageError
from penstock.pool.devices.memory import available_bytes
from penstock.training.cutting import INPUT, TARGET, WEIGHT

_INDEX = "cache.json"


def _still() -> None:
    """The default of `beat`: progress is not reported."""


@dataclass(frozen=True)
class Cache:
    """Every row of an input, by its number, in an array for each input, target and weight; and the bad rows."""

    columns: Columns
    failures: tuple[RowFailure, ...]

    def remark(self) -> str:
        """The size of the cache, in words."""
        place = "disk" if any(isinstance(column, np.memmap) for column in self.columns.values()) else "memory"
        rows = len(next(iter(self.columns.values())))
        return f"cache: {rows:,} rows, {sum(column.nbytes for column in self.columns.values()) / 1e9:.2f} GB in {place}"


def check_cacheable(bindings: Sequence[Binding]) -> None:
    """Refuse rows without a fixed size.

    Raises:
        UsageError: Rows are text, or differ in size.
    """
    for binding in bindings:
        if binding.dtype == STRING or None in binding.shape:
            what = "text" if binding.dtype == STRING else "of different sizes"
            raise UsageError(
                "these rows cannot be cached",
                received=f"{binding.input.partition(':')[2]}: rows are {what}",
                hint="leave out --cache",
            )


def in_memory(
    bindings: Sequence[Binding], rows: int, read: Callable[[], TrainingData], beat: Callable[[], None] = _still
) -> Cache:
    """Keep all rows in memory.

    Args:
        bindings: The columns that are kept.
        rows: How many rows the input has.
        read: Opens all rows, in any order, without a seed.
        beat: Called with every batch that is read.

    Raises:
        UsageError: There is not enough memory, or rows have no fixed size.
    """
    check_cacheable(bindings)
    needed, free = rows * sum(binding.row_bytes for binding in bindings), available_bytes()
    if needed > free:
        raise UsageError(
            "the memory is too small for this cache",
            received=f"{needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free",
            hint="--cache disk keeps it beside the model",
        )
    columns: Columns = {binding.input: np.empty((rows, *_shape(binding)), binding.dtype) for binding in bindings}
    return Cache(columns, _fill(columns, read, beat))


def on_disk(
    bindings: Sequence[Binding],
    rows: int,
    folder: Path,
    key: str,
    read: Callable[[], TrainingData],
    beat: Callable[[], None] = _still,
) -> Cache:
    """Keep all rows in memory-mapped files. A whole cache of the same `key` is used again.

    The other arguments are those of `in_memory`.

    Raises:
        OutputError: The disk is too small.
        UsageError: Rows have no fixed size.
    """
    check_cacheable(bindings)
    document = {"key": key, "rows": rows, "columns": [binding.input for binding in bindings]}
    paths = {binding.input: folder / f"column-{place}.npy" for place, binding in enumerate(bindings)}
    found = _known(folder / _INDEX, document)
    if found is not None:
        # A run that was killed while it removed the cache may have left only the index.
        with contextlib.suppress(OSError, ValueError):
            return Cache({name: _loaded(path, rows) for name, path in paths.items()}, found)
    _remove(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        columns: Columns = {binding.input: _mapped(paths[binding.input], binding, rows) for binding in bindings}
    except OSError as error:
        _remove(folder)
        raise OutputError(
            "there is no room for the cache", received=f"{folder}: {error.strerror}", hint="leave out --cache disk"
        ) from error
    failures = _fill(columns, read, beat)
    for column in columns.values():
        column.flush()  # type: ignore[attr-defined]
    # The index comes last: without it, the next run begins anew.
    partial = folder / (_INDEX + ".tmp")
    partial.write_text(json.dumps({**document, "failures": [asdict(failure) for failure in failures]}))
    os.replace(partial, folder / _INDEX)
    return Cache(columns, failures)


def _loaded(path: Path, rows: int) -> Array:
    column: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    if len(column) != rows:
        raise ValueError("it has another number of rows")
    return column


def _remove(folder: Path) -> None:
    """Remove a cache, its index first: without the index, the rest is never used."""
    for path in (folder / _INDEX, *folder.glob("column-*.npy")):
        path.unlink(missing_ok=True)


def _known(index: Path, document: dict[str, object]) -> tuple[RowFailure, ...] | None:
    """The bad rows of a whole cache with this description; None where there is no such cache."""
    try:
        found = json.loads(index.read_text())
        failures = tuple(RowFailure(**failure) for failure in found.pop("failures"))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return failures if found == document else None


def _mapped(path: Path, binding: Binding, rows: int) -> np.memmap[tuple[int, ...], np.dtype[np.generic]]:
    """A new array in a file. All its bytes are reserved, so a full disk is an error now and not a crash later."""
    array = np.lib.format.open_memmap(path, "w+", np.dtype(binding.dtype), (rows, *_shape(binding)))
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
    return array


def _shape(binding: Binding) -> tuple[int, ...]:
    return tuple(length or 1 for length in binding.shape)


def _fill(columns: Columns, read: Callable[[], TrainingData], beat: Callable[[], None]) -> tuple[RowFailure, ...]:
    data = read()
    try:
        for batch in data.batches(0):
            beat()
            for role, found in ((INPUT, batch.inputs), (TARGET, batch.targets), (WEIGHT, batch.weights)):
                for name, array in found.items():
                    columns[role + name][batch.numbers] = array
            batch.release()
        return tuple(data.failures.values())
    finally:
        data.close()
