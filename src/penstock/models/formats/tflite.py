"""`.tflite` files: a FlatBuffer with operators, tensors and signatures."""

import os

from penstock.core.kinds import FileFacts
from penstock.models.facts import Malformed, damaged, first_bytes, listed
from penstock.models.scan import flat_buffers, operations, paths, wire
from penstock.models.single_file import SingleFile

_MAGIC = b"TFL3"
_OPERATOR_CODES, _DESCRIPTION, _BUFFERS, _METADATA, _EXTERNAL_GROUPS = 1, 3, 4, 6, 8
_FLEX = "Flex"
_BY_SETTINGS = "can reach files or other processes"


def _is_ours(location: str) -> bool:
    """Whether a path ends in `.tflite` or `.lite`, or its file begins like a TFLite model."""
    if location.lower().endswith((".tflite", ".lite")):
        return True
    return os.path.isfile(location) and os.access(location, os.R_OK) and _begins_as_one(location)


def _begins_as_one(path: str) -> bool:
    return first_bytes(path, 8)[4:] == _MAGIC


def _look(path: str, own: tuple[str, ...]) -> FileFacts:
    if not _begins_as_one(path):
        raise damaged(path, "a TFLite model", "it does not begin as one")
    custom: list[str] = []
    needs_trust: list[str] = []
    try:
        model = flat_buffers.root(wire.opened(path))
        for code in model.tables(_OPERATOR_CODES):
            name = code.text(1)
            # TensorFlow's own operations run inside of TFLite under their name with a prefix.
            # Settings are not read here: an operation that reaches beyond the graph with some of them needs trust.
            operation = name.removeprefix(_FLEX)
            why = operations.why(operation) or (_BY_SETTINGS if operation in operations.BY_ATTRIBUTES else None)
            if name.startswith(_FLEX) and why is not None:
                needs_trust.append(f"it {why}: {operation}")
            elif name and not name.startswith(_FLEX):
                custom.append(name)
        outside = [group.text(0) for group in model.tables(_EXTERNAL_GROUPS) if paths.climbs(group.text(0))]
        needs_trust += [f"it reads a file outside of its folder: {listed(outside)}"] if outside else []
        writer = _writer(model)
    except Malformed as error:
        raise damaged(path, "a TFLite model", error) from None
    notes = (f"it uses operators of its own: {listed(custom)}",) if custom else ()
    return FileFacts(writer, os.path.getsize(path), tuple(needs_trust), notes)


def _writer(model: flat_buffers.Table) -> str | None:
    """What converted the model: its description, and the version of the runtime that it needs."""
    description = model.text(_DESCRIPTION).rstrip(".")
    buffers = list(model.tables(_BUFFERS))
    for entry in model.tables(_METADATA):
        index = entry.number(1, 4)
        if entry.text(0) == "min_runtime_version" and index < len(buffers):
            version = bytes(buffers[index].data(0)).rstrip(b"\0").decode("ascii", "replace")
            return f"{description or 'TFLite'} (runs from TensorFlow {version} on)" if version else description
    return description or None


FORMAT = SingleFile("tflite", "a TFLite model", ("tflite",), _is_ours, _look, has_signatures=True).format(".tflite")
