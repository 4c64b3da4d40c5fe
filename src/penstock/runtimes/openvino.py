"""OpenVINO: converted steps and ONNX files on the processor."""

from __future__ import annotations

import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.core.kinds import Package, RuntimeEntry
from penstock.core.output_selection import Answers, keep, numpy_top_k
from penstock.core.records import Columns, Device, ModelFile, Shape
from penstock.errors import DeviceError, ModelError, RefusedByRuntime, one_line
from penstock.runtimes.environment import does_not_start, pinned
from penstock.runtimes.memory_limit import out_of_memory
from penstock.runtimes.onnx.graph import element_types, refused_by_openvino
from penstock.runtimes.plain_inputs import Declared, HostInputs, OneByOne, describe_file, divide_inputs, rows_at_once
from penstock.runtimes.tensorflow.to_onnx import ConvertedStep, read_step

MOST_SHAPES = 8
"""How many compiled shapes of a network are kept at the same time."""
_INT32 = np.iinfo(np.int32)
_PLACE = re.compile(r"(?:Exception from|failed at) src/\S+:\d+:?\s*|Check '[^']*'\s*")
"""The source location and the failed condition in OpenVINO's errors."""
_HIDDEN = ("openvino.tools.ovc", "openvino_telemetry")

Shapes = tuple[tuple[int, ...], ...]


