"""Changes to the ONNX graph of a converted step, so that every runtime for ONNX can read it."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

_DOMAINS = ("", "ai.onnx.ml")
"""Domains of the operations of plain ONNX files; operations of other domains need a library of their own."""


_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Sum", "Neg", "CumSum", "ReduceSum", "ReduceProd", "MatMul",
               "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot")  # fmt: skip
_SUMS = ("Add", "Sub", "Sum", "Neg", "CumSum", "ReduceSum")
_LARGE_BYTES = 1 << 10
_FLOATS = ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16")
_SIGNED = ("INT32", "INT64")
_LARGEST = 2**31 - 1
_WIDE = ("INT64", "UINT64", "UINT32")
_PLACES = {"ArgMax": 0, "ArgMin": 0, "NonMaxSuppression": 0, "NonZero": 0, "TopK": 1}
"""Operations that give places of values, which are small numbers, and which output these are."""
_IDS = {"Gather": 1, "GatherND": 1, "OneHot": 0}
"""Operations that look ids up, each with the number of the input that holds the ids."""


def from_floor_mod(context: Any, node: Any, name: str, arguments: Any) -> Any:
    """Convert a remainder of whole numbers. TensorFlow rounds the quotient down; tf2onnx rounds it towards zero."""
    if context.get_dtype(node.input[0]) not in _whole_numbers():
        from tf2onnx.onnx_opset.math import FloorMod

        return FloorMod.version_7(context, node)
    node.type = "Mod"
    return node


def from_floor_div(context: Any, node: Any, name: str, arguments: Any) -> Any:
    """Convert a quotient of whole numbers, rounded down.

    It is the quotient rounded towards zero, less one where the remainders of the two ways of rounding differ.

    No value in between is larger than the dividend, so the smallest number of a type is divided without overflow.
    """
    dtype = context.get_dtype(node.input[0])
    if dtype not in _whole_numbers():
        from tf2onnx.onnx_opset.math import FloorDiv

        return FloorDiv.version_6(context, node)
    context.remove_node(node.name)
    quotient = context.make_node("Div", node.input)
    rest = context.make_node("Mod", node.input, attr={"fmod": 1})
    rest_of_floor = context.make_node("Mod", node.input)
    is_floor = context.make_node("Equal", [rest.output[0], rest_of_floor.output[0]])
    is_above = context.make_node("Not", [is_floor.output[0]])
    more = context.make_node("Cast", [is_above.output[0]], attr={"to": dtype})
    return context.make_node("Sub", [quotient.output[0], more.output[0]], name=name, outputs=node.output)


def _whole_numbers() -> tuple[int, ...]:
    from onnx import TensorProto

    return (TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64)


def from_erfc(context: Any, node: Any, name: str, arguments: Any) -> Any:
    """Replace erfc, which TensorFlow's `gelu` uses and ONNX does not have, by 1 - erf(x)."""
    from onnx.helper import tensor_dtype_to_np_dtype

    dtype = tensor_dtype_to_np_dtype(context.get_dtype(node.input[0]))
    one = context.make_const(f"{name}_one", np.ones((), dtype))
    context.remove_node(node.name)
    erf = context.make_node("Erf", [node.input[0]])
    return context.make_node("Sub", [one.output[0], erf.output[0]], name=name, outputs=node.output)


def embed(graph: Any, values: Mapping[str, Any]) -> None:
    """Turn inputs that have one value into constants: they are tensors that the step captured when it was traced."""
    from onnx.numpy_helper import from_array

    for node in [node for node in graph.input if node.name in values]:
        graph.initializer.append(from_array(np.asarray(values[node.name]), node.name))
        graph.input.remove(node)


def embed_weights(graph: Any, weights: Mapping[str, Any]) -> None:
    """Put the weights, which were left out of the conversion, into the graph as constants.

    A weight that the graph only transposes is put in transposed; a weight that nothing reads is left out.
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
    """Take values that a loop passes on unchanged, mostly weights, out of the loop: its body reads them from outside.

    OpenVINO does not read a loop whose body returns one of its inputs unchanged.
    """
    for index in reversed(range(len(graph.node))):
        node = graph.node[index]
        for body in _bodies(node):
            release_constants(body)
            if node.op_type == "Loop":
                for same in _release_from_loop(node, body):
                    graph.node.insert(index + 1, same)


def _release_from_loop(loop: Any, body: Any) -> Iterator[Any]:
    """Take the constants out of a loop. Yields nodes that give a constant the name that the loop's output of it had."""
    from onnx.helper import make_node

    given = Counter(output.name for output in body.output)
    for index in reversed(range(len(loop.input) - 2)):  # the first two inputs: how often, and whether to begin
        inner, outer = body.input[index + 2].name, loop.input[index + 2]
        if body.output[index + 1].name != inner or given[inner] > 1 or _is_used_deeper(body, inner):
            continue
        for node in body.node:
            for position, name in enumerate(node.input):
                node.input[position] = outer if name == inner else name
        if loop.output[index]:
            yield make_node("Identity", [outer], [loop.output[index]])
        del body.input[index + 2], body.output[index + 1], loop.input[index + 2], loop.output[index]


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


