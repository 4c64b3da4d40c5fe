"""Frozen graphs: a `.pb` file with a TensorFlow graph whose variables have become constants."""

import os

from penstock.core.kinds import FileFacts, ModelFormat
from penstock.core.records import ModelFile
from penstock.errors import ModelError
from penstock.models import digest
from penstock.models.facts import (
    Malformed,
    damaged,
    refuse_signature,
    refuse_untrusted,
    require_file,
)
from penstock.models.scan import wire
from penstock.models.scan.graph import Graph
from penstock.models.scan.op_reachability import Reach

_HINT = "a frozen graph is a serialized GraphDef, as tf.compat.v1.graph_util.convert_variables_to_constants gives it"


def recognise(
    location: str, *, trust: bool = False, signature: str | None = None, own: tuple[str, ...] = ()
) -> ModelFile | None:
    """The model behind a path that ends in `.pb`; None for any other path, and for the graph of a SavedModel."""
    if not location.lower().endswith(".pb") or os.path.isdir(location):
        return None
    if os.path.basename(location) == "saved_model.pb" and os.path.isfile(location):
        return None
    path = require_file(location)
    needs_trust = _needs_trust(path)
    refuse_signature("a frozen graph", signature)
    refuse_untrusted(location, needs_trust, trust)
    return ModelFile("frozen_graph", path, digest.of_files([("model", path)]), ("tensorflow",), trust=trust)


def facts(file: ModelFile) -> FileFacts:
    """What the graph tells about itself. It does not say which TensorFlow wrote it."""
    return FileFacts(None, os.path.getsize(file.location), _needs_trust(file.location))


def _needs_trust(path: str) -> tuple[str, ...]:
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
    return reach.sentences()


def _refuse_others(path: str, message: memoryview) -> None:
    """Other things are called `.pb`, too. A graph begins with nodes; those begin with a version number."""
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


FORMAT = ModelFormat("frozen_graph", ".pb", recognise, facts, has_steps=True)