def import_openvino() -> Any:
    """The module `openvino`, imported without its converters.

    Importing the converters contacts Intel's servers, leaves files in the home folder, and takes half of the time.
    """
    hidden = [name for name in _HIDDEN if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        import openvino
    finally:
        for name in hidden:
            sys.modules.pop(name, None)
    return openvino


def reason(error: BaseException) -> str:
    """OpenVINO's reason in one line, without the places in its sources."""
    lines = [_PLACE.sub("", line).strip() for line in str(error).splitlines()]
    return one_line(type(error)(" ".join(line for line in lines if line)))


@dataclass(frozen=True)
class _Compiled:
    """A network for one shape of batches, with a request for each thread that calls it."""

    network: Any
    requests: threading.local = field(default_factory=threading.local)

    def request(self) -> Any:
        if not hasattr(self.requests, "own"):
            self.requests.own = self.network.create_infer_request()
        return self.requests.own


class Network:
    """A network and its compiled forms.

    Most batches of a job have one shape, except for buckets and for batches that are split to find a bad row. OpenVINO
    is faster for a known shape than for an open one, so a network is compiled for a shape when its first batch comes.
    The least recently used shape is dropped for a new one; a dropped shape that comes back is not compiled again, but
    runs with open shapes.

    Args:
        core: OpenVINO's core.
        model: The network that was read.
        properties: The properties that it is compiled with.
    """

    def __init__(self, core: Any, model: Any, properties: Mapping[str, Any]) -> None:
        self.model = model
        self._core = core
        self._properties = dict(properties)
        self._names: list[str] = [port.get_any_name() for port in model.inputs]
        self._declared = [port.get_partial_shape() for port in model.inputs]
        self._lock = threading.Lock()
        self._compiled: OrderedDict[Shapes | None, _Compiled] = OrderedDict()
        self._dropped: set[Shapes] = set()

    def run(self, feeds: Columns) -> Columns:
        """The outputs, each under all of its names. The arrays belong to the caller: the request does not reuse them.

        Raises:
            ValueError: The network does not take the shape, or a whole number has more than 32 bits. OpenVINO would
                reshape the network in the first case, and cut off bits in the second.
        """
        arrays = [np.asarray(feeds[name], order="C") for name in self._names]
        for name, array in zip(self._names, arrays, strict=True):
            _refuse_long_numbers(name, array)
        request = self._for(tuple(array.shape for array in arrays)).request()
        # The arrays are read where they are; the outputs are copied.
        results = request.infer(arrays, share_inputs=True, share_outputs=False)
        return {name: array for port, array in results.items() for name in port.get_names()}

    def let_go(self) -> None:
        """Give back the memory of everything that is compiled; what comes next is compiled again."""
        with self._lock:
            self._compiled.clear()

    def _for(self, shapes: Shapes) -> _Compiled:
        with self._lock:
            key = None if shapes in self._dropped else shapes
            if key not in self._compiled:
                if len(self._compiled) >= MOST_SHAPES:
                    self._drop()
                self._compiled[key] = self._compile(key)
            self._compiled.move_to_end(key)
            return self._compiled[key]

    def _drop(self) -> None:
        shapes = next(key for key in self._compiled if key is not None)
        del self._compiled[shapes]
        self._dropped.add(shapes)

    def _compile(self, shapes: Shapes | None) -> _Compiled:
        model = self.model
        if shapes is not None and model.is_dynamic():
            self._check(shapes)
            model = model.clone()
            model.reshape({name: list(shape) for name, shape in zip(self._names, shapes, strict=True)})
        return _Compiled(self._core.compile_model(model, "CPU", self._properties))

    def _check(self, shapes: Shapes) -> None:
        for name, shape, declared in zip(self._names, shapes, self._declared, strict=True):
            if not declared.compatible(type(declared)(list(shape))):
                raise ValueError(f"{name} has the shape {shape}, and the model takes {declared}")


def _refuse_long_numbers(name: str, array: Any) -> None:
    if array.dtype in (np.int64, np.uint64) and array.size and (array.max() > _INT32.max or array.min() < _INT32.min):
        raise ValueError(f"{name} holds a whole number of more than 32 bits, which OpenVINO cannot compute with")


_HINTS = {"model": ("f32", "FP32"), "bfloat16": ("bf16", "BF16"), "float16": ("f16", "FP16")}
"""OpenVINO's name of each precision, and the capability that a device must have."""
_LOSSY = ("f64",)
"""Element types that OpenVINO computes in fewer bits, whatever it is set to."""
_UNUSABLE = ("string", "bf16", "dynamic", "u1", "u4", "i4", "nf4")
"""Element types that cannot be fed; text in a graph ends the process (2026.4)."""
_CARRIERS = ("Parameter", "Constant", "Convert", "Result")
"""Operations that may have any type: they do not compute with their values."""


class OpenVinoRuntime:
    """A network that is compiled for the shape of the batches; threads call it at the same time."""

    name = "openvino"

    def environment(self, device: Device, threads: int) -> dict[str, str]:
        return pinned(device, threads)

    def load(self, model: ModelFile, device: Device, threads: int) -> OpenVinoConverted | OpenVinoReplica:
        try:
            openvino = import_openvino()
        except ImportError as error:
            raise does_not_start("OpenVINO", model, error, RUNTIME.package.install) from None
        if device.kind != "cpu":
            raise DeviceError(
                "penstock runs OpenVINO on processors only", received=f"{device} {device.name}", hint="--devices cpu"
            )
        core = openvino.Core()
        properties = _properties(core, model, threads)
        if model.kind == "converted":
            step = read_step(model)
            if step.refused_by_openvino is not None:
                raise RefusedByRuntime(
                    "OpenVINO does not run all of the model as it is", received=step.refused_by_openvino
                )
            return OpenVinoConverted(Network(core, _read(core, step.path), properties), step)
        network = Network(core, _read(core, model.location), properties)
        refused = _refused(model.location)
        if refused is not None:
            raise RefusedByRuntime("OpenVINO does not run all of the model as it is", received=refused)
        return OpenVinoReplica(network, model)


def _properties(core: Any, model: ModelFile, threads: int) -> dict[str, Any]:
    """The properties that a network is compiled with. All that decide the bits are set explicitly."""
    has = list(core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"))
    known = [name for name, (_, capability) in _HINTS.items() if capability in has or name == "model"]
    if model.precision not in known:
        raise DeviceError(
            f"OpenVINO does not compute in {model.precision} on this processor",
            received=f"--precision {model.precision}, {core.get_property('CPU', 'FULL_DEVICE_NAME')}",
            allowed=", ".join(known),
        )
    return {
        "INFERENCE_PRECISION_HINT": _HINTS[model.precision][0],
        "EXECUTION_MODE_HINT": "ACCURACY",
        # By default, OpenVINO computes matrix products in 8 bits if the weights have 8 bits.
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        # With pinning, two replicas would bind their threads to the same cores.
        "ENABLE_CPU_PINNING": False,
    }


def _refused(path: str) -> str | None:
    """Why OpenVINO would answer some rows of an ONNX file otherwise, as far as the package onnx is here to tell."""
    try:
        import onnx
    except ImportError:
        return None
    try:
        proto = onnx.load(path, load_external_data=False)
        return refused_by_openvino(proto, element_types(proto), are_checked=True)
    except Exception:  # what OpenVINO has read and ONNX's own checks have not: no types are known
        return None


def _read(core: Any, path: str) -> Any:
    """The network in an ONNX file."""
    try:
        network = core.read_model(path)
    except Exception as error:
        raise RefusedByRuntime("OpenVINO does not read the model", received=f"{path}: {reason(error)}") from None
    for operation in network.get_ordered_ops():
        kind = operation.get_type_name()
        types = {output.get_element_type().to_string() for output in operation.outputs()}
        if "string" in types or (types.intersection(_LOSSY) and kind not in _CARRIERS):
            raise RefusedByRuntime(
                "OpenVINO does not compute in a type that the model has",
                received=f"{path}: {', '.join(sorted(types))} in {kind} {operation.get_friendly_name()}",
            )
        if kind == "TopK":
            # Of equal values the first comes first, as in all runtimes.
            operation.set_attribute("stable", True)
    network.validate_nodes_and_infer_types()
    return network


class OpenVinoConverted:
    """A converted step: batches are fed as they come."""

    def __init__(self, network: Network, step: ConvertedStep) -> None:
        self.signature = step.signature
        self._network: Network | None = network
        self._step = step

    def predict(self, batch: Columns) -> Columns:
        assert self._network is not None
        outputs = _run(self._network, {key: batch[name] for name, key in self._step.inputs.items()}, batch)
        return {name: outputs[key] for key, name in self._step.outputs.items()}

    def close(self) -> None:
        self._network = None


class OpenVinoReplica:
    """An ONNX file of the user's, which Penstock did not convert."""

    def __init__(self, network: Network, file: ModelFile) -> None:
        self._network: Network | None = network
        self._answers: Answers | None = file.answers
        inputs = divide_inputs(file, [_declared(port, "input") for port in network.model.inputs])
        self._constants = inputs.constants
        outputs = [_declared(port, "output") for port in network.model.outputs]
        self._one_by_one = OneByOne(outputs) if rows_at_once(inputs.rows) == 1 else None
        self.signature = describe_file(inputs, outputs, self._one_by_one, "ONNX")
        self._host = HostInputs(file, self.signature)

    def predict(self, batch: Columns) -> Columns:
        feeds = {name: self._host.prepare(name, array) for name, array in batch.items()}
        loop = self._one_by_one

        def run(rows: Columns) -> Columns:
            assert self._network is not None
            outputs = _run(self._network, rows | self._constants, batch)
            return {spec.name: outputs[spec.name] for spec in self.signature.outputs}

        return keep(self._answers, run(feeds) if loop is None else loop.run(run, feeds), numpy_top_k)

    def close(self) -> None:
        self._network = None


def _run(network: Network, feeds: Columns, batch: Columns) -> Columns:
    """Run a batch. If memory runs out, all compiled forms of the network are dropped, and the batch runs once more."""
    try:
        return network.run(feeds)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise RuntimeError(reason(error)) from None
    network.let_go()
    try:
        return network.run(feeds)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise RuntimeError(reason(error)) from None
        raise out_of_memory(batch, reason(error)) from None


def _is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out. The text decides, because OpenVINO has one class for all errors.

    "Resource temporarily unavailable" means that a thread cannot be started: there is no memory for its stack.
    """
    text = str(error).lower()
    return isinstance(error, MemoryError) or "alloc" in text or "resource temporarily unavailable" in text


def _declared(port: Any, side: str) -> Declared:
    """An input or output of a network; outputs have the names that the file gives them."""
    kind = port.get_element_type()
    name = port.get_any_name() if side == "input" else port.get_node().get_friendly_name().partition("/sink_port_")[0]
    if kind.to_string() in _UNUSABLE or kind.to_string() in _LOSSY:
        raise RefusedByRuntime(
            f"OpenVINO cannot use an {side} of this type",
            received=f"{name}: {kind.to_string()}",
            allowed="tensors of numbers of up to 32 bits, whole ones of 64, or booleans",
        )
    if name not in port.get_names():
        raise ModelError("the model has an output without a name", received=name)
    return Declared(name, np.dtype(kind.to_dtype()).name, _shape(port.get_partial_shape()))


def _shape(partial: Any) -> Shape | None:
    if partial.rank.is_dynamic:
        return None
    return tuple(length.get_length() if length.is_static else None for length in partial)


RUNTIME = RuntimeEntry(
    OpenVinoRuntime,
    Package(("openvino",), ("openvino",), "pip install 'penstock[openvino]'"),
    device_kinds=("cpu",),
    variant_of="onnx",
    rank={"cpu": 10},
    usual_gain={"images": 2.0, "sequences": 1.3, "tables": 1.3},
    compiles_each_size=True,
    reads_steps=True,
    narrows=("int64", "uint64", "uint32"),
)
