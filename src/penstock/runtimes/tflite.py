"""TensorFlow Lite files, by LiteRT or by the interpreter that came with TensorFlow."""

from __future__ import annotations

import contextlib
import re
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.core.kinds import Package, RuntimeEntry
from penstock.core.output_selection import keep, numpy_top_k
from penstock.core.records import STRING, Array, Columns, Device, ModelFile, Shape, Signature
from penstock.errors import DeviceError, ModelError, one_line
from penstock.runtimes.environment import lean_imports, pinned
from penstock.runtimes.plain_inputs import (
    Declared,
    HostInputs,
    Inputs,
    OneByOne,
    describe_file,
    divide_inputs,
    rows_at_once,
)


@dataclass(frozen=True)
class Quantisation:
    """How an input or output of a file stores its numbers."""

    dtype: str
    scale: float
    zero_point: int

    @classmethod
    def of_all(cls, details: Mapping[str, Any]) -> dict[str, Quantisation]:
        """The quantised tensors, by name, from the details that an interpreter gives."""
        by_name = {}
        for name, detail in details.items():
            parameters = detail["quantization_parameters"]
            if len(parameters["scales"]) == 1 and np.dtype(detail["dtype"]).kind in "iu":
                scale, zero_point = float(parameters["scales"][0]), int(parameters["zero_points"][0])
                by_name[name] = cls(np.dtype(detail["dtype"]).name, scale, zero_point)
        return by_name

    def to_stored(self, array: Array) -> Array:
        """The values rounded to the nearest step; values outside the range become its largest or smallest value.

        Raises:
            ValueError: A value is NaN or infinite: no integer stands for it.
        """
        real = array.astype(np.float32)
        if not np.isfinite(real).all():
            raise ValueError(f"{real[~np.isfinite(real)][0]} cannot be stored as {self.dtype}")
        limits = np.iinfo(self.dtype)
        # The limits need float64: 2**31 - 1 is no float32, and the float32 above it is no int32.
        steps = np.rint(real / np.float32(self.scale)).astype(np.float64) + self.zero_point
        stored: Array = np.clip(steps, limits.min, limits.max).astype(self.dtype)
        return stored

    def to_real(self, array: Array) -> Array:
        return (array.astype(np.float32) - np.float32(self.zero_point)) * np.float32(self.scale)

    def in_words(self, what: str) -> str:
        return (
            f"{what} stores numbers as {self.dtype} in steps of {self.scale:.6g}: columns of {self.dtype} are taken as "
            "they are stored, any other numbers are quantised"
        )


_TRIED_LENGTH = 16
"""The length of open dimensions in the trial that shows whether a model takes several rows."""


class TfliteRuntime:
    """An interpreter for each thread that calls, since threads cannot share one. The only kind of device is the CPU."""

    name = "tflite"

    def environment(self, device: Device, threads: int) -> dict[str, str]:
        return pinned(device, threads)

    def load(self, model: ModelFile, device: Device, threads: int) -> TfliteReplica:
        if device.kind != "cpu":
            raise DeviceError(
                "TensorFlow Lite models run on the CPU only",
                received=f"{device} {device.name}",
                hint="--devices cpu",
            )
        interpreter = _find_interpreter(model)

        def make() -> Any:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # TensorFlow announces that its interpreter will move
                return interpreter(model_path=model.location, num_threads=threads)

        try:
            _check_operations(make(), model)
            return TfliteReplica(make, model)
        except ValueError as error:
            raise ModelError(
                "the file is damaged or not a TensorFlow Lite model",
                received=f"{model.location}: {one_line(error)}",
            ) from None


def _find_interpreter(model: ModelFile) -> Any:
    try:
        from ai_edge_litert.interpreter import Interpreter

        return Interpreter
    except ImportError:
        pass
    try:
        with lean_imports(model, "tensorflow"):
            import tensorflow as tf

        return tf.lite.Interpreter
    except (ImportError, AttributeError):
        raise DeviceError(
            "nothing that runs TensorFlow Lite models is installed",
            received=model.location,
            hint="pip install 'penstock[tflite]'",
        ) from None


def _check_operations(interpreter: Any, model: ModelFile) -> None:
    """Refuse operations that no interpreter here has. Other problems show when rows are fed."""
    try:
        interpreter.allocate_tensors()
    except RuntimeError as error:
        text = str(error)
        missing = re.findall(r"unresolved custom op: ([\w./-]*\w)", text)
        if "Flex" in text:
            with open(model.location, "rb") as file:
                operations = re.findall(rb"Flex[A-Z]\w+", file.read())
            missing += sorted({name.decode() for name in operations} - {"FlexDelegate"})
        if missing:
            raise ModelError(
                "the model uses operations that TensorFlow Lite does not have itself",
                received=f"{model.location}: {', '.join(missing)}",
                hint="convert it with built-in operations only, or run the SavedModel that it was made from",
            ) from None


