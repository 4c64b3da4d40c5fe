"""SavedModel folders: a graph, its variables and its signatures."""

from __future__ import annotations

import os

from penstock.core.records import ModelFile
from penstock.errors import ModelError
from penstock.models import digest

_UNTRUSTED_OPERATIONS = ("PyFunc", "PyFuncStateless", "EagerPyFunc", "ReadFile", "WriteFile", "MatchingFiles")


def recognise(location: str, *, trust: bool = False, signature: str | None = None) -> ModelFile | None:
    """The model in a folder that holds `saved_model.pb`; None for anything else."""
    graph = os.path.join(location, "saved_model.pb")
    if not os.path.isfile(graph):
        return None
    path = os.path.abspath(location)
    found = untrusted_operations(graph)
    if found and not trust:
        raise ModelError(
            "the model runs operations that touch files or call Python",
            received=f"{location}: {', '.join(found)}",
            hint="if you trust where it came from: --trust-model",
        )
    return ModelFile("saved_model", path, digest.of_folder(path), ("tensorflow",), signature, trust)


def untrusted_operations(graph: str) -> list[str]:
    """The operations in a graph that reach beyond it, found by their names as protocol buffers write them."""
    with open(graph, "rb") as file:
        raw = file.read()
    return [name for name in _UNTRUSTED_OPERATIONS if b"\x12%c%s" % (len(name), name.encode()) in raw]
