"""Frozen graphs: a `.pb` file with a TensorFlow graph whose variables have become constants."""

import os

from penstock.core.kinds import FileFacts
from penstock.errors import ModelError
from penstock.models.facts import Malformed, damaged
from penstock.models.scan import wire
from penstock.models.scan.graph import Graph
from penstock.models.scan.op_reachability import Reach
from penstock.models.single_file import SingleFile

_HINT = "a frozen graph is a serialized GraphDef, as tf.compat.v1.graph_util.convert_variables_to_constants gives it"


def _is_ours(location: str) -> bool:
    """Whether a path ends in `.pb`, and is not the graph of a SavedModel."""
    is_in_folder = os.path.basename(location) == "saved_model.pb" and os.path.isfile(location)
    return location.lower().endswith(".pb") and not os.path.isdir(location) and not is_in_folder


def _look(path: str, own: tuple[str, ...]) -> FileFacts:
    """What the graph says about itself. It does not say which TensorFlow wrote it."""
    message = wire.opened(path)
    try:
        _refuse_others(path, message)
        graph = Graph()
        graph.add(message)
        if not graph.nodes:
            raise Malformed("it holds no node")
        if not all(name and any(node.operations) for name, same in graph.nodes.items() for node in same):
            raise Malformed("a node has no name or no operation")
        reach = Reach(graph)
        # Which outputs will be asked for is not known yet, so every node counts.
        reach.enter_all()
    except Malformed as error:
        raise damaged(path, "a frozen graph", error, _HINT) from None
    return FileFacts(None, os.path.getsize(path), reach.sentences())


def _refuse_others(path: str, message: memoryview) -> None:
    """Refuse other `.pb` files: a graph begins with a node, SavedModels and ONNX models with a version number."""
    first = next(wire.fields(message), None)
    if first is None:
        raise Malformed("it is empty")
    if first[0] == 1 and isinstance(first[1], int):
        is_saved_model = any(True for _ in wire.messages(message, 2)) and not any(
            True for _ in wire.messages(message, 7)
        )
        raise ModelError(
            "this is a SavedModel's graph, without its folder" if is_saved_model else "this is not a TensorFlow graph",
            received=path,
            hint="give the folder, in which the file is called saved_model.pb"
            if is_saved_model
            else "if it is an ONNX model, rename it to .onnx",
        )


FORMAT = SingleFile("frozen_graph", "a frozen graph", ("tensorflow",), _is_ours, _look).format(".pb", has_steps=True)
