"""The records that travel between the parts of penstock. All are small, frozen and picklable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from penstock.core.deferred import Array as Array
from penstock.core.deferred import Column as Column
from penstock.core.deferred import Columns as Columns
from penstock.core.deferred import SourceColumn as SourceColumn
from penstock.core.output_selection import Answers
from penstock.core.tracing import Timings as Timings
from penstock.options.records import Nulls

Shape = tuple[int | None, ...]
KEPT = "kept:"
"""Before the name of a kept column in a Result."""

ANY_SIGNATURE = "*"
"""For a model that is only inspected: the signature that would be run, or else the first."""
STRING = "string"
"""The dtype name of text and bytes; all others are numpy's names."""


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a model, or one column of a source, without the batch dimension.

    `shape` is None where the rank is unknown; a None inside it is a dimension that may vary. `encoding` is set for
    columns of encoded rows (`image`, `audio`): dtype and shape are what they decode to, and a model that takes strings
    gets the encoded bytes. `varies` is set for lists, whose length may differ from row to row whatever `shape` says.
    """

    name: str
    dtype: str
    shape: Shape | None
    encoding: str | None = None
    varies: bool = False

    @property
    def row_bytes(self) -> int:
        """The bytes of one row; a dimension of unknown length counts as 1, a value that is not a number as 16 bytes."""
        try:
            size = np.dtype(self.dtype).itemsize
        except TypeError:
            size = 2 if self.dtype == "bfloat16" else 16
        for length in self.shape or ():
            size *= length or 1
        return size

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.dtype}[?]"
        lengths = (None, *self.shape[1:]) if self.varies and self.shape else self.shape
        return f"{self.dtype}[{', '.join('?' if n is None else str(n) for n in lengths)}]"


@dataclass(frozen=True)
class Feature:
    """What a model parses out of serialized `tf.train.Example` records: one of its features.

    `dtype` is what the record must hold: `float32`, `int64` or `string`. `shape` is None where any number of values
    will do. A feature that is not required has a default in the model. In a Binding, `num_columns` are stacked into it.
    """

    name: str
    dtype: str
    shape: Shape | None
    is_required: bool = True
    num_columns: int = 1

    def __str__(self) -> str:
        return str(TensorSpec(self.name, self.dtype, self.shape))


@dataclass(frozen=True)
class Signature:
    """What a loaded model takes and gives.

    `structure` says how `model.predict` would hand the outputs back: `single`, `list` or `dict`. `fixed_batch` is
    set where the model takes batches of one size only. `others` are the signatures that were not chosen. `weights` is a
    digest, set for models that a function built: only the function knows where they come from. `examples` names the
    inputs that are serialized records, with the features that the model parses out of them. `notes` are lines for
    the user about how the model was loaded.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    structure: str = "single"
    fixed_batch: int | None = None
    name: str | None = None
    others: tuple[Signature, ...] = ()
    parameters: int | None = None
    writer: str = ""
    weights: str | None = None
    examples: Mapping[str, tuple[Feature, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Signature:
        """The signature that `dataclasses.asdict` made this document of, also by way of JSON.

        >>> Signature.from_json(asdict(Signature((), (), name="serve"))).name
        'serve'
        """
        remade = {
            "inputs": tuple(TensorSpec(**_shaped(spec)) for spec in document["inputs"]),
            "outputs": tuple(TensorSpec(**_shaped(spec)) for spec in document["outputs"]),
            "others": tuple(map(cls.from_json, document["others"])),
            "examples": {
                name: tuple(Feature(**_shaped(feature)) for feature in features)
                for name, features in document["examples"].items()
            },
            "notes": tuple(document["notes"]),
        }
        return cls(**{**document, **remade})


def _shaped(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a spec, whose shape is a list in JSON."""
    return {**document, "shape": None if document["shape"] is None else tuple(document["shape"])}


@dataclass(frozen=True)
class Scaling:
    """`x * scale + offset`, each a single number or one for each channel, after the channels were reversed or not."""

    scale: tuple[float, ...] = (1.0,)
    offset: tuple[float, ...] = (0.0,)
    is_reversed: bool = False

    @property
    def channels(self) -> int | None:
        """How many channels it needs; None where any number will do."""
        most = max(len(self.scale), len(self.offset), 3 if self.is_reversed else 1)
        return most if most > 1 else None

    def apply(self, tensor: Any) -> Any:
        """Scale a float tensor of any framework, channels last."""
        if self.is_reversed:
            tensor = tensor.flip(-1) if hasattr(tensor, "flip") else tensor[..., ::-1]
        scaled = tensor * _constant(self.scale, tensor)
        return scaled + _constant(self.offset, tensor) if any(self.offset) else scaled


def _constant(values: tuple[float, ...], like: Any) -> Any:
    """Numbers in a form that broadcasts against any framework's tensor without changing its dtype."""
    if len(values) == 1:
        return values[0]
    return like.new_tensor(values) if hasattr(like, "new_tensor") else np.asarray(values, np.float32)


@dataclass(frozen=True)
class ModelFile:
    """What a model is before any framework has seen it: enough to load it in another process.

    Args:
        kind: What its file is: `keras`, `h5`, `saved_model`, `frozen_graph`, `onnx`, `tflite`, `stablehlo`,
            `jax_export`; `converted`, a folder that holds the whole step of another model as ONNX; `builder` (a
            function that returns a Keras model), `estimator` (a `model_fn`) or `live`.
        location: The path, or `module:function`.
        digest: Changes whenever the answers could change.
        runtimes: The runtimes that can execute this kind, best first.
        signature: Which one of a SavedModel.
        trust: Whether it may contain code.
        payload: A pickled function, for a builder that is not importable by name, or for an estimator.
        weights: A file of weights only, for a builder.
        custom_objects: Modules that register the model's own classes when they are imported.
        inputs: The inputs that were named on the command line; a frozen graph is cut there.
        constants: Values for inputs that are not rows: one for the whole job.
        scaling: How its inputs are scaled inside the compiled step.
        answers: What is kept of its outputs; computed inside the compiled step.
        precision: What it computes in: `model` as it was made, or `bfloat16`, `float16`, `int8` where that was asked.
    """

    kind: str
    location: str
    digest: str
    runtimes: tuple[str, ...]
    signature: str | None = None
    trust: bool = False
    payload: bytes | None = None
    weights: str | None = None
    custom_objects: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    constants: Mapping[str, str] = field(default_factory=dict)
    scaling: Scaling | None = None
    answers: Answers | None = None
    precision: str = "model"


@dataclass(frozen=True)
class Fragment:
    """One input file, as the fingerprint sees it."""

    path: str
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class Extent:
    """Bytes of an input file that a span is made from. `file` is as it was when the input was listed.

    `nbytes` is None for a whole file that is a row of its own. Spans may share an extent, where its bytes can only be
    read from their beginning (a compressed file, a large row group).
    """

    file: Fragment
    start: int = 0
    nbytes: int | None = None


@dataclass(frozen=True)
class Span:
    """A fixed range of rows: the unit of order, retry and resume.

    `locator` is the source's own note of where the rows lie; it is plain JSON. Spans that must be read in sequence (a
    large row group that was cut) have the same `group`: the scheduler keeps them on one replica where it can.
    """

    index: int
    start: int
    rows: int
    locator: tuple[Any, ...]
    group: str | None = None
    numbers: tuple[tuple[int, int], ...] | None = None
    """Runs of (first row, rows) in the whole input, where a job takes only some of its rows."""

    @property
    def stop(self) -> int:
        return self.start + self.rows

    def number(self, row: int) -> int:
        """The number in the whole input of the row that the job counts as `row`."""
        place = row - self.start
        for first, rows in self.numbers or ((self.start, self.rows),):
            if place < rows:
                return first + place
            place -= rows
        raise IndexError(row)


@dataclass(frozen=True)
class RowFailure:
    """A row that has no prediction, and why."""

    row: int
    origin: str
    stage: str
    error: str
    reason: str


class Watch:
    """Is called before work on a row, or on rows for the user's function, begins. This class ignores the calls.

    `is_careful` asks for single rows instead of blocks, because a process died in this span before. `poisoned` are rows
    that killed or hung a loader: they are left out. `about_rows` are the exceptions of the user's function that fail a
    row instead of the run: also `SystemExit` and, in a worker process, which no terminal interrupts, every exception.
    """

    about_rows: tuple[type[BaseException], ...] = (Exception, SystemExit)

    is_careful: bool = False
    poisoned: Mapping[int, RowFailure] = {}

    def begin(self, first_row: int, rows: int) -> None:
        """Work on these rows begins."""

    def end(self) -> None:
        """No row is under way."""


UNWATCHED = Watch()


@dataclass(frozen=True)
class Block:
    """Decoded rows of a span, or of a piece of it. A row that failed keeps its place with a null or zero value.

    `explain_null` returns what the file holds where a column has a null, by column and place. It is called only for
    rows that fail because of that null.
    """

    start: int
    rows: int
    columns: Mapping[str, SourceColumn]
    failures: tuple[RowFailure, ...] = ()
    explain_null: Callable[[str, int], str] | None = None


@dataclass(frozen=True)
class Result:
    """The predictions of a whole span: outputs and kept columns without the failed rows, in order.

    `columns` holds the outputs first, then the kept columns, whose keys begin with KEPT: an output may have the same
    name until both have the names that are written. `reduced_to` is the size of the smallest batch that was run, where
    batches of the recipe's size did not fit into the memory. `digest` is the digest of the bytes of the input that it
    was made from; it is set before the result is written.
    """

    span: Span
    columns: Mapping[str, Column]
    failures: tuple[RowFailure, ...] = ()
    reduced_to: int | None = None
    digest: str = ""

    @property
    def rows(self) -> int:
        return self.span.rows - len(self.failures)

    def row_numbers(self) -> Array:
        """The index in the whole input of every row that has a prediction."""
        runs = self.span.numbers or ((self.span.start, self.span.rows),)
        numbers = np.concatenate([np.arange(first, first + rows, dtype=np.int64) for first, rows in runs])
        if not self.failures:
            return numbers
        failed = np.array([failure.row for failure in self.failures], dtype=np.int64)
        return np.setdiff1d(numbers, failed, assume_unique=True)


@dataclass(frozen=True)
class Binding:
    """How one model input is made from columns.

    Several columns are stacked into one vector. `dtype` is what crosses to the device: integers stay integers and
    are cast there. A None in `shape` varies from row to row: such rows are padded, and an input with `mask_of` says
    which values of that other input are real. With `features`, each row becomes a serialized `tf.train.Example` in
    which the columns are these features, in the same order. `nulls` is what is done with missing values.
    """

    input: str
    columns: tuple[str, ...]
    dtype: str
    shape: Shape
    mask_of: str | None = None
    features: tuple[Feature, ...] = ()
    nulls: Nulls = field(default_factory=Nulls)

    def columns_of_features(self) -> Iterator[tuple[Feature, tuple[str, ...]]]:
        """Every feature with its columns."""
        position = 0
        for feature in self.features:
            yield feature, self.columns[position : position + feature.num_columns]
            position += feature.num_columns

    @property
    def row_bytes(self) -> int:
        return TensorSpec(self.input, self.dtype, self.shape).row_bytes


@dataclass(frozen=True)
class Recipe:
    """What decides the bits of the answers."""

    runtime: str
    device_kind: str
    batch_size: int
    threads: int
    precision: str = "model"
    buckets: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)
    """Input name to the sizes that each of its varying dimensions is padded to."""
    is_padded: bool = True
    """Whether rows of different sizes share a batch; where padding changes the answers, each batch has one size."""
    state: str = "none"
    """What a call changes in the model: `none`, `seeds` or `variables`; see `core.state`."""
    engine_share: float = 0.0
    """The share that the GPU's engine decodes of the JPEGs that it can decode; loaders decode the others. 0 where no
    bit depends on it."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Device:
    """One place where a replica can run. `uuid` and `memory_bytes` are known for GPUs.

    `memory_limit` is what this replica may take of the memory, set before its framework starts; 0 where nothing
    limits it. Several replicas on one device have the same index and a share each. `node` is the name of its machine
    in a cluster, and empty for this machine.
    """

    kind: str
    index: int
    name: str = ""
    uuid: str | None = None
    memory_bytes: int = 0
    free_bytes: int = 0
    memory_limit: int = 0
    node: str = ""

    def __str__(self) -> str:
        return f"{self.node}/{self.kind}:{self.index}" if self.node else f"{self.kind}:{self.index}"


@dataclass(frozen=True)
class Shortage:
    """A device ran out of memory at a batch of `rows`, and what is done about it.

    The run goes on with batches of `reduced_to` rows. If that is the size from before, it goes on with only `at_once`
    batches in flight or, where that is None, unchanged, because there is memory again. If `reduced_to` is 0, a single
    row did not fit and has failed.
    """

    device: str
    rows: int
    reduced_to: int
    at_once: int | None = None

    def __str__(self) -> str:
        if not self.reduced_to:
            return f"{self.device} ran out of memory at a single row: the row has failed"
        if self.at_once is not None:
            rows = f"{self.at_once + 1} batches of {self.rows:,} rows at once"
            return f"{self.device} ran out of memory at {rows}: going on with {self.at_once}"
        if self.reduced_to == self.rows:
            return f"{self.device} had no memory left for a while, which is over"
        return f"{self.device} ran out of memory at a batch of {self.rows:,} rows: going on with {self.reduced_to:,}"


@dataclass(frozen=True)
class Placement:
    """What decides only the speed.

    `loaders` is the number of reading threads of each replica or, with `has_loader_processes`, the number of loader
    processes for all replicas at the start: it grows up to `most_loaders` while replicas wait for data.
    """

    devices: tuple[Device, ...]
    loaders: int
    lanes: int
    has_loader_processes: bool = False
    most_loaders: int = 0

    @property
    def replicas(self) -> int:
        return len(self.devices)

    @property
    def replicas_per_device(self) -> int:
        """The number of replicas on the first device; all cores of a machine are one device."""
        first = self.devices[0]
        return sum(each.kind == "cpu" or each.uuid == first.uuid for each in self.devices)


@dataclass(frozen=True)
class OutputSchema:
    """The columns that a sink writes, besides `row`: outputs first, then kept columns."""

    columns: tuple[TensorSpec, ...]
    num_outputs: int

    @property
    def row_bytes(self) -> int:
        return 8 + sum(column.row_bytes for column in self.columns)

    @property
    def names(self) -> Sequence[str]:
        return [column.name for column in self.columns]
