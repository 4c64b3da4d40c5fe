"""Changes to the ONNX graph of a converted step, so that every runtime for ONNX can read it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

_DOMAINS = ("", "ai.onnx.ml")
"""Domains of the operations of plain ONNX files; operations of other domains need a library of their own."""


_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Sum", "Neg", "CumSum", "ReduceSum", "ReduceProd", "MatMul",
               "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot")  # fmt: skip


def from_erfc(context: Any, node: Any, name: str, arguments: Any) -> Any:
    """Replace erfc, which TensorFlow's `gelu` uses and ONNX does not have, by 1 - erf(x)."""
    from onnx.helper import tensor_dtype_to_np_dtype

    dtype = tensor_dtype_to_np_dtype(context.get_dtype(node.input[0]))
    one = context.make_const(f"{name}_one", np.ones((), dtype))
    context.remove_node(node.name)
    erf = context.make_node("Erf", [node.input[0]])
    return context.make_node("Sub", [one.output[0], erf.output[0]], name=name, outputs=node.output)


def embed(graph: Any, values: Mapping[str, Any]) -> None:
    """Make constants of inputs that have one value: tensors that the step captured when it was traced."""
    from onnx.numpy_helper import from_array

    for node in [node for node in graph.input if node.name in values]:
        graph.initializer.append(from_array(np.asarray(values[node.name]), node.name))
        graph.input.remove(node)


def embed_weights(graph: Any, weights: Mapping[str, Any]) -> None:
    """Make constants of the weights that a graph was converted without, transposed where it only transposes them.

    A weight that nothing reads is left out.
    """
    from onnx.numpy_helper import from_array

    uses = Counter(name for node in graph.node for name in node.input)
    transposed = {node.input[0]: node for node in graph.node if node.op_type == "Transpose"}
    for given in [node for node in graph.input if node.name in weights]:
        name = given.name
        if _is_used_deeper(graph, name) or uses[name] > 1:
            continue
        if name in transposed:
            node = transposed[name]
            (order,) = (list(attribute.ints) for attribute in node.attribute if attribute.name == "perm")
            graph.initializer.append(from_array(np.ascontiguousarray(weights[name].transpose(order)), node.output[0]))
            graph.node.remove(node)
        if name in transposed or not uses[name]:
            graph.input.remove(given)
    embed(graph, weights)


def release_constants(graph: Any) -> None:
    """Let the bodies of loops read what they carry round unchanged, weights mostly, from the graph around them.

    OpenVINO does not read a loop whose body gives back one of its inputs as it is.
    """
    renamed: dict[str, str] = {}
    for node in graph.node:
        for body in _bodies(node):
            release_constants(body)
            if node.op_type == "Loop":
                renamed |= _release_from_loop(node, body)
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = renamed.get(name, name)


def _release_from_loop(loop: Any, body: Any) -> dict[str, str]:
    """Take the constants out of a loop; returns its removed outputs, each with the tensor that it was equal to."""
    gone: dict[str, str] = {}
    for index in reversed(range(len(loop.input) - 2)):  # before the states: how often, and whether to begin
        inner, outer = body.input[index + 2].name, loop.input[index + 2]
        if body.output[index + 1].name != inner or _is_used_deeper(body, inner):
            continue
        for node in body.node:
            for position, name in enumerate(node.input):
                node.input[position] = outer if name == inner else name
        gone[loop.output[index]] = outer
        del body.input[index + 2], body.output[index + 1], loop.input[index + 2], loop.output[index]
    return gone


def _is_used_deeper(graph: Any, name: str) -> bool:
    inner = [body for node in graph.node for body in _bodies(node)]
    return any(name in node.input for body in inner for node in body.node) or any(
        _is_used_deeper(body, name) for body in inner
    )


def _bodies(node: Any) -> list[Any]:
    """The graphs inside a node: of loops and conditions."""
    bodies = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    return bodies + [graph for attribute in node.attribute for graph in attribute.graphs]


def unknown_operations(graph: Any) -> Iterator[str]:
    """The operations that ONNX does not have, at any depth. tf2onnx leaves what it cannot convert as it was."""
    from onnx import defs

    for node in graph.node:
        if node.domain not in _DOMAINS or not defs.has(node.op_type, domain=node.domain):
            yield node.op_type
        for body in _bodies(node):
            yield from unknown_operations(body)


def wide_arithmetic(proto: Any) -> str | None:
    """An operation that computes with whole numbers of 64 bits from the rows; None where there is none.

    Shapes are 64 bits wide in every ONNX graph, and do not count: no batch has 2^31 rows.
    """
    from onnx import TensorProto, shape_inference

    graph = shape_inference.infer_shapes(proto).graph
    kinds = {each.name: each.type.tensor_type.elem_type for each in (*graph.value_info, *graph.output, *graph.input)}
    from_rows = {each.name for each in graph.input}
    for node in graph.node:
        if node.op_type in ("Shape", "Size") or not from_rows.intersection(node.input):
            continue
        from_rows.update(node.output)
        if node.op_type in _ARITHMETIC and kinds.get(node.output[0]) in (TensorProto.INT64, TensorProto.UINT64):
            return str(node.op_type)
    return None
