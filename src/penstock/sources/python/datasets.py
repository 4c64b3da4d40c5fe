"""Datasets of Python: objects with a length and items, and those of Hugging Face."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import cloudpickle
import pyarrow as pa

from penstock.core.columns import describe, whole
from penstock.core.protocols import Source, SourceTraits, with_changes
from penstock.core.records import UNWATCHED, Block, Fragment, RowFailure, Span, TensorSpec, Watch
from penstock.errors import InputError, one_line
from penstock.sources.python.array_like import is_array, stored
from penstock.sources.python.memory import InMemory, even_spans
from penstock.sources.python.rows import Raised, RowTemplate
from penstock.sources.python.streaming import Rows, StreamedRows, pieces_of_batches, pieces_of_rows

_STEP_BYTES = 8 << 20
_STEP_ROWS = 256
_FIRST_ITEMS = 100
_STREAMED_ROWS = 1024


class MapDataset(Source):
    """An object with `__len__` and `__getitem__`, as PyTorch's map-style datasets. It travels to loaders by pickling.

    An item is a dict, a tuple (columns `x0`, `x1`, …) or one value. An item that raises, or is unlike the first one,
    is a row failure. Only one thread at a time reads items, as in PyTorch: few datasets are made for several.
    """

    traits = SourceTraits(runs_python=True, may_have_targets=True)

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._rows = len(dataset)
        self._template: RowTemplate | None = None
        self._lock = threading.Lock()
        self._watch = UNWATCHED

    @property
    def is_positional(self) -> bool:
        return self._rows > 0 and self._like_first().is_positional

    @property
    def _name(self) -> str:
        return f"{type(self._dataset).__module__}.{type(self._dataset).__qualname__}"

    def fragments(self) -> Sequence[Fragment]:
        """One, whose name is a digest of the pickled object: the same class with the same content is the same job.

        Raises:
            InputError: The object cannot be pickled, so it cannot be read by other processes either.
        """
        sink = _Digest()
        try:
            cloudpickle.Pickler(sink).dump(self._dataset)
        except Exception as error:
            raise InputError(
                "the dataset cannot be pickled, which is how other processes get it",
                received=f"{self._name}: {one_line(error)}",
                hint="open files and connections in __getitem__, or give a generator",
            ) from error
        return [Fragment(f"dataset:{self._name}:{sink.digest.hexdigest()}", self._rows, 0)]

    def schema(self) -> dict[str, TensorSpec]:
        return self._like_first().schema()

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterator[Span]:
        return even_spans(self._rows, rows_per_span)

    def origin(self, span: Span, row: int) -> str:
        return f"{type(self._dataset).__name__}, item {row}"

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        template = self._like_first()
        step = max(1, min(_STEP_ROWS, _STEP_BYTES // max(1, template.row_bytes)))
        for start in range(span.start, span.stop, step):
            rows = min(step, span.stop - start)
            self._watch.begin(start, rows)
            gathered, bad = template.gather(self._items(start, start + rows))
            failures = tuple(
                RowFailure(start + position, self.origin(span, start + position), "read", error, reason)
                for position, (error, reason) in bad.items()
            )
            yield Block(start, rows, {name: gathered[name] for name in columns}, failures)

    def _items(self, start: int, stop: int) -> list[Any]:
        """Items in order, each an object or Raised."""
        with self._lock:
            if hasattr(self._dataset, "__getitems__") and not self._watch.is_careful:
                try:
                    items = list(self._dataset.__getitems__(list(range(start, stop))))
                    if len(items) == stop - start:
                        return items
                except Exception:
                    pass  # items are read one by one, to see which one fails
            return [self._item(row) for row in range(start, stop)]

    def _item(self, row: int) -> Any:
        if row in self._watch.poisoned:
            return Raised(RuntimeError(self._watch.poisoned[row].reason))
        if self._watch.is_careful:
            self._watch.begin(row, 1)
        try:
            return self._dataset[row]
        except (Exception, SystemExit) as error:
            return Raised(error)

    def watched_by(self, watch: Watch) -> MapDataset:
        """Every item is reported: one that hangs or kills its process is left out the next time."""
        return with_changes(self, _watch=watch)

    def _like_first(self) -> RowTemplate:
        """The template, made from the first item that can be read."""
        if self._template is None:
            reason = "it has no items"
            for row in range(min(self._rows, _FIRST_ITEMS)):
                with self._lock:
                    item = self._item(row)
                try:
                    if isinstance(item, Raised):
                        raise item.error
                    self._template = RowTemplate(item)
                    break
                except (Exception, SystemExit) as error:
                    reason = reason if row else f"item 0: {one_line(error)}"
            else:
                raise InputError("no item of the dataset can be read", received=f"{self._name}: {reason}")
        return self._template

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_lock", "_watch")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock(), _watch=UNWATCHED)


class _Digest:
    """A file that keeps only a digest of what is written to it."""

    def __init__(self) -> None:
        self.digest = hashlib.blake2b(digest_size=16)

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return len(data)


class HuggingFaceRows(Source):
    """A `datasets.Dataset` on disk, read through Arrow: no row becomes a Python object. Columns are as Arrow has them.

    Loaders map the same files.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = as_arrow(dataset)
        self._name = f"datasets.Dataset {dataset.split}" if dataset.split else "datasets.Dataset"

    def fragments(self) -> Sequence[Fragment]:
        return [Fragment(f"huggingface:{self._dataset._fingerprint}", len(self._dataset), 0)]

    def schema(self) -> dict[str, TensorSpec]:
        return {name: describe(name, column) for name, column in _columns(self._dataset[:_FIRST_ITEMS]).items()}

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterator[Span]:
        return even_spans(len(self._dataset), rows_per_span)

    def origin(self, span: Span, row: int) -> str:
        return f"{self._name}, item {row}"

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        table = self._dataset[span.start : span.stop]
        yield Block(span.start, span.rows, _columns(table.select(list(columns))))


