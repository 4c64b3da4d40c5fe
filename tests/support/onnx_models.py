"""Small ONNX models, written node by node: `save` gives the path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

Tensors = Mapping[str, tuple[str, Sequence[int | str] | None]]
"""Name to (element type, shape)."""


def save(
    path: Path,
    nodes: Sequence[Any],
    inputs: Tensors,
    outputs: Tensors | Sequence[Any],
    *,
    initializers: Mapping[str, Any] | None = None,
    domains: Mapping[str, int] | None = None,
) -> Path:
    named = outputs if not isinstance(outputs, Mapping) else _declare(outputs)
    weights = [onnx.numpy_helper.from_array(array, name) for name, array in (initializers or {}).items()]
    graph = helper.make_graph(nodes, path.stem, _declare(inputs), named, weights)
    opsets = [helper.make_opsetid(domain, version) for domain, version in {"": 20, **(domains or {})}.items()]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9, producer_name="penstock-tests")
    path.write_bytes(model.SerializeToString())
    return path


def node(operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> Any:
    return helper.make_node(operator, inputs, outputs, **attributes)


def _declare(tensors: Tensors) -> list[Any]:
    return [
        helper.make_tensor_value_info(name, getattr(TensorProto, kind), shape)
        for name, (kind, shape) in tensors.items()
    ]


def map_output(name: str) -> Any:
    """An output as scikit-learn's converters declare class probabilities: a dict for each row."""
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    return helper.make_value_info(
        name, helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.STRING, value))
    )


def sequence_output(name: str) -> Any:
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    return helper.make_value_info(name, helper.make_sequence_type_proto(value))
