"""Frozen graphs: a `GraphDef` in a file, its variables turned into constants, its inputs and outputs not named."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.core.records import ModelFile, Signature
from penstock.errors import ModelError, UsageError, one_line
from penstock.runtimes.frameworks import tf
from penstock.runtimes.tensorflow.graph_arguments import Given, Step, arguments, output_spec, scaler
from penstock.runtimes.tensorflow.parsed_features import parsed_features

_NO_OUTPUTS = ("Assert", "NoOp", "Const", "Placeholder", "PlaceholderWithDefault")
_STRING_TYPE = 7
"""DT_STRING."""
_SHOWN = 12

Names = dict[str, str]
"""The name of a tensor in tables and on the command line, to its name in the graph."""


def load(file: ModelFile) -> tuple[Signature, Step]:
    """What a frozen graph takes and gives, and the step that runs it.

    Inputs are the tensors that the user named, and the placeholders that the outputs need beside them. Outputs are the
    tensors that no operation of the graph consumes, or `file.answers.outputs`. A placeholder with a default keeps the
    default, unless the user names it or gives a constant for it.

    Raises:
        ModelError: The file is damaged, or holds operations that this TensorFlow does not have.
        UsageError: A name is not in the graph.
    """
    graph_def = _read(file)
    nodes = {node.name: node for node in graph_def.node}
    whole = _import(file, graph_def)
    fetches = _outputs(file, nodes, whole.graph)
    named = _named_inputs(file, graph_def, nodes)
    feeds = named | _needed_placeholders(nodes, fetches, named, file.constants)
    function = _prune(file, whole, feeds, fetches)
    specs = {
        name: tf.TensorSpec(tensor.shape, tensor.dtype)
        for name, tensor in zip(feeds, function.inputs[: len(feeds)], strict=True)
    }
    given = Given(file.constants)
    given.check(specs)
    made = arguments(specs, given)
    texts = {
        _node(feeds[name]): name for name, spec in specs.items() if spec.dtype == tf.string and spec.shape.rank != 0
    }
    signature = Signature(
        made.inputs,
        tuple(output_spec(name, tensor) for name, tensor in zip(fetches, function.outputs, strict=True)),
        structure="dict",
        fixed_batch=made.fixed_batch,
        parameters=_parameters(graph_def),
        writer=f"TensorFlow, graph version {graph_def.versions.producer}",
        examples=parsed_features(graph_def, texts),
        notes=made.notes,
    )
    scale = scaler(file, signature)

    def step(tensors: dict[str, Any]) -> dict[str, Any]:
        return dict(zip(fetches, function(*made.make(scale(tensors)).values()), strict=True))

    return signature, step


def _read(file: ModelFile) -> Any:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from tensorflow.core.framework import graph_pb2

    graph_def = graph_pb2.GraphDef()
    try:
        with open(file.location, "rb") as opened:
            graph_def.ParseFromString(opened.read())
    except (OSError, DecodeError) as error:
        raise ModelError(
            "the file is damaged or not a frozen graph", received=f"{file.location}: {one_line(error)}"
        ) from None
    if not graph_def.node:
        raise ModelError("the file holds no graph", received=file.location)
    return graph_def


def _import(file: ModelFile, graph_def: Any) -> Any:
    def imported() -> None:
        tf.graph_util.import_graph_def(graph_def, name="")

    try:
        return tf.compat.v1.wrap_function(imported, [])
    except Exception as error:
        raise ModelError("the graph does not load", received=f"{file.location}: {one_line(error)}") from error


def _prune(file: ModelFile, whole: Any, feeds: Names, fetches: Names) -> Any:
    """The part of the graph between inputs and outputs. This fails where an operation of it does not exist any more."""
    try:
        function = whole.prune(_tensors(whole.graph, feeds), _tensors(whole.graph, fetches))
    except Exception as error:
        raise ModelError("the graph does not load", received=f"{file.location}: {one_line(error)}") from error
    _refuse_giants(file, function.graph)
    return function


def _refuse_giants(file: ModelFile, graph: Any) -> None:
    """Refuse tensors that are larger than this machine's memory.

    While TensorFlow optimises the graph, it computes constant tensors many times, and each time waits ten seconds for
    memory.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for tensor in (each for operation in graph.get_operations() for each in operation.outputs):
        num_bytes = (tensor.shape.num_elements() or 0) * max(1, tensor.dtype.size or 1)
        if num_bytes > memory:
            raise ModelError(
                "the graph makes a tensor that no memory holds",
                received=f"{file.location}: {tensor.name} of {num_bytes / 1e9:,.0f} GB",
                allowed=f"at most the {memory / 1e9:,.0f} GB of this machine",
            )


