"""Whole elements of an `input_fn` as the rows of a job: their source, their model, and its replica.

An element is what `input_fn` gives in one step: any number of tensors of any shapes. A row of such a job is a bundle of
elements, which lies in a file in memory; only the path of this file goes through pipes. The answer to a row holds the
predictions of its elements.
"""

from __future__ import annotations

import itertools
import mmap
import os
import pickle
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.protocols import Source, SourceTraits
from penstock.core.records import STRING, Block, Columns, Device, Fragment, Result, Signature, Span, TensorSpec
from penstock.errors import ModelError, one_line
from penstock.estimator.likeness import Reference
from penstock.estimator.model_function import ModelFunction
from penstock.runtimes.frameworks import tf
from penstock.runtimes.tensorflow.session import GraphSession, open_graph, session_options
from penstock.sources.python.streaming import new_file

COLUMN = "elements"
ANSWERS = "answers"

_ALIGNMENT = 64
_COUNT = struct.Struct("<Q")


class ElementSource(Source):
    """The source of a job whose rows are bundles of elements. They are added while the job runs.

    A copy in another process can only `read`: it gives the locations that `open_bundle` takes.
    """

    traits = SourceTraits(is_resumable=False)

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._numbers = itertools.count()

    def add(self, elements: Sequence[Any]) -> Span:
        """Write a bundle into memory that other processes can map."""
        path, descriptor = new_file("penstock-elements")
        self._open[path] = descriptor
        with os.fdopen(os.dup(descriptor), "wb") as file:
            for piece in pack(list(elements)):
                file.write(piece)
        number = next(self._numbers)
        return Span(number, number, 1, (path, os.fstat(descriptor).st_ino))

    def fragments(self) -> Sequence[Fragment]:
        return [Fragment("input_fn", 0, 0)]

    def schema(self) -> dict[str, TensorSpec]:
        return {COLUMN: TensorSpec(COLUMN, STRING, ())}

    def divide(self, rows_per_span: int, most_rows: int | None = None) -> Iterator[Span]:
        raise NotImplementedError("bundles are added one by one")

    def origin(self, span: Span, row: int) -> str:
        return f"input_fn, bundle {row}"

    def read(self, span: Span, columns: Sequence[str]) -> Iterator[Block]:
        places = np.empty(1, object)
        places[0] = location_of(span)
        yield Block(span.start, 1, {COLUMN: places})

    def release(self, span: Span) -> None:
        """Free the memory of a bundle whose answers have arrived."""
        self._close(span.locator[0])

    def close(self) -> None:
        for path in list(self._open):
            self._close(path)

    def __getstate__(self) -> dict[str, Any]:
        return {"_open": {}, "_numbers": itertools.count()}

    def _close(self, path: str) -> None:
        descriptor = self._open.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)
            if not path.startswith("/proc/"):
                os.unlink(path)


def location_of(span: Span) -> bytes:
    """Where the elements of a span lie, for `open_bundle`."""
    path, inode = span.locator
    return f"{inode} {path}".encode()


def open_bundle(location: bytes) -> list[Any]:
    """The elements of a bundle, mapped from the memory into which another process wrote them."""
    inode, _, path = location.decode().partition(" ")
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if status.st_ino != int(inode):
            raise FileNotFoundError(f"{path} holds another bundle")
        elements: list[Any] = unpack(mmap.mmap(descriptor, status.st_size, prot=mmap.PROT_READ))
        return elements
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class ElementModel:
    """A `model_fn` for whole elements, in the form that is sent to replicas.

    Args:
        function: The `model_fn`.
        features: The structure of the features, as specs of tensors.
        sample: The location of one element.
        reference: The location of two predictions for it, made by the user's own process.
    """

    function: ModelFunction
    features: Any
    sample: bytes
    reference: bytes

    def resolved(self) -> ElementModel:
        """A copy in which the function is imported."""
        return replace(self, function=self.function.resolved())

    def load(self, device: Device, threads: int) -> ElementReplica:
        """The model on a device.

        Raises:
            ModelError: It predicts other values on this device than the user's own process does.
        """
        options = session_options(self.function, device, threads)
        replica = ElementReplica(_open_for_elements(self.function, self.features, options))
        try:
            self._check(replica, device)
        except BaseException:
            replica.close()
            raise
        return replica

    def _check(self, replica: ElementReplica, device: Device) -> None:
        answers, problem = replica.predict_bundle(self.sample)
        if problem:
            raise ModelError("the model_fn cannot predict in another process", received=problem)
        unlike = Reference(*open_bundle(self.reference)).unlike(answers[0], device.kind)
        if unlike is not None:
            raise ModelError(
                "it predicts other values than this process",
                received=unlike,
                hint="what was set in a module at run time is not set there: hand it to the model_fn as params",
            )