def reject_negative_ids(proto: Any, kinds: Mapping[str, str]) -> None:
    """Let ids and classes below zero be out of range, as in TensorFlow; ONNX would count them from the end."""
    from onnx.helper import make_node
    from onnx.numpy_helper import from_array

    rows = {each.name for each in proto.graph.input}
    found = [(node, _IDS[node.op_type]) for node in _reached(proto.graph, rows) if node.op_type in _IDS]
    places = {node.output[0]: place for node, place in found if node.input[place] in rows}
    for graph in list(_graphs(proto.graph)):
        nodes = []
        for node in graph.node:
            place = places.get(node.output[0])
            if place is not None and kinds.get(node.input[place]) in _SIGNED:
                ids, name = node.input[place], node.output[0]
                zero, beyond = (np.array(value, kinds[ids].lower()) for value in (0, _LARGEST))
                graph.initializer.extend([from_array(zero, f"{name}/zero"), from_array(beyond, f"{name}/beyond")])
                nodes.append(make_node("Less", [ids, f"{name}/zero"], [f"{name}/is_below"]))
                nodes.append(make_node("Where", [f"{name}/is_below", f"{name}/beyond", ids], [f"{name}/ids"]))
                node.input[place] = f"{name}/ids"
            nodes.append(node)
        if len(nodes) > (before := len(graph.node)):
            graph.node.extend(nodes)
            del graph.node[:before]


def refused_by_openvino(proto: Any, kinds: Mapping[str, str], *, are_checked: bool = False) -> str | None:
    """Why OpenVINO would answer some rows otherwise, or end the process; None where it does neither.

    It cuts whole numbers to 32 bits, sign included, and computes with fewer. Shapes are 64 bits wide in every ONNX
    graph, but no batch has 2^31 rows, and no table has 2^31 ids: neither is a reason. Places of values, and truth
    values as numbers, are none either.

    Args:
        proto: The model.
        kinds: The element types of its tensors.
        are_checked: Whether rows with wider numbers are refused before they are fed.
    """
    rows = {each.name for each in proto.graph.input} - {each.name for each in proto.graph.initializer}
    wide = set() if are_checked else {name for name in rows if kinds[name] in _WIDE}
    wide |= {name for graph in _graphs(proto.graph) for name, each in _constants(graph) if _is_beyond(each)}
    large = set(rows)
    _reached(proto.graph, large, lambda node: _may_be_large(node, kinds))
    for node in _reached(proto.graph, rows):
        is_cut = node.op_type == "Cast" and kinds.get(node.input[0]) in _FLOATS
        gives_wide = kinds.get(node.output[0]) in _WIDE
        reads_wide = node.op_type not in (*_IDS, "Slice") and not wide.isdisjoint(node.input)
        looks_up_wide = node.op_type in _IDS and gives_wide and not wide.isdisjoint(node.input)
        # Sums of places and of truth values stay small; products need not.
        is_sum = node.op_type in _SUMS and large.isdisjoint(node.input)
        computes_wide = (is_cut or node.op_type in _ARITHMETIC) and gives_wide and not is_sum
        if computes_wide or reads_wide or looks_up_wide:
            return f"whole numbers are cut to 32 bits: {node.op_type} of 64 bits in the model"
        if node.op_type == "GatherND" and node.input[1] in rows:
            return "an id that is out of range ends the process: GatherND in the model"
    return None


def _constants(graph: Any) -> Iterator[tuple[str, Any]]:
    """The constants of a graph, by name: its initializers, and what its Constant nodes give."""
    yield from ((each.name, each) for each in graph.initializer)
    for node in graph.node:
        if node.op_type == "Constant":
            yield from ((node.output[0], each.t) for each in node.attribute if each.name == "value")


