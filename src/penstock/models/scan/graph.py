"""TensorFlow graphs and their function libraries, read from the wire; only what is asked for is parsed."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.models.scan import wire

_PLACEHOLDER = 9
"""The field of an AttrValue that names an attribute of the function around it."""


@dataclass(frozen=True)
class Node:
    """One operation of a graph. `operations` has all names that were given: parsers take the last, we check each."""

    name: str
    operations: tuple[str, ...]
    inputs: tuple[str, ...]
    attributes: tuple[memoryview, ...]

    def attribute(self, name: str) -> Iterator[memoryview]:
        """Every value that an attribute was given."""
        for entry in self.attributes:
            if wire.text(entry, 1) == name:
                yield from wire.messages(entry, 2)

    def attribute_texts(self, name: str) -> list[str]:
        """The texts of an attribute that is a string or a list of strings."""
        texts = [text for value in self.attribute(name) for text in wire.texts(value, 2)]
        lists = (each for value in self.attribute(name) for each in wire.messages(value, 1))
        return texts + [text for each in lists for text in wire.texts(each, 2)]

    def is_left_open(self, name: str) -> bool:
        """Whether an attribute is a placeholder, which the call of the function around it fills."""
        return any(number == _PLACEHOLDER for value in self.attribute(name) for number, _ in wire.fields(value))

    def functions(self) -> Iterator[str]:
        """The names of functions that the node can call: those in its attributes, and its operation, if it is one."""
        yield from self.operations
        for entry in self.attributes:
            for value in wire.messages(entry, 2):
                yield from _functions_in(value)


def _functions_in(value: memoryview) -> Iterator[str]:
    """The functions in an AttrValue: its `func`, its list of them, and what their own attributes name."""
    pending = [value]
    while pending:
        for number, inner in wire.fields(pending.pop()):
            if isinstance(inner, int):
                continue
            if number == 10:  # func: NameAttrList
                yield from wire.texts(inner, 1)
                pending += [each for _, each in wire.map_entries(inner, 2)]
            elif number == 1:  # list
                for function in wire.messages(inner, 9):
                    yield from wire.texts(function, 1)
                    pending += [each for _, each in wire.map_entries(function, 2)]


@dataclass(frozen=True)
class Function:
    """A function of the library: the names of its arguments, and its body."""

    name: str
    arguments: tuple[str, ...]
    implements: tuple[str, ...]
    message: memoryview

    def nodes(self) -> Iterator[Node]:
        return map(_node, wire.messages(self.message, 3))


@dataclass
class Graph:
    """A GraphDef. A name that comes twice keeps all its nodes."""

    nodes: dict[str, list[Node]] = field(default_factory=dict)
    functions: dict[str, list[Function]] = field(default_factory=dict)
    implementations: dict[str, list[str]] = field(default_factory=dict)
    """The functions that implement an interface, by its name: TensorFlow may replace one by another."""
    gradients: dict[str, list[str]] = field(default_factory=dict)
    """The functions that compute the gradient of a function."""

    def add(self, message: memoryview) -> None:
        """Add a GraphDef, or one piece of it.

        Raises:
            Malformed: The message is no GraphDef.
        """
        for number, value in wire.fields(message):
            if isinstance(value, int):
                continue
            if number == 1:
                node = _node(value)
                self.nodes.setdefault(node.name, []).append(node)
            elif number == 2:
                for each in wire.messages(value, 1):
                    self._add_function(each)
                for each in wire.messages(value, 2):
                    for name in wire.texts(each, 1):
                        self.gradients.setdefault(name, []).extend(wire.texts(each, 2))

    def _add_function(self, message: memoryview) -> None:
        for name in {name for signature in wire.messages(message, 1) for name in wire.texts(signature, 1)}:
            arguments = tuple(
                wire.text(argument, 1)
                for signature in wire.messages(message, 1)
                for argument in wire.messages(signature, 2)
            )
            interfaces = tuple(
                text
                for key, value in wire.map_entries(message, 5)
                if key == "api_implements"
                for text in wire.texts(value, 2)
            )
            self.functions.setdefault(name, []).append(Function(name, arguments, interfaces, message))
            for interface in interfaces:
                self.implementations.setdefault(interface, []).append(name)


def _node(message: memoryview) -> Node:
    name, operations, inputs, attributes = "", [], [], []
    for number, value in wire.fields(message):
        if isinstance(value, int):
            continue
        if number == 1:
            name = wire.text_of(value)
        elif number == 2:
            operations.append(wire.text_of(value))
        elif number == 3:
            inputs.append(wire.text_of(value))
        elif number == 5:
            attributes.append(value)
    return Node(name, tuple(operations), tuple(inputs), tuple(attributes))