class TfliteGraph:
    """One interpreter with one of its signatures, or with the whole file where it has none. For one thread.

    Recurrent layers keep their state in the interpreter. It is reset after every run, so that the answer for a row does
    not depend on the rows before it.
    """

    def __init__(self, interpreter: Any, signature: str | None) -> None:
        self._interpreter = interpreter
        self._runner = interpreter.get_signature_runner(signature) if signature is not None else None
        if self._runner is not None:
            self.inputs: dict[str, Any] = dict(self._runner.get_input_details())
            self.outputs: dict[str, Any] = dict(self._runner.get_output_details())
        else:
            self.inputs = _by_name(interpreter.get_input_details())
            self.outputs = _by_name(interpreter.get_output_details())

    def run(self, feeds: Columns) -> Columns:
        """The outputs, in the dtypes of the file."""
        # These are copies: no array may point into the interpreter while it is reset.
        outputs = {name: np.array(array) for name, array in self._invoke(feeds).items()}
        # This fails where another signature of the file has state and was never run. `_try_out` sees if that matters.
        with contextlib.suppress(RuntimeError):
            self._interpreter.reset_all_variables()
        return outputs

    def _invoke(self, feeds: Columns) -> Columns:
        if self._runner is not None:
            return dict(self._runner(**feeds))
        for name, array in feeds.items():
            self._interpreter.resize_tensor_input(self.inputs[name]["index"], array.shape)
        self._interpreter.allocate_tensors()
        for name, array in feeds.items():
            self._interpreter.set_tensor(self.inputs[name]["index"], array)
        self._interpreter.invoke()
        return {name: self._interpreter.get_tensor(detail["index"]) for name, detail in self.outputs.items()}


