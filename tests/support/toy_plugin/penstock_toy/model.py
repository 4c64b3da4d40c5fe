"""`.factor` files: a model that multiplies by the number in its file."""

from __future__ import annotations

import os

from penstock.core.kinds import FileFacts, ModelFormat
from penstock.core.records import ModelFile
from penstock.models import digest


def recognise(
    location: str, *, trust: bool = False, signature: str | None = None, own: tuple[str, ...] = ()
) -> ModelFile | None:
    if not location.endswith(".factor"):
        return None
    return ModelFile("toy", os.path.abspath(location), digest.of_files([("model", location)]), ("toy",))


def facts(file: ModelFile) -> FileFacts:
    return FileFacts("a toy", os.path.getsize(file.location))


FORMAT = ModelFormat("toy", ".factor", recognise, facts)