def open_huggingface(dataset: Any) -> HuggingFaceRows | InMemory | MapDataset:
    """The source behind a `datasets.Dataset`: on disk, in memory, or with a user's function that makes its items."""
    if dataset.format["type"] == "custom":
        return MapDataset(dataset)
    if dataset.cache_files:
        return HuggingFaceRows(dataset)
    return InMemory(_columns(as_arrow(dataset)[:]))


def as_arrow(dataset: Any) -> Any:
    """The same dataset, giving Arrow tables of the columns it gave before."""
    columns = dataset.format["columns"] if hasattr(dataset, "format") else None
    return dataset.with_format("arrow", columns=list(columns)) if columns else dataset.with_format("arrow")


def _columns(table: pa.Table) -> dict[str, pa.Array]:
    return {name: stored(whole(table.column(name))) for name in table.column_names}


def open_object(data: Any) -> Source | None:
    """The source behind a dataset or a stream of Python; None for what is held in memory, and for anything else.

    Raises:
        InputError: The object is a dict of splits, or a generator function that was not called.
    """
    name = type(data).__name__
    if _is_a(data, "datasets", "DatasetDict", "IterableDatasetDict"):
        raise InputError(
            "this is a dict of datasets", received=name, allowed="one of " + ", ".join(data), hint="data[SPLIT]"
        )
    if _is_a(data, "datasets", "IterableDataset"):
        return StreamedRows(pieces_of_batches(as_arrow(data).iter(batch_size=_STREAMED_ROWS)), name)
    if _is_a(data, "datasets", "Dataset"):
        return open_huggingface(data)
    if _is_a(data, "ray", "Dataset"):
        return StreamedRows(pieces_of_batches(_blocks_of_ray(data)), "ray.data.Dataset")
    if hasattr(data, "element_spec") and hasattr(data, "as_numpy_iterator"):
        shapes, has_composites = _elements(data.element_spec)
        # Ragged and sparse tensors cannot become numpy arrays.
        batches = iter(data) if has_composites else data.as_numpy_iterator()
        return StreamedRows(pieces_of_batches(batches), "tf.data.Dataset", varies=any(None in s[1:] for s in shapes))
    if isinstance(data, Rows) or _is_a(data, "torch", "IterableDataset"):
        return StreamedRows(pieces_of_rows(data), name, may_have_targets=True)
    if _is_a(data, "keras", "PyDataset"):
        return StreamedRows(pieces_of_batches(data[number] for number in _numbers(data)), name)
    return None if _is_in_memory(data) else _open_plain(data, name)


def _blocks_of_ray(dataset: Any) -> Iterator[pa.Table]:
    """The blocks of a dataset of Ray in order. Ray keeps the order only with `preserve_order`."""
    options = dataset.context.execution_options
    before, options.preserve_order = options.preserve_order, True
    try:
        yield from dataset.iter_batches(batch_format="pyarrow", batch_size=None)
    finally:
        options.preserve_order = before


def _open_plain(data: Any, name: str) -> Source | None:
    if inspect.isgeneratorfunction(data):
        raise InputError("this is a function, not its rows", received=data.__name__, hint=f"call it: {data.__name__}()")
    if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        return MapDataset(data)
    return StreamedRows(pieces_of_batches(iter(data)), name) if hasattr(data, "__iter__") else None


def _numbers(dataset: Any) -> Iterable[int]:
    """The numbers of the batches of a Keras dataset, which may be endless."""
    most = dataset.num_batches if hasattr(dataset, "num_batches") else len(dataset)
    return itertools.count() if most is None else range(most)


def _elements(spec: Any) -> tuple[list[tuple[Any, ...]], bool]:
    """The shapes of a `tf.data` element's dense arrays, and whether it has others: ragged or sparse ones."""
    if isinstance(spec, Mapping):
        spec = tuple(spec.values())
    if isinstance(spec, (list, tuple)):
        inside = [_elements(each) for each in spec]
        return [shape for shapes, _ in inside for shape in shapes], any(is_odd for _, is_odd in inside)
    if type(spec).__name__ != "TensorSpec":
        return [], True
    return [] if spec.shape.rank is None else [tuple(spec.shape.as_list())], False


def _is_in_memory(data: Any) -> bool:
    """Whether `sources.python.memory` handles an object, or refuses it with an error."""
    if isinstance(data, (str, bytes, list, tuple, Mapping, Set, type)):
        return True
    return is_array(data) or any(
        hasattr(data, name) for name in ("__array__", "__dataframe__", "__arrow_c_array__", "__arrow_c_stream__")
    )


def _is_a(data: Any, library: str, *names: str) -> bool:
    """Whether an object is of a class of a library, or of one below it. Nothing is imported to find out."""
    return any(kind.__name__ in names and kind.__module__.partition(".")[0] == library for kind in type(data).__mro__)
