"""Sparse and ragged arguments of a signature, which takes them in parts: `x` as `x`, `x_1` and `x_2`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.runtimes.frameworks import tf
from penstock.runtimes.keras.call_structure import leaves
from penstock.runtimes.tensorflow.parsed_features import walk


@dataclass(frozen=True)
class Composite:
    """What the parts together are, and their names in the order in which TensorFlow takes them apart."""

    spec: Any
    parts: tuple[str, ...]


def composites(
    function: Any, specs: Mapping[str, Any], declared: Mapping[str, Any], loaded: Any
) -> dict[str, Composite]:
    """The composite arguments of a signature, by the name of the whole.

    Args:
        function: The signature's concrete function.
        specs: All of its arguments, taken apart, in order.
        declared: What the file says of the inputs: TensorFlow 1 writes there which ones are sparse.
        loaded: The loaded object: one of its functions may take the same arguments as wholes.
    """
    known = _declared(specs, declared)
    if known:
        return known
    taken_apart = _by_a_function(specs, loaded)
    return taken_apart if taken_apart is not None else _by_shapes(function, specs)


def _declared(specs: Mapping[str, Any], declared: Mapping[str, Any]) -> dict[str, Composite]:
    by_name: dict[str, Composite] = {}
    for name, info in declared.items():
        encoding = info.WhichOneof("encoding")
        parts = tuple(f"{name}_{part}" for part in ("indices", "values", "dense_shape"))
        if encoding == "coo_sparse" and all(part in specs for part in parts):
            shape = tf.TensorShape(info.tensor_shape)
            shape = shape if shape.rank is not None else tf.TensorShape([None] * (specs[parts[0]].shape[1] or 2))
            by_name[name] = Composite(tf.SparseTensorSpec(shape, specs[parts[1]].dtype), parts)
        elif encoding == "composite_tensor":
            parts = tuple(part for part in specs if part.startswith(f"{name}_component_"))
            if len(parts) == 2:  # values and row splits
                by_name[name] = Composite(_ragged_spec(specs[parts[0]], specs[parts[1]]), parts)
    return by_name


def _ragged_spec(values: Any, splits: Any) -> Any:
    inner = values.shape.as_list()[1:] if values.shape.rank else []
    return tf.RaggedTensorSpec([None, None, *inner], values.dtype, 1, splits.dtype)


def _by_a_function(specs: Mapping[str, Any], loaded: Any) -> dict[str, Composite] | None:
    """The composite arguments of the model's function whose arguments, taken apart, are those of the signature.

    None where the model has no such function.
    """
    wanted = [(spec.dtype, spec.shape.rank) for spec in specs.values()]
    for structure in _structures(loaded):
        wholes = [leaf.value for leaf in leaves(structure, "input").values()]
        parts = [tf.nest.flatten(whole, expand_composites=True) for whole in wholes]
        if [(part.dtype, part.shape.rank) for some in parts for part in some] != wanted:
            continue
        names = iter(specs)
        taken = [tuple(next(names) for _ in some) for some in parts]
        return {
            mine[0]: Composite(whole, mine)
            for whole, mine in zip(wholes, taken, strict=True)
            if not isinstance(whole, tf.TensorSpec)
        }
    return None


def _structures(loaded: Any) -> Iterator[Any]:
    """The arguments of every function that the loaded object holds."""
    for name in ("__call__", *vars(loaded)):
        for function in getattr(getattr(loaded, name, None), "concrete_functions", ()):
            yield function.structured_input_signature


def _by_shapes(function: Any, specs: Mapping[str, Any]) -> dict[str, Composite]:
    by_name: dict[str, Composite] = {}
    for name, first in specs.items():
        second, third = (specs.get(f"{name}_{number}") for number in (1, 2))
        if second is None:
            continue
        if third is not None and _is_sparse(first, second, third):
            shape = [None] * third.shape[0]
            by_name[name] = Composite(tf.SparseTensorSpec(shape, second.dtype), (name, f"{name}_1", f"{name}_2"))
        elif third is None and _may_be_splits(second) and _is_used_as_splits(function, list(specs), f"{name}_1"):
            by_name[name] = Composite(_ragged_spec(first, second), (name, f"{name}_1"))
    return by_name


def _is_sparse(indices: Any, values: Any, shape: Any) -> bool:
    is_int64 = indices.dtype.name == shape.dtype.name == "int64"
    ranks = (indices.shape.rank, values.shape.rank, shape.shape.rank)
    return is_int64 and ranks == (2, 1, 1) and shape.shape[0] is not None and indices.shape[1] == shape.shape[0]


def _may_be_splits(spec: Any) -> bool:
    return spec.dtype.name in ("int64", "int32") and spec.shape.rank == 1 and spec.shape[0] is None


def _is_used_as_splits(function: Any, order: Sequence[str], name: str) -> bool:
    """Whether TensorFlow's own code for ragged tensors reads this argument as the ends of rows."""
    placeholder = function.inputs[order.index(name)].op.name
    for node, body in walk(function.graph.as_graph_def(), {placeholder: name}):
        names = node.op + node.name
        if ("Ragged" in names or "RowPartition" in names) and any(body.origin(each) == name for each in node.input):
            return True
    return False
