"""Protocol buffers and FlatBuffers written by hand, byte by byte: what a framework would never write is made here."""

from __future__ import annotations

import struct
from collections.abc import Sequence


def varint(value: int, extra_bytes: int = 0) -> bytes:
    """A number; with `extra_bytes`, in more bytes than it needs."""
    encoded = b""
    while value >= 0x80:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    if not extra_bytes:
        return encoded + bytes([value])
    return encoded + bytes([value | 0x80]) + b"\x80" * (extra_bytes - 1) + b"\0"


def field(number: int, content: bytes | str | int, extra_bytes: int = 0) -> bytes:
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    raw = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(raw), extra_bytes) + raw


def entry(key: str, value: bytes) -> bytes:
    """One entry of a map."""
    return field(1, key) + field(2, value)


def node(name: str, operation: str, *inputs: str, extra_bytes: int = 0, **attributes: bytes) -> bytes:
    """A NodeDef; attributes are given as AttrValue messages."""
    written = field(1, name) + field(2, operation, extra_bytes)
    written += b"".join(field(3, name) for name in inputs)
    return written + b"".join(field(5, entry(key, value)) for key, value in attributes.items())


def text_value(text: str) -> bytes:
    return field(2, text)


def function_value(name: str) -> bytes:
    return field(10, field(1, name))


def function(name: str, arguments: Sequence[str], *nodes: bytes, implements: str | None = None) -> bytes:
    """A FunctionDef."""
    signature = field(1, name) + b"".join(field(2, field(1, argument)) for argument in arguments)
    attribute = field(5, entry("api_implements", text_value(implements))) if implements else b""
    return field(1, signature) + b"".join(field(3, each) for each in nodes) + attribute


def graph(*nodes: bytes, functions: Sequence[bytes] = ()) -> bytes:
    """A GraphDef."""
    library = field(2, b"".join(field(1, each) for each in functions)) if functions else b""
    return b"".join(field(1, each) for each in nodes) + library


def signature(**outputs: str) -> bytes:
    """A SignatureDef that fetches tensors."""
    return b"".join(field(2, entry(key, field(1, tensor))) for key, tensor in outputs.items())


def saved_model(graph_def: bytes, *more: bytes, version: str = "2.15.0") -> bytes:
    """A SavedModel with one graph; `more` are fields of its MetaGraphDef."""
    meta_graph = field(1, field(5, version)) + field(2, graph_def) + b"".join(more)
    return field(1, 1) + field(2, meta_graph)


def flatbuffer(fields: Sequence[bytes | int | None], identifier: bytes = b"\0\0\0\0") -> bytes:
    """A table with vectors of bytes and 16-bit numbers."""
    vtable_bytes = 4 + 2 * len(fields)
    table = 8 + vtable_bytes + vtable_bytes % 4
    offsets, inline, tail = [], b"", b""
    end = table + 4 + 4 * len(fields)
    for number, value in enumerate(fields):
        offsets.append(0 if value is None else 4 + 4 * number)
        if isinstance(value, bytes):
            inline += struct.pack("<I", end + len(tail) - (table + 4 + 4 * number))
            tail += struct.pack("<I", len(value)) + value + b"\0" * (-len(value) % 4)
        else:
            inline += struct.pack("<HH", value or 0, 0)
    vtable = struct.pack(f"<HH{len(fields)}H", vtable_bytes, 4 + 4 * len(fields), *offsets)
    head = struct.pack("<I", table) + identifier + vtable
    return head.ljust(table, b"\0") + struct.pack("<i", table - 8) + inline + tail
