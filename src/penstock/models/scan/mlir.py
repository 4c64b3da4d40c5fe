"""MLIR modules: how they are recognised, and what in them would call back into the process."""

import re

BYTECODE = b"ML\xefR"
_TARGET = re.compile(rb"[A-Za-z0-9_.]*python[A-Za-z0-9_.]*callback[A-Za-z0-9_.]*")
_ESCAPE = re.compile(rb"\\([0-9A-Fa-f]{2})")


def callbacks_in(module: bytes) -> list[str]:
    """The targets of custom calls by which a module calls functions of the host, found by their names.

    Bytecode keeps all its texts as they are, in one section; in the text form they may be escaped.
    """
    plain = _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), module) if b"\\" in module else module
    return sorted({match.decode("ascii") for match in (*_TARGET.findall(plain), *_TARGET.findall(module))})
