"""`.keras` files: a zip with the architecture, the weights and the version that wrote them."""

from __future__ import annotations

import json
import os
import zipfile

from penstock.core.records import ModelFile
from penstock.errors import ModelError
from penstock.models import digest


def recognise(location: str, *, trust: bool = False, signature: str | None = None) -> ModelFile | None:
    """The model behind a path that ends in `.keras`; None for any other path."""
    if not location.lower().endswith(".keras"):
        return None
    if not os.path.isfile(location):
        raise ModelError("no such model file", received=location)
    if not zipfile.is_zipfile(location):
        raise ModelError(
            "the file is damaged or not a .keras file",
            received=location,
            hint="save it again with model.save('model.keras')",
        )
    if signature is not None:
        raise ModelError("a .keras file has no signatures", received=f"--signature {signature}")
    path = os.path.abspath(location)
    runtimes = ("tensorflow", "jax", "torch")
    return ModelFile("keras", path, digest.of_files([("model", path)]), runtimes, trust=trust)


def writer(path: str) -> str:
    """What wrote a `.keras` file, as its metadata says."""
    try:
        with zipfile.ZipFile(path) as archive:
            metadata = json.loads(archive.read("metadata.json"))
        return f"Keras {metadata['keras_version']}, {metadata.get('date_saved', 'date unknown')}"
    except (KeyError, ValueError, zipfile.BadZipFile):
        return "Keras, version unknown"
