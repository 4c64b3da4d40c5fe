"""What a graph does when it runs: which operations run, and which of these reach beyond the graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from penstock.models.facts import listed
from penstock.models.scan import operations
from penstock.models.scan.graph import Function, Graph, Node
from penstock.models.scan.mlir import callbacks_in

ASSET = "asset"
CHECKPOINT = "checkpoint"
Label = str | None
"""Where the text in a tensor comes from, if it is a path that the loader itself sets: ASSET or CHECKPOINT."""

_PASSES_ON = frozenset({"Identity", "StopGradient", "Snapshot"})
_LOOKS_AT_VARIABLES = frozenset({"ReadVariableOp", "VarIsInitializedOp"})
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_NO_FILE = ("local://", "bytes://")
_MOST_PATTERNS = 64
"""A function is walked with at most this many patterns of labels: calls can permute their arguments without end."""


class Reach:
    """Walks a graph from where it is entered, and notes what it reaches.

    Every node of a function that is entered counts: a stateful operation runs even if its output is not used. In the
    graph itself, only nodes that a fetched node depends on run.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._entered: dict[str, set[tuple[Label, ...]]] = {}
        self._pending: list[tuple[str, tuple[Label, ...]]] = []
        self.found: dict[str, list[str]] = {}

    def sentences(self) -> tuple[str, ...]:
        return tuple(f"it {why}: {listed(names)}" for why, names in self.found.items())

    def enter_nodes(self, tensors: Iterable[str], labels: Mapping[str, str] | None = None) -> None:
        """Enter the graph where these tensors or operations are fetched; `labels` are those of tensors that are fed."""
        fed = {_node_name(name): label for name, label in (labels or {}).items()}
        scope = _Scope(self._graph.nodes, fed)
        pending, seen = [_node_name(name) for name in tensors], set()
        while pending:
            name = pending.pop()
            if name in seen or name in fed:
                continue
            seen.add(name)
            for node in self._graph.nodes.get(name, ()):
                self._check(node, scope)
                pending += map(_node_name, node.inputs)
        self._drain()

    def enter_all(self) -> None:
        """Enter every node of the graph: which of them are fetched is not known."""
        self.enter_nodes(list(self._graph.nodes))

    def enter_function(self, name: str, labels: Sequence[Label] = ()) -> None:
        """Enter a function; `labels` belong to its last arguments, because captured values come after passed ones."""
        for function in self._graph.functions.get(name, ()):
            missing = len(function.arguments) - len(labels)
            padded = (None,) * missing + tuple(labels) if missing >= 0 else ()
            self._pending.append((name, padded))
        self._drain()

    def _drain(self) -> None:
        while self._pending:
            name, labels = self._pending.pop()
            entered = self._entered.setdefault(name, set())
            if len(entered) >= _MOST_PATTERNS:
                labels = ()  # walked once more, with nothing known about its arguments: that covers all patterns
            if labels in entered:
                continue
            entered.add(labels)
            for function in self._graph.functions.get(name, ()):
                self._walk(function, labels)

    def _walk(self, function: Function, labels: tuple[Label, ...]) -> None:
        nodes: dict[str, list[Node]] = {}
        for node in function.nodes():
            nodes.setdefault(node.name, []).append(node)
        known = {name: label for name, label in zip(function.arguments, labels, strict=False) if label is not None}
        scope = _Scope(nodes, known)
        for same in nodes.values():
            for node in same:
                self._check(node, scope)
        for interface in function.implements:
            self._pending += [(name, labels) for name in self._graph.implementations[interface]]
        self._pending += [(name, ()) for name in self._graph.gradients.get(function.name, ())]

    def _check(self, node: Node, scope: _Scope) -> None:
        for operation in node.operations:
            reason = operations.why(operation)
            if reason is not None and not _is_own_file(operation, node, scope):
                self._note(reason, operation)
            for reason, what in _by_attributes(operation, node):
                self._note(reason, what)
        passed = tuple(scope.label(name) for name in node.inputs if not name.startswith("^"))
        for name in node.functions():
            if name in self._graph.functions:
                # Only a plain call hands its inputs on one by one; elsewhere nothing is known about the arguments.
                is_call = name in node.operations or not _CALLS.isdisjoint(node.operations)
                self._pending.append((name, passed if is_call else ()))

    def _note(self, why: str, operation: str) -> None:
        self.found.setdefault(why, []).append(operation)


