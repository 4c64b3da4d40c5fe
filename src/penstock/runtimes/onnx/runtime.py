"""ONNX files, by onnxruntime."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from penstock.core.kinds import Package, RuntimeEntry
from penstock.core.output_selection import Answers, keep, numpy_top_k
from penstock.core.records import STRING, Array, Columns, Device, ModelFile, Shape, Signature, TensorSpec
from penstock.errors import ModelError
from penstock.runtimes.environment import does_not_start, pinned
from penstock.runtimes.memory_limit import within_memory
from penstock.runtimes.onnx.session import CUDA, TENSORRT, open_session, reason
from penstock.runtimes.plain_inputs import (
    BFLOAT16,
    Declared,
    HostInputs,
    Inputs,
    OneByOne,
    describe_file,
    divide_inputs,
    rows_at_once,
)
from penstock.runtimes.tensorflow.to_onnx import ConvertedStep, read_step

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bfloat16)": BFLOAT16,
    "tensor(string)": STRING,
    "tensor(bool)": "bool",
} | {f"tensor({name})": name for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")}
_MAPS = "seq(map("
"""How the type of an output begins that is one dict for each row."""
_BFLOAT16_IN_ONNX = 16
"""The number of bfloat16 among ONNX's element types."""


class OnnxRuntime:
    """One session with a thread pool of its own; threads call it at the same time.

    Args:
        provider: `tensorrt` where TensorRT runs what it can; else the processor, or CUDA on a GPU.
    """

    def __init__(self, provider: str | None = None) -> None:
        self._has_tensorrt = provider == "tensorrt"
        self.name = "onnx-tensorrt" if self._has_tensorrt else "onnx"

    def environment(self, device: Device, threads: int) -> dict[str, str]:
        return pinned(device, threads) | {
            # Since 1.29, onnxruntime reports models and their use to its makers, and writes into the home folder.
            "ORT_DISABLE_TELEMETRY": "1",
        }

    def load(self, model: ModelFile, device: Device, threads: int) -> OnnxReplica | OnnxConverted:
        try:
            import onnxruntime  # noqa: F401
        except ImportError as error:
            hint = f"{RUNTIME.package.install}, or onnxruntime-gpu for a GPU"
            raise does_not_start("onnxruntime", model, error, hint) from None
        if model.kind == "converted":
            step = read_step(model)
            return OnnxConverted(open_session(step.path, model, device, threads, has_tensorrt=self._has_tensorrt), step)
        return OnnxReplica(open_session(model.location, model, device, threads, has_tensorrt=self._has_tensorrt), model)


class OnnxConverted:
    """A converted step on one device of this process: batches are fed as they come."""

    def __init__(self, session: Any, step: ConvertedStep) -> None:
        self.signature = step.signature
        self._session: Any = session
        self._step = step

    def predict(self, batch: Columns) -> Columns:
        return within_memory(batch, self._predict, reason=reason)

    def close(self) -> None:
        self._session = None

    def _predict(self, batch: Columns) -> Columns:
        feeds = {key: _as_fed(batch[name]) for name, key in self._step.inputs.items()}
        outputs = self._session.run(list(self._step.outputs), feeds)
        return dict(zip(self._step.outputs.values(), map(_from_text, outputs), strict=True))


