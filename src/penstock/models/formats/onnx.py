"""`.onnx` files, with the files beside them that hold large tensors."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.core.kinds import FileFacts, ModelFormat
from penstock.core.records import ModelFile
from penstock.errors import ModelError
from penstock.models import digest
from penstock.models.facts import (
    Malformed,
    damaged,
    listed,
    refuse_signature,
    refuse_untrusted,
    require_file,
)
from penstock.models.scan import wire
from penstock.models.scan.paths import climbs, leads_out

_OWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training", "com.microsoft"})
_EXTERNAL = 1
_NESTED_TENSORS, _NESTED_GRAPHS, _NESTED_SPARSE = (5, 10), (6, 11), (22, 23)


def recognise(
    location: str, *, trust: bool = False, signature: str | None = None, own: tuple[str, ...] = ()
) -> ModelFile | None:
    """The model behind a path that ends in `.onnx`; None for any other path."""
    if not location.lower().endswith(".onnx"):
        return None
    path = require_file(location)
    seen = _look(path)
    refuse_signature("an ONNX file", signature)
    refuse_untrusted(location, seen.needs_trust, trust)
    missing = [name for name in seen.files if not os.path.isfile(_beside(path, name))]
    if missing:
        raise ModelError(
            "a file that the model keeps its weights in is not there",
            received=listed(missing),
            hint=f"it must lie beside {os.path.basename(location)}",
        )
    files = [("model", path), *((name, _beside(path, name)) for name in sorted(seen.files))]
    return ModelFile("onnx", path, digest.of_files(files), ("onnx",), trust=trust)


def facts(file: ModelFile) -> FileFacts:
    """What the file says about itself."""
    seen = _look(file.location)
    paths = [file.location, *(_beside(file.location, name) for name in seen.files)]
    size = sum(os.path.getsize(path) for path in paths if os.path.isfile(path))
    producer = " ".join(filter(None, (seen.producer, seen.producer_version))) or "unknown"
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in seen.opsets.items())
    foreign = [domain for domain in {**seen.opsets, **dict.fromkeys(seen.domains)} if domain not in _OWN_DOMAINS]
    notes = (f"it uses operators that ONNX Runtime must be taught: {listed(foreign)}",) if foreign else ()
    return FileFacts(f"{producer} (ONNX IR {seen.ir_version}, opset {opsets})", size, tuple(seen.needs_trust), notes)


@dataclass
class _OnnxFacts:
    ir_version: int = 0
    producer: str = ""
    producer_version: str = ""
    opsets: dict[str, int] = field(default_factory=dict)
    domains: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    needs_trust: list[str] = field(default_factory=list)


def _look(path: str) -> _OnnxFacts:
    message = wire.opened(path)
    try:
        seen = _read_header(message)
        for tensor in _tensors(message, seen.domains):
            for name in _external_files(tensor):
                if name not in seen.files:
                    seen.files.append(name)
    except Malformed as error:
        raise damaged(path, "an ONNX model", error) from None
    home = os.path.realpath(os.path.dirname(path))
    for name in seen.files:
        if climbs(name) or leads_out(_beside(path, name), home):
            seen.needs_trust.append(f"it reads a file outside of its folder: {name}")
    return seen


def _read_header(message: memoryview) -> _OnnxFacts:
    seen = _OnnxFacts(
        producer=wire.text(message, 2),
        producer_version=wire.text(message, 3),
    )
    seen.ir_version = (wire.integers(message, 1) or [0])[-1]
    if not seen.ir_version or not any(True for _ in wire.messages(message, 7)):
        raise Malformed("it has no version or no graph")
    for opset in wire.messages(message, 8):
        seen.opsets[wire.text(opset, 1)] = (wire.integers(opset, 2) or [0])[-1]
    return seen


def _tensors(model: memoryview, domains: list[str]) -> Iterator[memoryview]:
    """Every tensor of a model: in its graph, graphs inside nodes, its functions. `domains` gets the nodes' domains."""
    graphs = [*wire.messages(model, 7)]
    for training in wire.messages(model, 20):
        graphs += [*wire.messages(training, 1), *wire.messages(training, 2)]
    nodes = [node for function in wire.messages(model, 25) for node in wire.messages(function, 7)]
    while graphs or nodes:
        if graphs:
            for number, value in wire.fields(graphs.pop()):
                if isinstance(value, int):
                    continue
                if number == 1:
                    nodes.append(value)
                elif number == 5:
                    yield value
                elif number == 15:
                    yield from _parts_of_sparse(value)
            continue
        node = nodes.pop()
        domains += [domain for domain in wire.texts(node, 7) if domain not in domains]
        for attribute in wire.messages(node, 5):
            for number, value in wire.fields(attribute):
                if isinstance(value, int):
                    continue
                if number in _NESTED_TENSORS:
                    yield value
                elif number in _NESTED_GRAPHS:
                    graphs.append(value)
                elif number in _NESTED_SPARSE:
                    yield from _parts_of_sparse(value)


def _parts_of_sparse(tensor: memoryview) -> Iterator[memoryview]:
    yield from wire.messages(tensor, 1)
    yield from wire.messages(tensor, 2)


def _external_files(tensor: memoryview) -> list[str]:
    """The files that a tensor's values lie in."""
    entries = [(wire.text(entry, 1), wire.texts(entry, 2)) for entry in wire.messages(tensor, 13)]
    if not entries or _EXTERNAL not in wire.integers(tensor, 14):
        return []
    return [value for key, values in entries if key == "location" for value in values]


def _beside(path: str, name: str) -> str:
    return os.path.join(os.path.dirname(path), name)


FORMAT = ModelFormat("onnx", ".onnx", recognise, facts)
