"""The step of a TensorFlow model in float64: its graph, in which every float32 is replaced by float64.

This is slow, and used for a few rows only: it shows how far the answers in float32 are from the true ones.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from penstock.core.records import Columns
from penstock.errors import ModelError
from penstock.runtimes.frameworks import tf
from penstock.runtimes.tensorflow.outputs import to_host

_MOST_BYTES = 800_000_000
"""The most bytes of weights: in float64 they are twice as large, and a graph holds 2 GB."""
_BATCH_NORMS = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
"""Operations without a float64 version: simpler operations, which have one, take their place."""

NamedStep = Callable[[dict[str, Any]], Mapping[str, Any]]


def run_in_float64(step: NamedStep, batch: Columns) -> Columns:
    """The answers of a step, computed on the processor in float64.

    Raises:
        ModelError: An operation has no float64, or the model is too large.
        Exception: Any error of TensorFlow's about a graph whose types do not fit together.
    """
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    names: list[str] = []

    def listed(*tensors: Any) -> list[Any]:
        outputs = step(dict(zip(batch, tensors, strict=True)))
        names[:] = outputs
        return [outputs[name] for name in names]

    with tf.device("/CPU:0"):
        given = [tf.convert_to_tensor(array) for array in batch.values()]
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in given]
        traced = tf.function(listed, autograph=False).get_concrete_function(*specs)
        _refuse_large(traced)
        frozen = convert_variables_to_constants_v2(traced, lower_control_flow=True, aggressive_inlining=True)
        graph = widened(frozen.graph.as_graph_def())
        wide = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(graph, name=""), [])
        called = wide.prune([tensor.name for tensor in frozen.inputs], [tensor.name for tensor in frozen.outputs])
        outputs = called(*(tf.cast(each, tf.float64) if each.dtype == tf.float32 else each for each in given))
    return {name: to_host(name, tensor) for name, tensor in zip(names, outputs, strict=True)}


def _refuse_large(function: Any) -> None:
    sizes = [(tensor.shape.num_elements() or 0) * tensor.dtype.size for tensor in function.variables]
    if sum(sizes) > _MOST_BYTES:
        raise ModelError("the model is too large for float64", received=f"{sum(sizes) / 1e9:.1f} GB of weights")


def widened(graph: Any) -> Any:
    """A graph without variables and functions, with float64 wherever it has float32.

    Raises:
        ModelError: It computes in 16 bits, or calls functions: answers in float64 would then prove nothing.
    """
    wide = tf.compat.v1.GraphDef(versions=graph.versions)
    for node in graph.node:
        parts = _batch_norm(node) if node.op in _BATCH_NORMS else [node]
        for part in parts:
            part.device = ""
            for name, attribute in part.attr.items():
                _widen(part, name, attribute)
            wide.node.append(part)
    return wide


def _widen(node: Any, name: str, attribute: Any) -> None:
    if attribute.HasField("func") or attribute.list.func:
        raise ModelError("the graph calls functions", received=f"{node.op} {node.name}")
    if name == "_output_shapes":
        return
    kinds = [attribute.type, *attribute.list.type, attribute.tensor.dtype]
    if tf.float16.as_datatype_enum in kinds or tf.bfloat16.as_datatype_enum in kinds:
        raise ModelError("the model computes in 16 bits", received=f"{node.op} {node.name}")
    narrow, wide = tf.float32.as_datatype_enum, tf.float64.as_datatype_enum
    if attribute.type == narrow:
        attribute.type = wide
    for place, kind in enumerate(attribute.list.type):
        if kind == narrow:
            attribute.list.type[place] = wide
    if attribute.tensor.dtype == narrow:
        values = tf.make_ndarray(attribute.tensor).astype(np.float64)
        attribute.tensor.CopyFrom(tf.make_tensor_proto(values))


def _batch_norm(node: Any) -> Iterator[Any]:
    """A normalization with fixed statistics, made of operations that have a float64 version."""
    if node.attr["is_training"].b or node.attr["data_format"].s not in (b"", b"NHWC"):
        raise ModelError("a normalization is not one of inference", received=f"{node.op} {node.name}")
    values, scale, offset, mean, variance = node.input[:5]
    controls = node.input[5:]
    near_zero = np.float32(node.attr["epsilon"].f)

    def made(name: str, operation: str, *inputs: str) -> Any:
        part = tf.compat.v1.NodeDef(name=name, op=operation, input=[*inputs, *controls])
        part.attr["T"].type = tf.float32.as_datatype_enum
        return part

    start = f"{node.name}/in_float64"
    constant = tf.compat.v1.NodeDef(name=f"{start}/epsilon", op="Const")
    constant.attr["dtype"].type = tf.float32.as_datatype_enum
    constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(near_zero))
    yield constant
    yield made(f"{start}/spread", "AddV2", variance, f"{start}/epsilon")
    yield made(f"{start}/inverse", "Rsqrt", f"{start}/spread")
    yield made(f"{start}/factor", "Mul", f"{start}/inverse", scale)
    yield made(f"{start}/product", "Mul", values, f"{start}/factor")
    yield made(f"{start}/middle", "Mul", mean, f"{start}/factor")
    yield made(f"{start}/rest", "Sub", offset, f"{start}/middle")
    yield made(node.name, "AddV2", f"{start}/product", f"{start}/rest")
