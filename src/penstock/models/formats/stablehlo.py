"""StableHLO modules: `.mlir`, `.mlirbc` and `.stablehlo`, in bytecode or as text."""

import os
import re

from penstock.core.kinds import FileFacts
from penstock.models.facts import damaged, listed, too_large
from penstock.models.scan import mlir
from penstock.models.single_file import SingleFile

_SUFFIXES = (".mlir", ".mlirbc", ".stablehlo")
_TEXT = re.compile(rb"\bmodule\b|\bfunc\.func\b|\bstablehlo\.|\bvhlo\.")


def _is_ours(location: str) -> bool:
    return location.lower().endswith(_SUFFIXES)


def _look(path: str, own: tuple[str, ...]) -> FileFacts:
    try:
        with open(path, "rb") as file:
            module = file.read()
    except (MemoryError, OverflowError) as error:
        raise too_large(path) from error
    if not module.startswith(mlir.BYTECODE) and not _TEXT.search(module):
        raise damaged(path, "a StableHLO module", "it is neither MLIR bytecode nor MLIR text")
    return FileFacts(writer(module), os.path.getsize(path), needs_trust(module))


def needs_trust(module: bytes) -> tuple[str, ...]:
    targets = mlir.callbacks_in(module)
    return (f"it calls back into Python: {listed(targets)}",) if targets else ()


def writer(module: bytes) -> str:
    """The producer that bytecode names after its version; text has none."""
    if not module.startswith(mlir.BYTECODE):
        return "MLIR text"
    producer = module[len(mlir.BYTECODE) + 1 :][:64].partition(b"\0")[0]
    return f"MLIR bytecode, {producer.decode('ascii', 'replace')}"


FORMAT = SingleFile("stablehlo", "a StableHLO module", ("stablehlo",), _is_ours, _look).format(".mlir")