class _Scope:
    """The names of a graph or of a function's body, and where the paths among them come from."""

    def __init__(self, nodes: Mapping[str, list[Node]], known: Mapping[str, Label]) -> None:
        self._nodes = nodes
        self._known = known

    def label(self, tensor: str) -> Label:
        name, seen = _node_name(tensor), set()
        if not self._known:
            return None
        while name not in self._known:
            same = self._nodes.get(name, [])
            if name in seen or len(same) != 1 or not same[0].inputs:
                return None
            seen.add(name)
            source = _node_name(same[0].inputs[0])
            if same[0].operations == ("ReadVariableOp",):
                return self._label_of_variable(source)
            if not _PASSES_ON.issuperset(same[0].operations):
                return None
            name = source
        return self._known[name]

    def _label_of_variable(self, handle: str) -> Label:
        """The label that all assignments to a variable share: TensorFlow 2 keeps the paths of assets in variables."""
        labels: set[Label] = set()
        shared = [name for node in self._nodes.get(handle, ()) for name in node.attribute_texts("shared_name")]
        handles = {node for name in shared for node in self._variables.get(name, ())}
        for node in (user for each in handles for user in self._users.get(each, ())):
            sources = _data_inputs(node)
            if not _LOOKS_AT_VARIABLES.issuperset(node.operations):
                is_assignment = node.operations == ("AssignVariableOp",) and len(sources) == 2
                labels.add(self._known.get(sources[1]) if is_assignment else None)
        return labels.pop() if len(labels) == 1 and handle in handles else None

    @cached_property
    def _variables(self) -> dict[str, set[str]]:
        """The nodes that stand for a variable, by its name: several may stand for one."""
        variables: dict[str, set[str]] = {}
        for node in (node for same in self._nodes.values() for node in same if "VarHandleOp" in node.operations):
            for name in node.attribute_texts("shared_name"):
                variables.setdefault(name, set()).add(node.name)
        return variables

    @cached_property
    def _users(self) -> dict[str, list[Node]]:
        """The nodes that take a node's output."""
        users: dict[str, list[Node]] = {}
        for node in (node for same in self._nodes.values() for node in same):
            for source in _data_inputs(node):
                users.setdefault(source, []).append(node)
        return users


def _data_inputs(node: Node) -> list[str]:
    return [_node_name(name) for name in node.inputs if not name.startswith("^")]


def _is_own_file(operation: str, node: Node, scope: _Scope) -> bool:
    """Whether an operation that reads a file reads one that came with the model."""
    inputs = [name for name in node.inputs if not name.startswith("^")]
    if operation in operations.FROM_TEXT_FILE:
        return len(inputs) == 2 and scope.label(inputs[1]) == ASSET
    if operation in operations.FROM_CHECKPOINT:
        return len(inputs) >= 2 and scope.label(inputs[0]) == CHECKPOINT
    return False


def _by_attributes(operation: str, node: Node) -> Iterator[tuple[str, str]]:
    """What an operation reaches because of how it is configured."""
    for configured, attributes, reaches in _CONFIGURED:
        if operation not in configured:
            continue
        for name in attributes:
            if node.is_left_open(name):
                yield operations.HIDDEN_ATTRIBUTE, f"{operation} with {name}"
        for reason, what in reaches(node):
            yield reason, f"{operation} {what}"


def _prints(node: Node) -> Iterator[tuple[str, str]]:
    for stream in node.attribute_texts("output_stream"):
        if stream.startswith("file:"):
            yield operations.WRITES, f"into {stream}"


def _debugs(node: Node) -> Iterator[tuple[str, str]]:
    for url in node.attribute_texts("debug_urls") + node.attribute_texts("debug_ops_spec"):
        if "://" in url:
            yield operations.NETWORK if "grpc" in url else operations.WRITES, f"to {url}"


def _reads_vocabulary(node: Node) -> Iterator[tuple[str, str]]:
    for path in filter(None, node.attribute_texts("vocab_file")):
        yield operations.READS, f"of {path}"


def _reads_descriptor(node: Node) -> Iterator[tuple[str, str]]:
    for source in node.attribute_texts("descriptor_source"):
        if source and not source.startswith(_NO_FILE):
            yield operations.READS, f"of {source}"


def _runs_module(node: Node) -> Iterator[tuple[str, str]]:
    for value in node.attribute("module"):
        for target in callbacks_in(bytes(value)):
            yield operations.PYTHON, f"with {target}"


_CONFIGURED: tuple[tuple[Collection[str], tuple[str, ...], Callable[[Node], Iterator[tuple[str, str]]]], ...] = (
    (operations.PRINTING, ("output_stream",), _prints),
    (operations.DEBUGGING, ("debug_urls", "debug_ops_spec"), _debugs),
    (operations.WITH_VOCABULARY_FILE, ("vocab_file",), _reads_vocabulary),
    (operations.WITH_DESCRIPTOR_FILE, ("descriptor_source",), _reads_descriptor),
    (operations.WITH_MODULE, ("module",), _runs_module),
)
"""Operations, the attributes that decide what they reach, and what that is."""


def _node_name(tensor: str) -> str:
    """The node that a tensor (`name:0`, in a function `name:output:0`) or a control input (`^name`) belongs to."""
    return tensor.removeprefix("^").partition(":")[0]