def _node(tensor: str) -> str:
    return tensor.lstrip("^").partition(":")[0]


def _full(tensor: str) -> str:
    return tensor if ":" in tensor else f"{tensor}:0"


def _plain(tensor: str) -> str:
    """A tensor's name in tables: the first tensor of a node has the name of the node."""
    return tensor.removesuffix(":0")


def _tensors(graph: Any, names: Names) -> list[Any]:
    return [graph.get_tensor_by_name(tensor) for tensor in names.values()]


def _outputs(file: ModelFile, nodes: Mapping[str, Any], graph: Any) -> Names:
    consumed = {_node(each) for node in nodes.values() for each in node.input if not each.startswith("^")}
    loose = [name for name, node in nodes.items() if name not in consumed and node.op not in _NO_OUTPUTS]
    tensors = [tensor for name in loose for tensor in graph.get_operation_by_name(name).outputs]
    candidates = [tensor.name for tensor in tensors if _may_be_rows(tensor)]
    chosen = file.answers.outputs if file.answers is not None else ()
    for name in chosen:
        if not _is_tensor(graph, name):
            raise UsageError(
                "the graph has no such output",
                received=f"--outputs {name}",
                allowed=f"any tensor of the graph, such as {_list([_plain(each) for each in candidates])}",
            )
    if not chosen and not candidates:
        raise ModelError("the graph has no outputs", received=file.location, hint="name them: --outputs NAME,…")
    return {_plain(name): _full(name) for name in chosen or candidates}


def _may_be_rows(tensor: Any) -> bool:
    """Whether a tensor may be rows: no single value (such as a loss), and no type that only TensorFlow can hold."""
    return tensor.shape.rank != 0 and tensor.dtype.name not in ("resource", "variant")


def _is_tensor(graph: Any, name: str) -> bool:
    try:
        graph.get_tensor_by_name(_full(name))
    except (KeyError, ValueError, TypeError):
        return False
    return True


def _named_inputs(file: ModelFile, graph_def: Any, nodes: Mapping[str, Any]) -> Names:
    """The inputs that the user named. Names of features inside records are left out: they are no tensors."""
    unknown = [name for name in file.inputs if _node(name) not in nodes]
    placeholders = [name for name, node in nodes.items() if node.op.startswith("Placeholder")]
    if unknown:
        texts = {name: name for name in placeholders if nodes[name].attr["dtype"].type == _STRING_TYPE}
        parsed = parsed_features(graph_def, texts).values()
        features = {feature.name for some in parsed for feature in some}
        unknown = [name for name in unknown if name not in features]
    if unknown:
        raise UsageError(
            "the graph has no such input",
            received=f"--input {unknown[0]}=…",
            allowed=f"any tensor of the graph; its placeholders are {_list(placeholders)}",
        )
    return {name: _full(name) for name in file.inputs if _node(name) in nodes}


def _needed_placeholders(nodes: Mapping[str, Any], fetches: Names, named: Names, constants: Mapping[str, str]) -> Names:
    """The placeholders that the outputs depend on. One with a default counts only if a constant was given for it."""
    cut = set(named.values())
    waiting = [tensor for tensor in fetches.values() if tensor not in cut]
    seen: set[str] = set()
    while waiting:
        name = _node(waiting.pop())
        if name not in seen and name in nodes:
            seen.add(name)
            waiting += [each for each in nodes[name].input if _full(each.lstrip("^")) not in cut]
    return {
        name: _full(name)
        for name, node in nodes.items()
        if name in seen and (node.op == "Placeholder" or (node.op == "PlaceholderWithDefault" and name in constants))
    }


def _parameters(graph_def: Any) -> int | None:
    """How many numbers the constants of the graph hold: they were its variables. None where it has no constants."""
    constants = [node.attr["value"].tensor for node in graph_def.node if node.op == "Const"]
    shapes = [[dim.size for dim in tensor.tensor_shape.dim] for tensor in constants if tensor.dtype != _STRING_TYPE]
    return sum(math.prod(shape) for shape in shapes if shape) or None


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN]) or "none"
    return f"{shown}, … ({len(names)} in all)" if len(names) > _SHOWN else shown