class OnnxReplica:
    """A session on one device of this process."""

    def __init__(self, session: Any, file: ModelFile) -> None:
        self._session: Any = session
        self._answers: Answers | None = file.answers
        inputs = divide_inputs(file, _declared_inputs(session.get_inputs()))
        self._constants = {name: _as_fed(array) for name, array in inputs.constants.items()}
        nodes = _wanted(session.get_outputs(), file.answers)
        self._outputs: list[str] = [node.name for node in nodes]
        self._maps = {node.name: _map_dtype(node) for node in nodes if node.type.startswith(_MAPS)}
        self._keys: dict[str, list[Any]] = {}
        self._bfloat16 = {each.name for each in inputs.rows if each.dtype == BFLOAT16}
        self._needs_values = bool(self._bfloat16) or any("bfloat16" in node.type for node in nodes)
        self._one_by_one: OneByOne | None = None
        self.signature = self._describe(inputs, [_declared_output(node) for node in nodes])
        self._host = HostInputs(file, self.signature)

    def predict(self, batch: Columns) -> Columns:
        return within_memory(batch, self._predict, reason=reason)

    def close(self) -> None:
        self._session = None

    def _predict(self, batch: Columns) -> Columns:
        feeds = {name: _as_fed(self._host.prepare(name, array)) for name, array in batch.items()}
        outputs = self._run(feeds) if self._one_by_one is None else self._one_by_one.run(self._run, feeds)
        return keep(self._answers, outputs, numpy_top_k)

    def _run(self, feeds: Columns) -> Columns:
        outputs = (
            self._run_values(feeds) if self._needs_values else self._session.run(self._outputs, feeds | self._constants)
        )
        return dict(zip(self._outputs, map(self._as_columns, self._outputs, outputs), strict=True))

    def _run_values(self, feeds: Columns) -> list[Array]:
        """The values of the outputs. Numpy has no bfloat16: such arrays are passed as their bits."""
        from onnxruntime import OrtValue

        values = {
            name: OrtValue.ortvalue_from_numpy_with_onnx_type(_to_bfloat16_bits(array), _BFLOAT16_IN_ONNX)
            if name in self._bfloat16
            else OrtValue.ortvalue_from_numpy(array)
            for name, array in (feeds | self._constants).items()
        }
        return [_from_value(value) for value in self._session.run_with_ort_values(self._outputs, values)]

    def _as_columns(self, name: str, output: Any) -> Array:
        if name in self._maps:
            return self._from_maps(name, output)
        return _from_text(np.asarray(output))

    def _from_maps(self, name: str, maps: list[dict[Any, Any]]) -> Array:
        """Vectors from dicts, one for each row, as scikit-learn's converters give. The first dict sets the order."""
        keys = self._keys.setdefault(name, list(maps[0]))
        return np.array([[row[key] for key in keys] for row in maps], dtype=self._maps[name])

    def _describe(self, inputs: Inputs, declared: list[Declared]) -> Signature:
        self._one_by_one = OneByOne(declared) if rows_at_once(inputs.rows) == 1 else None
        producer = self._session.get_modelmeta().producer_name
        described = describe_file(inputs, declared, self._one_by_one, f"ONNX by {producer}" if producer else "ONNX")
        return self._with_keys(inputs, described) if self._maps else described

    def _with_keys(self, inputs: Inputs, described: Signature) -> Signature:
        """The signature with the keys of outputs that are dicts; the file lacks them, and a row of zeros shows them."""
        rows = rows_at_once(inputs.rows) or 1
        try:
            answers = self._run({each.name: _zeros(each, rows) for each in inputs.rows})
        except Exception:  # the model may reject a row of zeros: then the first batch shows the keys
            return described
        notes = [
            f"{name} holds one value for each class, in this order: {', '.join(map(str, keys[:20]))}"
            for name, keys in self._keys.items()
        ]
        outputs = [
            TensorSpec(spec.name, answers[spec.name].dtype.name, answers[spec.name].shape[1:])
            if spec.name in self._keys
            else spec
            for spec in described.outputs
        ]
        return replace(described, outputs=tuple(outputs), notes=(*described.notes, *notes))


def _declared_inputs(nodes: list[Any]) -> list[Declared]:
    """The inputs as declared.

    onnxruntime describes a single value and a tensor of open rank alike. Where no other input could be rows, such an
    input counts as a tensor of open rank.
    """
    declared = [Declared(node.name, _dtype(node, "input"), _shape(node)) for node in nodes]
    if any(each.shape for each in declared):
        return declared
    return [Declared(each.name, each.dtype, None) for each in declared]