def _by_name(details: list[dict[str, Any]]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for index, detail in enumerate(details):
        name = str(detail["name"])
        named[name if name not in named else f"{name}_{index}"] = detail
    return named


class TfliteReplica:
    """A model with one interpreter for each thread."""

    def __init__(self, make: Callable[[], Any], file: ModelFile) -> None:
        interpreter = make()
        name, others = _choose_signature(list(interpreter.get_signature_list()), file)
        self._make_graph: Callable[[], TfliteGraph] = lambda: TfliteGraph(make(), name)
        self._graphs = threading.local()
        self._answers = file.answers
        graph = TfliteGraph(interpreter, name)
        self._quantised = Quantisation.of_all(graph.inputs)
        self._given = Quantisation.of_all(graph.outputs)
        inputs = divide_inputs(file, _declared(graph.inputs, self._quantised))
        outputs = _declared(graph.outputs, self._given)
        self._constants = {constant: self._stored(constant, array) for constant, array in inputs.constants.items()}
        must_loop, self._is_used_again = self._try_out(inputs)
        has_open_batch = rows_at_once(inputs.rows) is None
        self._one_by_one = OneByOne(outputs, has_open_batch=has_open_batch) if must_loop else None
        self.signature = self._describe(inputs, outputs, name, [TfliteGraph(make(), other) for other in others], others)
        self._host = HostInputs(file, self.signature)

    def predict(self, batch: Columns) -> Columns:
        feeds = {name: self._feed(name, array) for name, array in batch.items()}
        outputs = self._one_by_one.run(self._run, feeds) if self._one_by_one is not None else self._run(feeds)
        return keep(self._answers, outputs, numpy_top_k)

    def close(self) -> None:
        self._graphs = threading.local()

    def _run(self, feeds: Columns) -> Columns:
        if not hasattr(self._graphs, "graph"):
            self._graphs.graph = self._make_graph()
        graph: TfliteGraph = self._graphs.graph
        try:
            outputs = graph.run(feeds | self._constants)
        except Exception:
            del self._graphs.graph  # a graph that failed halfway may refuse rows that it took before
            raise
        if not self._is_used_again:
            del self._graphs.graph
        return {
            name: self._given[name].to_real(array) if name in self._given else array for name, array in outputs.items()
        }

    def _feed(self, name: str, array: Array) -> Array:
        """Rows as the file stores them. Integers that have the dtype of a quantised input already are not changed."""
        quantised = self._quantised.get(name)
        if quantised is None:
            return self._host.prepare(name, array)
        scaled = self._host.scale(name, array)
        if scaled is array and array.dtype == quantised.dtype:
            return np.ascontiguousarray(array)
        return quantised.to_stored(scaled)

    def _stored(self, name: str, array: Array) -> Array:
        return self._quantised[name].to_stored(array) if name in self._quantised else array

    def _try_out(self, inputs: Inputs) -> tuple[bool, bool]:
        """Whether rows must be fed one at a time, and whether a graph can be used again.

        Rows are fed one at a time if the file declares one row and does not take two. A graph cannot be used again if
        it has variables that no reset reaches: its answers then depend on earlier rows. Made-up rows show both.
        """
        fixed = rows_at_once(inputs.rows)
        size = fixed or 1
        feeds = {each.name: self._stored(each.name, _made_up(each, 2 * size)) for each in inputs.rows}
        try:
            graph = self._make_graph()
            first, second, again = (graph.run(self._slice(feeds, start, size)) for start in (0, size, 0))
        except Exception:  # if the model refuses even one made-up row, the trial proves nothing
            return fixed == 1, True
        is_used_again = all(_is_same(again[name], array) for name, array in first.items())
        if not is_used_again:
            second = self._make_graph().run(self._slice(feeds, size, size))
        must_loop = size == 1 and not self._takes_two_rows(feeds, first, second)
        return must_loop, is_used_again

    def _slice(self, feeds: Columns, start: int, rows: int) -> Columns:
        return {name: array[start : start + rows] for name, array in feeds.items()} | self._constants

    def _takes_two_rows(self, feeds: Columns, first: Columns, second: Columns) -> bool:
        """Whether a file takes two rows, as many do that declare one: both must get the answers that they get alone."""
        try:
            both = self._make_graph().run(feeds | self._constants)
        except (RuntimeError, ValueError):
            return False
        return all(
            array.shape[:1] == (2,) and _is_close(array[:1], first[name]) and _is_close(array[1:], second[name])
            for name, array in both.items()
        )

    def _describe(
        self, inputs: Inputs, outputs: list[Declared], name: str | None, graphs: list[TfliteGraph], others: list[str]
    ) -> Signature:
        described = describe_file(inputs, outputs, self._one_by_one, "TensorFlow Lite")
        fed = [each.name for each in inputs.rows if each.name in self._quantised]
        notes = [self._quantised[each].in_words(f"the input {each!r}") for each in fed]
        notes += [f"the output {each!r} is given as real numbers, not as {q.dtype}" for each, q in self._given.items()]
        notes += described.notes
        if not self._is_used_again:
            notes.append("the file keeps variables from run to run: every run begins anew, as if it were the first")
        described_others = tuple(_other(graph, other) for graph, other in zip(graphs, others, strict=True))
        return replace(described, name=name, others=described_others, notes=tuple(notes))


def _choose_signature(names: list[str], file: ModelFile) -> tuple[str | None, list[str]]:
    """The signature to run, None where the file has none, and the others."""
    if file.signature is not None and file.signature not in names:
        raise ModelError(
            "the model has no such signature" if names else "the model has no signatures",
            received=f"--signature {file.signature}",
            allowed=", ".join(names) or None,
        )
    if file.signature is None and len(names) > 1 and "serving_default" not in names:
        raise ModelError(
            "the model has several signatures",
            received=file.location,
            allowed=", ".join(names),
            hint="choose one with --signature NAME",
        )
    chosen = file.signature or ("serving_default" if "serving_default" in names else next(iter(names), None))
    return chosen, [name for name in names if name != chosen]


def _other(graph: TfliteGraph, name: str) -> Signature:
    sides = (graph.inputs, graph.outputs)
    inputs, outputs = (tuple(each.as_rows() for each in _declared(side, Quantisation.of_all(side))) for side in sides)
    return Signature(inputs, outputs, name=name)


def _declared(details: Mapping[str, Any], quantised: Mapping[str, Quantisation]) -> list[Declared]:
    return [
        Declared(name, "float32" if name in quantised else _dtype(name, detail), _shape(detail))
        for name, detail in details.items()
    ]


def _shape(detail: Mapping[str, Any]) -> Shape:
    return tuple(None if length < 0 else int(length) for length in detail["shape_signature"])


def _dtype(name: str, detail: Mapping[str, Any]) -> str:
    kind: np.dtype[Any] = np.dtype(detail["dtype"])
    if kind.kind in "SUO":
        return STRING
    if kind.kind not in "fiub":
        raise ModelError(
            "penstock cannot use a tensor of this type",
            received=f"{name}: {kind.name}",
            allowed="numbers, booleans or strings",
        )
    return str(kind.name)


def _made_up(declared: Declared, rows: int) -> Array:
    """Rows that differ from each other, of values that any model should take."""
    shape = (rows, *(_TRIED_LENGTH if length is None else length for length in (declared.shape or ())[1:]))
    draw = np.random.default_rng(0)
    if declared.dtype == STRING:
        return np.array([b"a", b"b"], dtype=object)[draw.integers(0, 2, shape)]
    values = draw.random(shape) if "float" in declared.dtype else draw.integers(0, 2, shape)
    return values.astype(declared.dtype)


def _is_same(ours: Array, expected: Array) -> bool:
    if ours.shape != expected.shape:
        return False
    return bool(np.array_equal(ours, expected, equal_nan=ours.dtype.kind == "f"))


def _is_close(ours: Array, expected: Array) -> bool:
    if ours.shape != expected.shape:
        return False
    if ours.dtype.kind != "f":
        # A quantised value may be rounded to either of two steps.
        step = 1 if ours.dtype.itemsize == 1 and ours.dtype.kind in "iu" else 0
        if not step:
            return bool(np.all(ours == expected))
        return bool(np.all(np.abs(ours.astype(int) - expected.astype(int)) <= step))
    return bool(np.allclose(ours, expected, rtol=1e-3, atol=1e-5, equal_nan=True))


RUNTIME = RuntimeEntry(
    TfliteRuntime,
    Package(("ai_edge_litert", "tensorflow"), ("ai-edge-litert", "tensorflow"), "pip install 'penstock[tflite]'"),
    device_kinds=("cpu",),
)
