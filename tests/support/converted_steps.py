"""Converted steps with another content, which are whole nevertheless: as if they had been converted so."""

import json
from pathlib import Path

from penstock.storage.disk import checksum_of


def write_step(folder: Path, content: bytes) -> None:
    """Put a network into the folder of a converted step, new or in the place of the one that is there."""
    signature = folder / "signature.json"
    described = json.loads(signature.read_text(encoding="utf-8")) if signature.exists() else {}
    (folder / "model.onnx").write_bytes(content)
    written = described | {"step": folder.name, "num_bytes": len(content), "digest": checksum_of(content)}
    signature.write_text(json.dumps(written), encoding="utf-8")
