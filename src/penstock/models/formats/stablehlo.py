"""StableHLO modules: `.mlir`, `.mlirbc` and `.stablehlo`, in bytecode or as text."""

import os
import re

from penstock.core.kinds import FileFacts, ModelFormat
from penstock.core.records import ModelFile
from penstock.models import digest
from penstock.models.facts import (
    damaged,
    listed,
    refuse_signature,
    refuse_untrusted,
    require_file,
    too_large,
)
from penstock.models.scan import mlir

_SUFFIXES = (".mlir", ".mlirbc", ".stablehlo")
_TEXT = re.compile(rb"\bmodule\b|\bfunc\.func\b|\bstablehlo\.|\bvhlo\.")


def recognise(
    location: str, *, trust: bool = False, signature: str | None = None, own: tuple[str, ...] = ()
) -> ModelFile | None:
    """The module behind a path with one of the three suffixes; None for any other path."""
    if not location.lower().endswith(_SUFFIXES):
        return None
    path = require_file(location)
    module = _read(path)
    if not module.startswith(mlir.BYTECODE) and not _TEXT.search(module):
        raise damaged(location, "a StableHLO module", "it is neither MLIR bytecode nor MLIR text")
    refuse_signature("a StableHLO module", signature)
    refuse_untrusted(location, needs_trust(module), trust)
    return ModelFile("stablehlo", path, digest.of_files([("model", path)]), ("stablehlo",), trust=trust)


def facts(file: ModelFile) -> FileFacts:
    """What the module tells about itself."""
    module = _read(file.location)
    return FileFacts(writer(module), os.path.getsize(file.location), needs_trust(module))


def needs_trust(module: bytes) -> tuple[str, ...]:
    targets = mlir.callbacks_in(module)
    return (f"it calls back into Python: {listed(targets)}",) if targets else ()


def writer(module: bytes) -> str:
    """The producer that bytecode names after its version; text has none."""
    if not module.startswith(mlir.BYTECODE):
        return "MLIR text"
    producer = module[len(mlir.BYTECODE) + 1 :][:64].partition(b"\0")[0]
    return f"MLIR bytecode, {producer.decode('ascii', 'replace')}"


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except (MemoryError, OverflowError) as error:
        raise too_large(path) from error


FORMAT = ModelFormat("stablehlo", ".mlir", recognise, facts)
