"""What a call of a traced TensorFlow step changes. Its graph shows this; nothing is run.

Resources are followed from the operations that change them back to the variables that the step captured, through the
functions that it calls.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.core.state import NONE, SEEDS, VARIABLES, State
from penstock.runtimes.keras.call_state import SEED_NAME, CallState

_ASSIGN = ("Assign", "ResourceScatter", "ResourceApply", "ResourceSparseApply", "ResourceStridedSliceAssign")
"""Beginnings of the names of operations that change a variable, which is their first input."""
_GENERATORS = frozenset(
    {"RngSkip", "RngReadAndSkip", "StatefulUniform", "StatefulUniformInt", "StatefulUniformFullInt",
     "StatefulStandardNormal", "StatefulStandardNormalV2", "StatefulTruncatedNormal", "StatefulRandomBinomial"}
)  # fmt: skip
"""Operations that change the variable of a `tf.random.Generator`, which is their first input."""
_DRAW = frozenset(
    {"RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal", "ParameterizedTruncatedNormal",
     "RandomGamma", "RandomPoisson", "RandomPoissonV2", "RandomShuffle", "Multinomial", "NonDeterministicInts",
     "UniformCandidateSampler", "LogUniformCandidateSampler", "LearnedUnigramCandidateSampler", "AllCandidateSampler",
     "ThreadUnsafeUnigramCandidateSampler", "FixedUnigramCandidateSampler"}
)  # fmt: skip
"""Operations that draw random numbers from a generator of their own, which no variable holds."""
_TABLES = frozenset({"LookupTableInsert", "LookupTableInsertV2", "LookupTableRemoveV2"})
_PASS = frozenset({"Identity", "Switch", "RefSwitch", "Enter", "RefEnter", "Merge", "NextIteration", "Exit"})
_LOOPS = ("While", "StatelessWhile", "Enter", "RefEnter")
_BEFORE_ARGUMENTS = {"If": 1, "StatelessIf": 1, "Case": 1, "StatelessCase": 1}
"""How many inputs such an operation has before the ones that it passes to its functions."""


def has_loops(graph: Any) -> bool:
    """Whether a graph or a function in it has a loop: how often its nodes run then depends on values."""
    parts = (graph.node, *(function.node_def for function in graph.library.function))
    return any(node.op in _LOOPS for part in parts for node in part)


@dataclass
class _Found:
    """What a walk has found.

    `changed` and `stepped` map an input whose variable is changed to the operation that changes it; in `stepped` this
    is an operation of a random generator. `drawing` are operations that draw from generators of their own, and `lost`
    are those that change something for which no variable is known.
    """

    changed: dict[str, str] = field(default_factory=dict)
    stepped: dict[str, str] = field(default_factory=dict)
    drawing: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Changes:
    """The variables that a step changes, which of them are seeds, and the operations that change anything else."""

    variables: tuple[Any, ...] = ()
    is_seed: tuple[bool, ...] = ()
    drawing: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    @property
    def state(self) -> State:
        names = tuple(str(variable.name).partition(":")[0] for variable in self.variables)
        if self.drawing or self.lost:
            return State(VARIABLES, (*names, *self.drawing, *self.lost), is_repeatable=False)
        if not self.variables:
            return State(NONE)
        return State(SEEDS if all(self.is_seed) else VARIABLES, names)

    def tell(self, call_state: CallState) -> None:
        call_state.note(self.variables, self.is_seed, self.state)


def changes_of(traced: Any) -> Changes:
    """What a concrete function changes, as its graph says."""
    graph = traced.graph.as_graph_def()
    seen = _Found()
    functions = {function.signature.name: function for function in graph.library.function}
    inputs = {inner.op.name: inner.op.name for _, inner in traced.graph.captures}
    _walk({node.name: node for node in graph.node}, inputs, functions, seen, ())
    if not (seen.changed or seen.stepped or seen.drawing or seen.lost):
        return Changes()
    handles = {id(variable.handle): variable for variable in traced.graph.variables}
    captured = {inner.op.name: outer for outer, inner in traced.graph.captures}
    changed: dict[int, tuple[Any, bool]] = {}
    for name, operation in (seen.changed | seen.stepped).items():
        variable = handles.get(id(captured[name]))
        if variable is None:
            seen.lost.append(operation)
        else:
            changed[id(variable)] = (variable, name in seen.stepped or _is_seed(variable))
    return Changes(
        tuple(variable for variable, _ in changed.values()),
        tuple(is_seed for _, is_seed in changed.values()),
        tuple(dict.fromkeys(seen.drawing)),
        tuple(dict.fromkeys(seen.lost)),
    )


def _walk(
    nodes: Mapping[str, Any],
    inputs: Mapping[str, str],
    functions: Mapping[str, Any],
    seen: _Found,
    inside: tuple[str, ...],
) -> None:
    """Look at one graph. `inputs`: the names of its resources to their names in the outermost graph."""
    for node in nodes.values():
        if node.op in _DRAW:
            seen.drawing.append(node.op)
        elif node.op in _TABLES:
            seen.lost.append(node.op)
        elif node.op.startswith(_ASSIGN) or node.op in _GENERATORS:
            resource = _source_of(node.input[0], nodes, inputs)
            if resource is None:
                seen.lost.append(node.op)
            elif node.op in _GENERATORS:
                seen.stepped[resource] = node.op
            else:
                seen.changed[resource] = node.op
        for function in _called(node, functions):
            if function.signature.name in inside:
                continue
            given = list(node.input)[_BEFORE_ARGUMENTS.get(node.op, 0) :]
            arguments = [argument.name for argument in function.signature.input_arg]
            passed = {
                argument: source
                for argument, name in zip(arguments, given, strict=False)
                if (source := _source_of(name, nodes, inputs)) is not None
            }
            within = {each.name: each for each in function.node_def}
            _walk(within, passed, functions, seen, (*inside, function.signature.name))


def _source_of(name: str, nodes: Mapping[str, Any], inputs: Mapping[str, str]) -> str | None:
    """The input of the outermost graph that a tensor comes from; None where it comes from none."""
    for _ in range(len(nodes) + 1):
        name = name.removeprefix("^").partition(":")[0]
        if name in inputs:
            return inputs[name]
        node = nodes.get(name)
        if node is None or node.op not in _PASS or not node.input:
            return None
        name = node.input[0]
    return None


def _called(node: Any, functions: Mapping[str, Any]) -> Iterator[Any]:
    if node.op in functions:
        yield functions[node.op]
    for attribute in node.attr.values():
        for called in (attribute.func, *attribute.list.func):
            if called.name in functions:
                yield functions[called.name]


def _is_seed(variable: Any) -> bool:
    return variable.dtype.is_integer and str(variable.name).partition(":")[0].endswith(SEED_NAME)
