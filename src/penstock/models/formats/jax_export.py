"""Functions that `jax.export` serialized: a FlatBuffer around a StableHLO module."""

import os

from penstock.core.kinds import FileFacts, ModelFormat
from penstock.core.records import ModelFile
from penstock.models import digest
from penstock.models.facts import Malformed, damaged, refuse_signature, refuse_untrusted, require_file
from penstock.models.formats import stablehlo
from penstock.models.scan import flat_buffers, mlir, wire

_SUFFIXES = (".jax", ".jaxexport", ".jax_export", ".export")
_VERSION, _FUNCTION_NAME, _MODULE = 0, 1, 13


def recognise(
    location: str, *, trust: bool = False, signature: str | None = None, own: tuple[str, ...] = ()
) -> ModelFile | None:
    """The function behind a path with one of the suffixes; None for any other path."""
    if not location.lower().endswith(_SUFFIXES):
        return None
    path = require_file(location)
    try:
        _, module = _look(path)
    except Malformed as error:
        hint = "write what jax.export.export(...)(...).serialize() gives"
        raise damaged(location, "what jax.export serialized", error, hint) from None
    refuse_signature("a JAX export", signature)
    refuse_untrusted(location, stablehlo.needs_trust(module), trust)
    return ModelFile("jax_export", path, digest.of_files([("model", path)]), ("stablehlo",), trust=trust)


def facts(file: ModelFile) -> FileFacts:
    """What the export tells about itself."""
    table, module = _look(file.location)
    version, name = table.number(_VERSION, 2), table.text(_FUNCTION_NAME)
    writer = f"JAX export, format {version}, function {name} ({stablehlo.writer(module)})"
    return FileFacts(writer, os.path.getsize(file.location), stablehlo.needs_trust(module))


def _look(path: str) -> tuple[flat_buffers.Table, bytes]:
    """The export and the module in it. The format has no mark of its own: the module inside of it is the proof."""
    table = flat_buffers.root(wire.opened(path))
    module = bytes(table.data(_MODULE))
    if not module.startswith(mlir.BYTECODE):
        raise Malformed("it holds no StableHLO module")
    return table, module


FORMAT = ModelFormat("jax_export", ".jax", recognise, facts)