def _declared_output(node: Any) -> Declared:
    if node.type.startswith(_MAPS):
        return Declared(node.name, _map_dtype(node), (None, None))
    return Declared(node.name, _dtype(node, "output"), _shape(node) or None)


def _wanted(nodes: list[Any], answers: Answers | None) -> list[Any]:
    """The outputs that are kept. Others are not copied, and may be of any type."""
    names = {node.name for node in nodes}
    if answers is None or not answers.outputs or not names.issuperset(answers.outputs):
        return nodes
    return [node for node in nodes if node.name in answers.outputs]


def _map_dtype(node: Any) -> str:
    """The dtype of the values in `seq(map(KEY,tensor(VALUE)))`."""
    return _DTYPES.get(node.type.partition(",")[2].rstrip(")") + ")", "float32")


def _dtype(node: Any, what: str) -> str:
    dtype = _DTYPES.get(node.type)
    if dtype is None:
        raise ModelError(
            f"penstock cannot use an {what} of this type",
            received=f"{node.name}: {node.type}",
            allowed="tensors of numbers, booleans or strings",
        )
    return dtype


def _shape(node: Any) -> Shape:
    """A shape; where a file has a name in place of a length, the dimension is open."""
    return tuple(length if isinstance(length, int) and length >= 0 else None for length in node.shape)


def _zeros(declared: Declared, rows: int) -> Array:
    shape = (rows, *(length or 1 for length in (declared.shape or ())[1:]))
    if declared.dtype == STRING:
        return np.full(shape, "", dtype=object)
    return np.zeros(shape, np.float32 if declared.dtype == BFLOAT16 else declared.dtype)


def _as_fed(array: Array) -> Array:
    """Strings as onnxruntime takes them: text, not bytes. A row that is not UTF-8 fails."""
    if array.dtype != object:
        return array
    decoded = np.empty(array.size, dtype=object)
    decoded[:] = [item.decode() if isinstance(item, bytes) else item for item in array.ravel().tolist()]
    return decoded.reshape(array.shape)


def _from_text(array: Array) -> Array:
    """Text as bytes, as the other runtimes give it."""
    if array.dtype.kind not in "OU":
        return array
    encoded = np.empty(array.size, dtype=object)
    encoded[:] = [item.encode() if isinstance(item, str) else item for item in array.ravel().tolist()]
    return encoded.reshape(array.shape)


def _to_bfloat16_bits(array: Array) -> Array:
    """The upper halves of float32, rounded to the nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1)).astype(np.uint32)) >> 16
    return np.where(np.isnan(array), 0x7FC0, rounded).astype(np.uint16)


def _from_value(value: Any) -> Array:
    if value.data_type() != "tensor(bfloat16)":
        return np.asarray(value.numpy())
    shape = value.shape()
    size = int(np.prod(shape))
    bits = np.frombuffer(ctypes.string_at(value.data_ptr(), size * 2), dtype=np.uint16)
    return (bits.astype(np.uint32) << 16).view(np.float32).reshape(shape)


_GPU_PROBE = "from penstock.runtimes.onnx.session import load_provider; print(int(load_provider('{}')))"
RUNTIME = RuntimeEntry(
    OnnxRuntime,
    Package(("onnxruntime",) * 2, ("onnxruntime", "onnxruntime-gpu"), "pip install 'penstock[onnx]'"),
    rank={"cpu": 20, "gpu": 30},
    usual_gain={"images": 1.6, "sequences": 1.3, "tables": 1.5},
    gpu_probe=_GPU_PROBE.format(CUDA),
    reads_steps=True,
)
RUNTIME_TENSORRT = RuntimeEntry(
    partial(OnnxRuntime, provider="tensorrt"),
    Package(("onnxruntime",), ("onnxruntime-gpu",), "pip install onnxruntime-gpu tensorrt"),
    device_kinds=("gpu",),
    variant_of="onnx",
    rank={"gpu": 20},
    gpu_probe=_GPU_PROBE.format(TENSORRT),
    compiles_each_size=True,
    reads_steps=True,
)
