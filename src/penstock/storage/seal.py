"""The seal of a manifest: it begins with the checksum of everything behind it, so that edits by hand are noticed."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from typing import Any

CHECKSUM = "checksum"
_SEAL = re.compile(rb'\{"checksum": "([0-9a-f]{8})", ')


def sealed(document: Mapping[str, Any]) -> bytes:
    """A document as JSON with its seal.

    >>> sealed({"rows": 3})
    b'{"checksum": "1dc039e5", "rows": 3}'
    """
    body = json.dumps(document).encode()[1:]
    return b'{"%s": "%08x", %s' % (CHECKSUM.encode(), zlib.crc32(body), body)


def check_seal(content: bytes) -> None:
    """Check that a document is as it was written.

    Raises:
        ValueError: It is not.
    """
    seal = _SEAL.match(content)
    if seal is None or seal[1] != b"%08x" % zlib.crc32(content[seal.end() :]):
        raise ValueError("it was changed since penstock wrote it: its checksum is another")
