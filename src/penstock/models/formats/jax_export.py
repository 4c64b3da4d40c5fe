"""Functions that `jax.export` serialized: a FlatBuffer around a StableHLO module."""

import os

from penstock.core.kinds import FileFacts
from penstock.models.facts import Malformed, damaged
from penstock.models.formats import stablehlo
from penstock.models.scan import flat_buffers, mlir, wire
from penstock.models.single_file import SingleFile

_SUFFIXES = (".jax", ".jaxexport", ".jax_export", ".export")
_VERSION, _FUNCTION_NAME, _MODULE = 0, 1, 13


def _is_ours(location: str) -> bool:
    return location.lower().endswith(_SUFFIXES)


def _look(path: str, own: tuple[str, ...]) -> FileFacts:
    """What the export says about itself. The format has no mark of its own: the module inside of it is the proof."""
    try:
        table = flat_buffers.root(wire.opened(path))
        module = bytes(table.data(_MODULE))
        if not module.startswith(mlir.BYTECODE):
            raise Malformed("it holds no StableHLO module")
        version, name = table.number(_VERSION, 2), table.text(_FUNCTION_NAME)
    except Malformed as error:
        hint = "write what jax.export.export(...)(...).serialize() gives"
        raise damaged(path, "what jax.export serialized", error, hint) from None
    writer = f"JAX export, format {version}, function {name} ({stablehlo.writer(module)})"
    return FileFacts(writer, os.path.getsize(path), stablehlo.needs_trust(module))


FORMAT = SingleFile("jax_export", "a JAX export", ("stablehlo",), _is_ours, _look).format(".jax")