def _may_be_large(node: Any, kinds: Mapping[str, str]) -> list[str]:
    """The outputs of a node that may hold large numbers where its inputs do."""
    if node.op_type == "Cast" and kinds.get(node.input[0]) == "BOOL":
        return []
    return [name for index, name in enumerate(node.output) if index != _PLACES.get(node.op_type)]


def _is_beyond(constant: Any) -> bool:
    """Whether a constant holds a whole number that does not fit into 32 bits, sign included."""
    from onnx import TensorProto
    from onnx.numpy_helper import to_array

    is_elsewhere = constant.data_location == TensorProto.EXTERNAL  # as large weights are, which are no whole numbers
    if is_elsewhere or TensorProto.DataType.Name(constant.data_type) not in _WIDE:
        return False
    values = to_array(constant)
    return bool(values.size) and (int(values.max()) > _LARGEST or int(values.min()) < -_LARGEST - 1)


Follow = Callable[[Any], Iterable[str]]
"""The outputs of a node that are followed."""


def _reached(graph: Any, rows: set[str], follow: Follow = lambda node: node.output) -> list[Any]:
    """The nodes, at any depth, that compute with values from the rows, not only with their number.

    `rows` holds the names of such values; the names of these nodes' outputs are added to it.
    """
    found = []
    for node in graph.node:
        if node.op_type in ("Shape", "Size"):
            continue
        inside = [each for body in _bodies(node) for each in _reached_inside(node, body, rows, follow)]
        if inside or not rows.isdisjoint(node.input):
            rows.update(follow(node))
            found += [node, *inside]
    return found


def _reached_inside(node: Any, body: Any, rows: set[str], follow: Follow) -> list[Any]:
    """The same in the body of a loop or condition. Values that a loop passes on are followed until none is new."""
    while True:
        known = len(rows)
        rows.update(inner.name for outer, inner in zip(node.input, body.input, strict=False) if outer in rows)
        found = _reached(body, rows, follow)
        if node.op_type == "Loop":
            carried = zip(body.output[1:], body.input[2:], strict=False)
            rows.update(inner.name for given, inner in carried if given.name in rows)
        if len(rows) == known:
            return found


def skeleton(proto: Any) -> Any:
    """The same graph with its large weights as inputs: it is valid if the whole is, and is checked in milliseconds."""
    from onnx.helper import make_graph, make_model, make_tensor_value_info

    graph = proto.graph
    large = [each for each in graph.initializer if each.ByteSize() > _LARGE_BYTES]
    small = [each for each in graph.initializer if each.ByteSize() <= _LARGE_BYTES]
    inputs = [*graph.input, *(make_tensor_value_info(each.name, each.data_type, each.dims) for each in large)]
    bare = make_graph(graph.node, graph.name, inputs, graph.output, small)
    return make_model(bare, opset_imports=proto.opset_import, ir_version=proto.ir_version)


def _graphs(graph: Any) -> Iterator[Any]:
    """A graph, and those in its nodes, at any depth."""
    yield graph
    for node in graph.node:
        for body in _bodies(node):
            yield from _graphs(body)


def element_types(proto: Any) -> dict[str, str]:
    """The types of the elements of all tensors, at any depth, as ONNX calls them."""
    kinds: dict[str, str] = {}
    for graph in _graphs(proto.graph):
        kinds |= _types_in(graph, kinds, proto)
    return kinds


def _types_in(graph: Any, around: Mapping[str, str], proto: Any) -> dict[str, str]:
    """Types in one graph, given the types `around` it. ONNX itself infers no types inside loops and conditions."""
    from onnx import TensorProto, shape_inference
    from onnx.helper import make_graph, make_model, make_tensor_value_info

    stored = [make_tensor_value_info(each.name, each.data_type, each.dims) for each in graph.initializer]
    own = {each.name for each in (*graph.input, *stored)}.union(*(node.output for node in graph.node))
    read = {name for node in graph.node for name in node.input if name in around} - own
    outer = [make_tensor_value_info(name, TensorProto.DataType.Value(around[name]), None) for name in read]
    alone = make_graph(graph.node, "alone", [*graph.input, *stored, *outer], graph.output)
    inferred = shape_inference.infer_shapes(make_model(alone, opset_imports=proto.opset_import)).graph
    known = (*inferred.input, *inferred.value_info, *inferred.output)
    return {each.name: TensorProto.DataType.Name(each.type.tensor_type.elem_type) for each in known}
