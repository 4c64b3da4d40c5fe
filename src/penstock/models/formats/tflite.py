"""`.tflite` files: a FlatBuffer with operators, tensors and signatures."""

import os
from dataclasses import dataclass, field

from penstock.core.kinds import FileFacts, ModelFormat
from penstock.core.records import ModelFile
from penstock.models import digest
from penstock.models.facts import Malformed, damaged, first_bytes, listed, refuse_untrusted, require_file
from penstock.models.scan import flat_buffers, operations, paths, wire

_MAGIC = b"TFL3"
_OPERATOR_CODES, _DESCRIPTION, _BUFFERS, _METADATA, _EXTERNAL_GROUPS = 1, 3, 4, 6, 8
_FLEX = "Flex"
_BY_SETTINGS = "can reach files or other processes"


def recognise(
    location: str, *, trust: bool = False, signature: str | None = None, own: tuple[str, ...] = ()
) -> ModelFile | None:
    """The model behind a path that ends in `.tflite` or `.lite`, or that begins as one; None for any other path."""
    is_named = location.lower().endswith((".tflite", ".lite"))
    if not is_named and not (os.path.isfile(location) and os.access(location, os.R_OK) and _begins_as_one(location)):
        return None
    path = require_file(location)
    if not _begins_as_one(path):
        raise damaged(location, "a TFLite model", "it does not begin as one")
    seen = _look(path)
    refuse_untrusted(location, seen.needs_trust, trust)
    return ModelFile("tflite", path, digest.of_files([("model", path)]), ("tflite",), signature, trust)


def facts(file: ModelFile) -> FileFacts:
    """What the file tells about itself."""
    seen = _look(file.location)
    notes = (f"it uses operators of its own: {listed(seen.custom)}",) if seen.custom else ()
    return FileFacts(seen.writer, os.path.getsize(file.location), tuple(seen.needs_trust), notes)


def _begins_as_one(path: str) -> bool:
    return first_bytes(path, 8)[4:] == _MAGIC


@dataclass
class _Seen:
    writer: str | None = None
    custom: list[str] = field(default_factory=list)
    needs_trust: list[str] = field(default_factory=list)


def _look(path: str) -> _Seen:
    seen = _Seen()
    try:
        model = flat_buffers.root(wire.opened(path))
        for code in model.tables(_OPERATOR_CODES):
            name = code.text(1)
            # TensorFlow's own operations run inside of TFLite under their name with a prefix.
            # Their settings are not looked at here: those that reach beyond the graph with some need trust with any.
            operation = name.removeprefix(_FLEX)
            why = operations.why(operation) or (_BY_SETTINGS if operation in operations.BY_ATTRIBUTES else None)
            if name.startswith(_FLEX) and why is not None:
                seen.needs_trust.append(f"it {why}: {operation}")
            elif name and not name.startswith(_FLEX):
                seen.custom.append(name)
        outside = [group.text(0) for group in model.tables(_EXTERNAL_GROUPS) if paths.climbs(group.text(0))]
        seen.needs_trust += [f"it reads a file outside of its folder: {listed(outside)}"] if outside else []
        seen.writer = _writer(model)
    except Malformed as error:
        raise damaged(path, "a TFLite model", error) from None
    return seen


def _writer(model: flat_buffers.Table) -> str | None:
    """What converted it: the description, and the version of the runtime that it asks for."""
    description = model.text(_DESCRIPTION).rstrip(".")
    buffers = list(model.tables(_BUFFERS))
    for entry in model.tables(_METADATA):
        index = entry.number(1, 4)
        if entry.text(0) == "min_runtime_version" and index < len(buffers):
            version = bytes(buffers[index].data(0)).rstrip(b"\0").decode("ascii", "replace")
            return f"{description or 'TFLite'} (runs from TensorFlow {version} on)" if version else description
    return description or None


FORMAT = ModelFormat("tflite", ".tflite", recognise, facts)
