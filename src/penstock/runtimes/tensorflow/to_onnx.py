"""The whole step of a TensorFlow model as an ONNX file that other runtimes read.

Everything that the compiled step does is converted, not only the model: the cast of pixels, the scaling, the model, and
the choice and ranking of its outputs. Batches are fed to the converted step as they are fed to TensorFlow.
"""

import json
import logging
import os
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import google_crc32c

from penstock.core.records import Binding, ModelFile, Signature
from penstock.core.state import NONE, SEEDS
from penstock.errors import ModelError, OutputError, PenstockError, one_line
from penstock.runtimes.frameworks import tf
from penstock.runtimes.onnx.graph import (
    element_types,
    embed,
    embed_weights,
    from_erfc,
    from_floor_div,
    from_floor_mod,
    refused_by_openvino,
    reject_negative_ids,
    release_constants,
    skeleton,
    unknown_operations,
)
from penstock.runtimes.tensorflow.graph_changes import changes_of, has_loops

OPSET = 18
"""The newest opset that tf2onnx writes; onnxruntime and OpenVINO have read it for years."""
_MOST_BYTES = 1_900_000_000
"""The most bytes of weights: an ONNX file is one protobuf message, of at most 2 GB."""
_MODEL, _SIGNATURE = "model.onnx", "signature.json"
FORMAT = 6
"""The version of what is written to a step's folder. A kept step of another version is not used."""

_NO_COPIES = "TF2ONNX_CATCH_ERRORS"
_LARGE_BYTES = 1 << 16
"""A weight of at least this size is put in last, after the conversion."""
_WEIGHTED = ("Conv2D", "Conv3D", "Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNative", "MatMul",
             "BatchMatMulV2", "BatchMatMulV3", "Einsum", "GatherV2")  # fmt: skip
"""Operations whose weights are put in last. TensorFlow must fold what other operations compute from weights alone."""
_LAYOUTS = ("Identity", "Reshape", "Transpose")

_HANDLERS = {"Erfc": from_erfc, "FloorDiv": from_floor_div, "FloorMod": from_floor_mod}
"""Handlers of our own, for operations that tf2onnx cannot convert or converts wrongly."""

NamedStep = Callable[[dict[str, Any]], Mapping[str, Any]]


class _NotConvertible(Exception):
    """A step cannot be converted; the text says why."""


@dataclass(frozen=True)
class ConvertedStep:
    """A step that was converted.

    Args:
        path: The ONNX file.
        signature: What the original model takes and gives.
        inputs: The inputs that are fed, to their names in the file. An input that no answer depends on is not in it.
        outputs: Names in the file to the names that the step gave, in its order.
        refused_by_openvino: Why OpenVINO would answer some rows otherwise, or end the process.
    """

    path: str
    signature: Signature
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    refused_by_openvino: str | None = None


