"""OpenVINO: converted steps and ONNX files on the processor."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.core.kinds import Package, RuntimeEntry
from penstock.core.output_selection import Answers, NumpyRanking, keep
from penstock.core.records import Columns, Device, ModelFile, Shape, Signature
from penstock.errors import DeviceError, ModelError, RefusedByRuntime, one_line
from penstock.runtimes.memory_limit import out_of_memory
from penstock.runtimes.openvino.network import Network, import_openvino, told
from penstock.runtimes.plain_inputs import Declared, HostInputs, OneByOne, divide_inputs, rows_at_once
from penstock.runtimes.tensorflow.to_onnx import ConvertedStep, read_step

_HINTS = {"model": ("f32", "FP32"), "bfloat16": ("bf16", "BF16"), "float16": ("f16", "FP16")}
"""A precision to what OpenVINO calls it, and to the capability that a device must have."""
_LOSSY = ("f64",)
"""Element types that OpenVINO computes in fewer bits, whatever it is told."""
_UNUSABLE = ("string", "bf16", "dynamic", "u1", "u4", "i4", "nf4")
"""Element types that cannot be fed; text in a graph ends the process (2026.4)."""
_CARRIERS = ("Parameter", "Constant", "Convert", "Result")
"""Operations that may have any type: what they hold is not computed with."""


class OpenVinoRuntime:
    """A network that is compiled for the shape of the batches; threads call it at the same time."""

    name = "openvino"

    def environment(self, device: Device, threads: int) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": "-1", "OMP_NUM_THREADS": str(threads)}

    def load(self, model: ModelFile, device: Device, threads: int) -> OpenVinoConverted | OpenVinoReplica:
        try:
            openvino = import_openvino()
        except ImportError as error:
            raise DeviceError(
                "OpenVINO is not installed, or does not start",
                received=f"{model.location}: {one_line(error)}",
                hint="pip install 'penstock[openvino]'",
            ) from None
        if device.kind != "cpu":
            raise DeviceError(
                "penstock runs OpenVINO on processors only", received=f"{device} {device.name}", hint="--devices cpu"
            )
        core = openvino.Core()
        properties = _properties(core, model, threads)
        if model.kind == "converted":
            step = read_step(model)
            if step.wide_arithmetic is not None:
                raise RefusedByRuntime(
                    "OpenVINO cuts whole numbers to 32 bits", received=f"{step.wide_arithmetic} of 64 bits in the model"
                )
            return OpenVinoConverted(Network(core, _read(core, step.path), properties), step)
        return OpenVinoReplica(Network(core, _read(core, model.location), properties), model)


def _properties(core: Any, model: ModelFile, threads: int) -> dict[str, Any]:
    """What a network is compiled with. Nothing that decides the bits is left to OpenVINO."""
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
        # Left alone, it computes matrix products with weights of 8 bits in 8 bits.
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        # Two replicas would bind their threads to the same cores.
        "ENABLE_CPU_PINNING": False,
    }


def _read(core: Any, path: str) -> Any:
    """The network in an ONNX file.

    Raises:
        RefusedByRuntime: OpenVINO does not read it, or would compute it in fewer bits.
    """
    try:
        network = core.read_model(path)
    except Exception as error:
        raise RefusedByRuntime("OpenVINO does not read the model", received=f"{path}: {told(error)}") from None
    for operation in network.get_ordered_ops():
        kind = operation.get_type_name()
        types = {output.get_element_type().to_string() for output in operation.outputs()}
        if "string" in types or (types.intersection(_LOSSY) and kind not in _CARRIERS):
            raise RefusedByRuntime(
                "OpenVINO does not compute in a type that the model has",
                received=f"{path}: {', '.join(sorted(types))} in {kind} {operation.get_friendly_name()}",
            )
        if kind == "TopK":
            # Of equal values the first one counts, as everywhere else.
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
        found = _run(self._network, {key: batch[name] for name, key in self._step.inputs.items()}, batch)
        return {name: found[key] for key, name in self._step.outputs.items()}

    def close(self) -> None:
        self._network = None


class OpenVinoReplica:
    """An ONNX file, as somebody else wrote it."""

    def __init__(self, network: Network, file: ModelFile) -> None:
        self._network: Network | None = network
        self._answers: Answers | None = file.answers
        inputs = divide_inputs(file, [_declared(port, "input") for port in network.model.inputs])
        self._constants = inputs.constants
        outputs = [_declared(port, "output") for port in network.model.outputs]
        fixed = rows_at_once(inputs.rows)
        self._one_by_one = OneByOne(outputs) if fixed == 1 else None
        loop = self._one_by_one
        specs = tuple(each.as_rows() if loop is None else loop.spec(each) for each in outputs)
        self.signature = Signature(
            inputs.specs,
            specs,
            structure="single" if len(specs) == 1 else "dict",
            fixed_batch=fixed if fixed != 1 else None,
            writer="ONNX",
            notes=("the file takes one row at a time: batches are fed to it row by row",) if loop is not None else (),
        )
        self._host = HostInputs(file, self.signature)

    def predict(self, batch: Columns) -> Columns:
        feeds = {name: self._host.prepare(name, array) for name, array in batch.items()}
        loop = self._one_by_one

        def run(rows: Columns) -> Columns:
            assert self._network is not None
            found = _run(self._network, rows | self._constants, batch)
            return {spec.name: found[spec.name] for spec in self.signature.outputs}

        return keep(self._answers, run(feeds) if loop is None else loop.run(run, feeds), NumpyRanking())

    def close(self) -> None:
        self._network = None


def _run(network: Network, feeds: Columns, batch: Columns) -> Columns:
    """Run a batch. What is compiled for other shapes holds memory, too: before a batch is too large, it is let go."""
    try:
        return network.run(feeds)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise RuntimeError(told(error)) from None
    network.let_go()
    try:
        return network.run(feeds)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise RuntimeError(told(error)) from None
        raise out_of_memory(batch, told(error)) from None


def _is_out_of_memory(error: Exception) -> bool:
    """OpenVINO has one class for all its errors. A thread that cannot be started has no room for its stack."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or "alloc" in text or "resource temporarily unavailable" in text


def _declared(port: Any, side: str) -> Declared:
    """An input or output of a network; what it gives has the name that the file gives it."""
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
    compiles_each_size=True,
    reads_steps=True,
    narrows=("int64", "uint64", "uint32"),
)