class ElementReplica:
    """A model on one device: bundles of elements go in, bundles of predictions come out.

    An element that the model rejects ends its bundle: the answer then has the predictions of the elements before it,
    and the reason.
    """

    def __init__(self, opened: GraphSession) -> None:
        self.signature = Signature((TensorSpec(COLUMN, STRING, ()),), (), structure="dict")
        self._opened = opened

    def predict(self, batch: Columns) -> Columns:
        (places,) = batch.values()
        return {ANSWERS: pack_to_row(self.predict_bundle(places[0]))}

    def predict_bundle(self, location: bytes) -> tuple[list[Any], str]:
        """The predictions of the elements, and the reason why the others have none; empty where all have one."""
        answers: list[Any] = []
        try:
            for element in open_bundle(location):
                answers.append(self._opened.run(element))  # noqa: PERF401 - those before an error are kept
        except (tf.errors.OpError, ValueError) as error:
            return answers, one_line(error)
        return answers, ""

    def close(self) -> None:
        self._opened.close()


def _open_for_elements(function: ModelFunction, features: Any, options: Any) -> GraphSession:
    checkpoint = function.find_checkpoint()
    with tf.Graph().as_default() as graph:
        function.begin()
        feed: list[Any] = []
        placeholders = tf.nest.map_structure(lambda leaf: _placeholder_for(leaf, feed), features)
        with graph.device(function.called.config.device_fn):
            spec = function.build(placeholders)
        fetches = function.choose(spec.predictions)
        if checkpoint is None:
            function.start_warm()
        return open_graph(graph, feed, fetches, spec.scaffold, checkpoint, options)


def _placeholder_for(leaf: Any, feed: list[Any]) -> Any:
    """A tensor for a spec, made of placeholders, which are added to `feed`. A value that is no spec stays as it is."""
    if not isinstance(leaf, tf.TypeSpec):
        return leaf
    specs = tf.nest.flatten(leaf, expand_composites=True)
    with tf.device("/cpu:0"):
        parts = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in specs]
    feed.extend(parts)
    return tf.nest.pack_sequence_as(leaf, parts, expand_composites=True)


def answers_of(result: Result) -> tuple[list[Any], str]:
    """The result of `predict_bundle` in a replica."""
    answers: tuple[list[Any], str] = unpack_row(result.columns[ANSWERS])
    return answers


def pack(value: Any) -> list[memoryview]:
    """Any structure of arrays as pieces of bytes. Arrays of numbers are not copied: their own memory is used."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    raw = [memoryview(head), *(buffer.raw() for buffer in buffers)]
    lengths = b"".join(_COUNT.pack(number) for number in (len(raw), *(piece.nbytes for piece in raw)))
    pieces: list[memoryview] = []
    for piece in (memoryview(lengths), *raw):
        pieces += [piece, memoryview(bytes(-piece.nbytes % _ALIGNMENT))]
    return pieces


def unpack(memory: Any) -> Any:
    """The structure that `pack` packed. Its arrays are views of `memory`, and writable only if `memory` is."""
    view = memoryview(memory).cast("B")
    (count,) = _COUNT.unpack_from(view)
    lengths = [_COUNT.unpack_from(view, _COUNT.size * (1 + number))[0] for number in range(count)]
    position = _rounded(_COUNT.size * (1 + count))
    pieces = []
    for length in lengths:
        pieces.append(view[position : position + length])
        position += _rounded(length)
    return pickle.loads(pieces[0], buffers=pieces[1:])


def pack_to_row(value: Any) -> pa.Array:
    """A structure of arrays as one row: a list of one piece of bytes, whose length may differ from row to row."""
    content = b"".join(pack(value))
    offsets = np.array([0, len(content)], np.int64)
    piece = pa.Array.from_buffers(pa.large_binary(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(content)])
    return pa.LargeListArray.from_arrays(pa.array([0, 1], pa.int64()), piece)


def unpack_row(row: pa.Array) -> Any:
    """The structure that `pack_to_row` packed, in writable memory."""
    piece = row.flatten()
    _, offsets, content = piece.buffers()
    first, last = np.frombuffer(offsets, np.int64)[piece.offset : piece.offset + 2]
    return unpack(np.frombuffer(content, np.uint8)[first:last].copy())


def _rounded(length: int) -> int:
    return -(-length // _ALIGNMENT) * _ALIGNMENT