def read_step(model: ModelFile) -> ConvertedStep:
    """The converted step in a folder.

    Raises:
        ModelError: The folder does not hold one.
    """
    path = os.path.join(model.location, _SIGNATURE)
    try:
        with open(path, encoding="utf-8") as opened:
            document = json.load(opened)
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']}")
        return ConvertedStep(
            os.path.join(model.location, _MODEL),
            Signature.from_json(document["signature"]),
            document["inputs"],
            document["outputs"],
            document["refused_by_openvino"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError("this is not a converted model", received=f"{path}: {one_line(error)}") from None


def export_step(step: NamedStep, signature: Signature, bindings: Sequence[Binding], folder: str) -> str | None:
    """Write a step to `folder`, which is there and empty, and has the name of the step.

    Args:
        step: From tensors by input name to tensors by output name; it can be traced.
        signature: What the model takes and gives; it is kept beside the step.
        bindings: The inputs that are fed, with the dtypes and shapes in which they come.
        folder: Where it goes. The folder stays empty if the step cannot be converted.

    Returns:
        Why it cannot be converted, in one line; None where it was.

    Raises:
        OutputError: The disk is full, or the folder may not be written to.
    """
    try:
        import tf2onnx  # noqa: F401
    except ImportError as error:
        return f"tf2onnx does not start ({one_line(error)}): pip install 'penstock[convert]'"
    try:
        with _captured_logs() as records:
            proto, names = _convert(step, signature, bindings, records)
            _refuse_unknown(proto)
            _refuse_failed(records)
            kinds = element_types(proto)
            refused = refused_by_openvino(proto, kinds)
            reject_negative_ids(proto, kinds)
            _check(proto)
        inputs = {binding.input: f"input_{index}" for index, binding in enumerate(bindings)}
        _write(proto, signature, inputs, names, refused, folder)
    except _NotConvertible as reason:
        return str(reason)
    except PenstockError as error:
        return error.problem
    except OSError as error:
        raise cannot_write(error) from None
    except Exception as error:  # a converter may raise anything on an unusual model: the plan goes on without the step
        return one_line(error)
    return None


def cannot_write(error: OSError) -> OutputError:
    return OutputError(
        "the converted model cannot be written",
        received=str(error),
        hint="$PENSTOCK_CACHE names another folder for it",
    )


def _convert(
    step: NamedStep, signature: Signature, bindings: Sequence[Binding], records: list[logging.LogRecord]
) -> tuple[Any, list[str]]:
    """The step as ONNX, and the names of its outputs."""
    names: list[str] = []

    def numbered(*tensors: Any) -> dict[str, Any]:
        # Names of inputs and outputs may have any characters, so the file has numbers in their place.
        outputs = step({binding.input: tensor for binding, tensor in zip(bindings, tensors, strict=True)})
        names[:] = outputs
        return {f"output_{index}": _plain(name, outputs[name]) for index, name in enumerate(names)}

    specs = [
        tf.TensorSpec((signature.fixed_batch, *binding.shape), tf.as_dtype(binding.dtype), name=f"input_{index}")
        for index, binding in enumerate(bindings)
    ]
    function = tf.function(numbered, autograph=False)
    with tf.device("/CPU:0"):
        traced = function.get_concrete_function(*specs)
        _refuse_state(traced)
        _refuse_large(traced)
        proto = _to_onnx(function, traced, specs, records)
    captured = zip(traced.inputs[len(specs) :], traced.captured_inputs, strict=True)
    embed(
        proto.graph,
        {inner.name: outer.numpy() for inner, outer in captured if outer.dtype not in (tf.resource, tf.variant)},
    )
    release_constants(proto.graph)
    return proto, names


def _to_onnx(function: Any, traced: Any, specs: Sequence[Any], records: list[logging.LogRecord]) -> Any:
    import tf2onnx.convert

    options = {"opset": OPSET, "custom_op_handlers": {name: (handler, []) for name, handler in _HANDLERS.items()}}
    proto = _with_weights_last(traced, len(specs), options, records)
    if proto is not None:
        return proto
    called = traced.graph.as_graph_def().library.function
    if any("_XlaMustCompile" in each.attr for each in called):
        graph = _without_xla(traced, len(specs))
        return _in_place(lambda: tf2onnx.convert.from_graph_def(**graph, **options)[0])
    return _in_place(lambda: tf2onnx.convert.from_function(function, input_signature=specs, **options)[0])


def _with_weights_last(
    traced: Any, num_inputs: int, options: Mapping[str, Any], records: list[logging.LogRecord]
) -> Any | None:
    """A graph that is converted without its large weights, and then gets them. None where this fails or saves nothing.

    TensorFlow and tf2onnx copy a graph with its weights some thirty times: four fifths of the time for ResNet50.
    """
    import tf2onnx.convert

    before = len(records)
    try:
        graph, weights = _without_weights(traced, num_inputs)
        if not weights:
            return None
        proto = _in_place(lambda: tf2onnx.convert.from_graph_def(**graph, **options)[0])
        embed_weights(proto.graph, weights)
        if not any(unknown_operations(proto.graph)):  # if there are any, a conversion with the weights has them, too
            _refuse_failed(records[before:])
            _check(proto)
        return proto
    except Exception:  # of any class: the graph is then converted with its weights
        del records[before:]
        return None


def _in_place(convert: Callable[[], Any]) -> Any:
    """Run a conversion in which tf2onnx changes the graph in place.

    By default tf2onnx copies the whole graph before each of its two dozen passes, in case the pass fails: half of the
    time for ResNet50. If a pass does fail, the conversion runs again with these copies.
    """
    asked = os.environ.get(_NO_COPIES)
    os.environ[_NO_COPIES] = "FALSE"
    try:
        return convert()
    except Exception as error:
        passes = os.path.join("tf2onnx", "optimizer")
        if not any(passes in frame.filename for frame in traceback.extract_tb(error.__traceback__)):
            raise
    finally:
        del os.environ[_NO_COPIES]
        if asked is not None:
            os.environ[_NO_COPIES] = asked
    # Outside the except block: the traceback of the error holds the first graph with all weights.
    return convert()


def _without_xla(traced: Any, num_inputs: int) -> dict[str, Any]:
    """A frozen graph in which no function is marked for XLA."""
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    frozen = convert_variables_to_constants_v2(traced, lower_control_flow=False, aggressive_inlining=True)
    graph = frozen.graph.as_graph_def(add_shapes=True)
    _take_from_xla(graph)
    inputs = [tensor.name for tensor in frozen.inputs]
    return _named(graph, inputs, num_inputs, [tensor.name for tensor in frozen.outputs])


def _without_weights(traced: Any, num_inputs: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A graph with its large weights as inputs, and these weights by their names.

    Both are empty for a graph with loops: tf2onnx needs its weights to find recurrent layers, which are operations in
    ONNX.
    """
    from tensorflow.python.framework import convert_to_constants as freezing

    # This is the first half of `convert_variables_to_constants_v2`; its second half makes a function, and takes longer.
    data = freezing._FunctionConverterDataInEager(func=traced, lower_control_flow=False, aggressive_inlining=True)
    graph, read = freezing._replace_variables_by_constants(converter_data=data)
    if has_loops(graph):
        return {}, {}
    _take_from_xla(graph)
    constant = {traced.graph.internal_captures[place].name for place in read}
    inputs = [tensor.name for tensor in traced.inputs if tensor.name not in constant]
    weights: dict[str, Any] = {}
    for node in _large_weights(graph):
        weights[f"{node.name}:0"] = tf.make_ndarray(node.attr["value"].tensor)
        node.op = "Placeholder"
        node.attr["shape"].shape.CopyFrom(node.attr["value"].tensor.tensor_shape)
        node.attr.pop("value")
    return _named(graph, [*inputs, *weights], num_inputs, [tensor.name for tensor in traced.outputs]), weights


def _large_weights(graph: Any) -> list[Any]:
    """The large constants of float32 that only convolutions, matrix products and embeddings read."""
    readers = defaultdict[str, list[Any]](list)
    for node in graph.node:
        for name in node.input:
            readers[name.removesuffix(":0")].append(node)  # names of control inputs begin with ^

    def is_weight(name: str) -> bool:
        return bool(readers[name]) and all(
            is_weight(node.name) if node.op in _LAYOUTS else node.op in _WEIGHTED for node in readers[name]
        )

    constants = (node for node in graph.node if node.op == "Const" and node.ByteSize() >= _LARGE_BYTES)
    return [
        node for node in constants if node.attr["dtype"].type == tf.float32.as_datatype_enum and is_weight(node.name)
    ]


def _take_from_xla(graph: Any) -> None:
    """Remove the marks for XLA from all functions: a marked function stays a call, which ONNX does not have.

    Keras lets XLA compile grouped convolutions, because TensorFlow has none of its own on a CPU.
    """
    for holder in (*graph.node, *graph.library.function, *(n for f in graph.library.function for n in f.node_def)):
        for mark in ("_XlaMustCompile", "_noinline"):
            holder.attr.pop(mark, None)


def _named(graph: Any, inputs: list[str], num_inputs: int, outputs: list[str]) -> dict[str, Any]:
    """A graph for tf2onnx, with the names that its inputs and outputs get."""
    order = sorted(f"output_{index}" for index in range(len(outputs)))  # the function returns its dict in this order
    named = dict(zip(inputs, (f"input_{index}" for index in range(num_inputs)), strict=False))
    return {
        "graph_def": graph,
        "input_names": inputs,
        "output_names": outputs,
        "tensors_to_rename": named | dict(zip(outputs, order, strict=True)),
    }


def _plain(name: str, tensor: Any) -> Any:
    """An output as ONNX has it. The identity gives a tensor that is two outputs a name for each of them."""
    if not tf.is_tensor(tensor) or not isinstance(tensor, tf.Tensor):
        raise _NotConvertible(f"ONNX has no {type(tensor).__name__}, which the output {name} is")
    if tensor.dtype.is_complex or tensor.dtype == tf.string:
        # Another runtime may print other last digits where numbers become text.
        raise _NotConvertible(f"{tensor.dtype.name} is not converted, which the output {name} holds")
    return tf.identity(tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor)


def _refuse_state(function: Any) -> None:
    """Refuse a step with state or random numbers: converted, it would answer each batch as the first one."""
    state = changes_of(function).state
    if state.kind == NONE:
        return
    is_drawn = state.kind == SEEDS or not state.is_repeatable
    what = "draws random numbers" if is_drawn else "keeps state"
    raise _NotConvertible(f"it {what} ({state}), which a converted model would freeze")


def _refuse_large(function: Any) -> None:
    sizes = [(tensor.shape.num_elements() or 0) * tensor.dtype.size for tensor in function.variables]
    if sum(sizes) > _MOST_BYTES:
        raise _NotConvertible(f"its weights take {sum(sizes) / 1e9:.1f} GB, and an ONNX file holds 2 GB at most")


@contextmanager
def _captured_logs() -> Iterator[list[logging.LogRecord]]:
    """Catch the log of tf2onnx, which then goes nowhere else. It names the operations that could not be converted."""
    records: list[logging.LogRecord] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    root, of_tensorflow = logging.getLogger(), logging.getLogger("tensorflow")
    before, root.handlers = root.handlers, [Collector()]
    level = of_tensorflow.level
    of_tensorflow.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield records
    finally:
        root.handlers = before
        of_tensorflow.setLevel(level)


def _refuse_unknown(proto: Any) -> None:
    """Refuse a graph that still has operations of TensorFlow: tf2onnx writes such graphs without an error."""
    unknown = list(dict.fromkeys(unknown_operations(proto.graph)))
    if unknown:
        raise _NotConvertible(f"ONNX has no {', '.join(unknown[:5])}{', …' if len(unknown) > 5 else ''}")


def _refuse_failed(records: Iterable[logging.LogRecord]) -> None:
    """Refuse a step if the log of tf2onnx says that a node could not be converted."""
    for record in records:
        # The arguments of "Failed to convert node": its name, the converter, and a summary that begins with OP=.
        if record.levelno >= logging.ERROR and record.exc_info and isinstance(record.args, tuple):
            reason = f" ({one_line(record.exc_info[1])})" if record.exc_info[1] is not None else ""
            summary = str(record.args[-1]).partition("\n")[0].removeprefix("OP=")
            raise _NotConvertible(f"tf2onnx cannot convert {summary or record.args[0]}{reason}")


def _check(proto: Any) -> None:
    """Refuse a graph that is no valid ONNX, such as one whose types do not match: tf2onnx writes such graphs."""
    import onnx.checker

    try:
        onnx.checker.check_model(skeleton(proto), full_check=True)
    except Exception as error:  # of several classes, none of which is public
        raise _NotConvertible(f"what tf2onnx makes of it is no valid ONNX: {one_line(error)}") from None


def _write(
    proto: Any,
    signature: Signature,
    inputs: Mapping[str, str],
    names: Sequence[str],
    refused: str | None,
    folder: str,
) -> None:
    taken = {node.name for node in proto.graph.input}
    given = {node.name for node in proto.graph.output}
    outputs = {f"output_{index}": name for index, name in enumerate(names)}
    lost = [name for key, name in outputs.items() if key not in given]
    if lost:
        raise _NotConvertible(f"tf2onnx lost the output {lost[0]}")
    if not taken.issubset(inputs.values()):
        raise _NotConvertible("the model reads something beside its inputs and weights")
    document = {
        "format": FORMAT,
        "step": os.path.basename(folder),
        "signature": asdict(signature),
        "inputs": {name: key for name, key in inputs.items() if key in taken},
        "outputs": outputs,
    }
    content = proto.SerializeToString()  # which may fail, before there is a file
    digest = f"{google_crc32c.value(content):08x}"
    document |= {"num_bytes": len(content), "digest": digest, "refused_by_openvino": refused}
    for name, written in ((_MODEL, content), (_SIGNATURE, json.dumps(document, indent=1).encode())):
        with open(os.path.join(folder, name), "wb") as opened:
            opened.write(written)
            opened.flush()
            os.fsync(opened.fileno())
