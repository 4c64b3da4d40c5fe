"""The features that a graph parses out of serialized `tf.train.Example` records.

They are found by following the graph's inputs to the operations that parse them. Nothing is executed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.core.records import STRING, Feature
from penstock.runtimes.frameworks import tf

_PARSERS = ("ParseExample", "ParseExampleV2", "ParseSingleExample")
_CARRIERS = (
    *("Identity", "IdentityN", "Reshape", "ExpandDims", "Squeeze", "EnsureShape", "StopGradient", "Snapshot"),
    *("PlaceholderWithDefault", "Switch", "Enter", "Unpack", "Unbatch"),
)
"""Operations that pass the values of their first input on unchanged."""
_BEFORE_ARGUMENTS = {"If": 1, "StatelessIf": 1, "Case": 1, "StatelessCase": 1}
"""How many inputs of a node that calls functions are not passed to the functions."""
_CALLS = ("PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile", *_BEFORE_ARGUMENTS)


@dataclass
class _Body:
    """The nodes of a graph or function. `feeds`: the names of its arguments to the names of the model's inputs."""

    nodes: Mapping[str, Any]
    feeds: Mapping[str, str]
    _known: dict[str, str | None] = field(default_factory=dict)

    def origin(self, reference: str) -> str | None:
        """The input of the model that arrives here unchanged, if one does."""
        name = reference.lstrip("^").partition(":")[0]
        if name not in self._known:
            self._known[name] = None  # a loop leads nowhere
            self._known[name] = self._find(name)
        return self._known[name]

    def _find(self, name: str) -> str | None:
        if name in self.feeds:
            return self.feeds[name]
        node = self.nodes.get(name)
        if node is None or not node.input:
            return None
        return self.origin(node.input[0]) if node.op in _CARRIERS else None

    def constant(self, reference: str) -> Any:
        """The array behind a reference; None where it is not a constant."""
        node = self.nodes.get(reference.partition(":")[0])
        while node is not None and node.op == "Identity":
            node = self.nodes.get(node.input[0].partition(":")[0])
        return tf.make_ndarray(node.attr["value"].tensor) if node is not None and node.op == "Const" else None


def walk(graph_def: Any, feeds: Mapping[str, str]) -> Iterator[tuple[Any, _Body]]:
    """Every node of a graph and of the functions that it calls, each with the body in which it stands.

    Args:
        graph_def: A `GraphDef`.
        feeds: The names of its placeholders to the names of the model's inputs.
    """
    library = {function.signature.name: function for function in graph_def.library.function}
    waiting = [_Body({node.name: node for node in graph_def.node}, feeds)]
    seen: set[tuple[Any, ...]] = set()
    while waiting:
        body = waiting.pop()
        for node in body.nodes.values():
            yield node, body
            for function in _called(node, library):
                inside = _arguments(node, function, body)
                key = (function.signature.name, *sorted(inside.items()))
                if key not in seen:
                    seen.add(key)
                    waiting.append(_Body({each.name: each for each in function.node_def}, inside))


def _called(node: Any, library: Mapping[str, Any]) -> Iterator[Any]:
    names = [node.op]  # in old graphs, a function is called by its name
    for value in node.attr.values():
        names += [value.func.name, *(each.name for each in value.list.func)]
    yield from (library[name] for name in names if name in library)


def _arguments(node: Any, function: Any, body: _Body) -> dict[str, str]:
    """The arguments of a called function that are inputs of the model, to the names of these inputs."""
    if node.op not in _CALLS and node.op != function.signature.name:
        return {}
    given = [reference for reference in node.input if not reference.startswith("^")]
    given = given[_BEFORE_ARGUMENTS.get(node.op, 0) :]
    origins = {
        argument.name: body.origin(reference)
        for argument, reference in zip(function.signature.input_arg, given, strict=False)
    }
    return {name: origin for name, origin in origins.items() if origin is not None}


def parsed_features(graph_def: Any, feeds: Mapping[str, str]) -> dict[str, tuple[Feature, ...]]:
    """The features that are parsed out of each input of serialized records, by the name of the input.

    Where only one input is text, all features belong to it: records may reach the parser on a path that cannot be
    followed, such as a loop over rows.

    Args:
        graph_def: A `GraphDef`.
        feeds: The names of its placeholders, only of those for vectors of strings, to the names of the model's inputs.
    """
    inputs = set(feeds.values())
    only = next(iter(inputs)) if len(inputs) == 1 else None
    by_origin: dict[str, dict[str, Feature]] = {}
    for node, body in walk(graph_def, feeds) if inputs else ():
        if node.op not in _PARSERS:
            continue
        origin = body.origin(node.input[0]) or only
        if origin is None:
            continue
        features = by_origin.setdefault(origin, {})
        for feature in _features(node, body):
            known = features.get(feature.name)
            if known is None or not known.is_required:
                features[feature.name] = feature
    return {name: tuple(features.values()) for name, features in by_origin.items() if features}


def _features(node: Any, body: _Body) -> Iterator[Feature]:
    sparse, dense, ragged, defaults = _keys(node, body)
    kinds = [*_types(node, "sparse_types"), *_types(node, "ragged_value_types")]
    for key, kind in zip([*sparse, *ragged], kinds, strict=False):
        yield Feature(key, kind, None, is_required=False)
    shapes = node.attr["dense_shapes"].list.shape
    for key, kind, shape, default in zip(dense, _types(node, "Tdense"), shapes, defaults, strict=False):
        lengths = tuple(None if dim.size < 0 else int(dim.size) for dim in shape.dim)
        value = body.constant(default)
        # A feature without a default has an empty one; for a feature of any length, the default is what pads it.
        has_default = value is None or value.size > 0 or None in lengths
        yield Feature(key, kind, lengths, is_required=not has_default)


def _keys(node: Any, body: _Body) -> tuple[list[str], list[str], list[str], list[str]]:
    """The keys of sparse, dense and ragged features, and where the defaults of the dense ones come from."""
    given = [reference for reference in node.input if not reference.startswith("^")]
    if node.op == "ParseSingleExample":
        sparse, dense = (_text(node.attr[name].list.s) for name in ("sparse_keys", "dense_keys"))
        return sparse, dense, [], given[1:]
    if node.op == "ParseExampleV2":
        sparse, dense, ragged = (_text(body.constant(reference)) for reference in given[2:5])
        return sparse, dense, ragged, given[5:]
    num_sparse, num_dense = int(node.attr["Nsparse"].i), int(node.attr["Ndense"].i)
    keys = [text for reference in given[2 : 2 + num_sparse + num_dense] for text in _text(body.constant(reference))]
    return keys[:num_sparse], keys[num_sparse:], [], given[2 + num_sparse + num_dense :]


def _text(keys: Any) -> list[str]:
    if keys is None:
        return []
    flat = keys.reshape(-1).tolist() if hasattr(keys, "reshape") else keys
    return [key.decode(errors="replace") for key in flat]


def _types(node: Any, name: str) -> list[str]:
    return [STRING if kind == tf.string else str(kind.name) for kind in map(tf.as_dtype, node.attr[name].list.type)]
