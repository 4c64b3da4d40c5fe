"""The manifest of a training job: what it was asked for, and what its weights depend on."""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.core.records import Fragment
from penstock.errors import OutputError
from penstock.options import class_names
from penstock.options.class_names import ClassNames
from penstock.storage.disk import INTERNAL
from penstock.storage.manifest import FIT, KIND, MANIFEST
from penstock.storage.places import Place

VERSION = 1
RESULT = f"{INTERNAL}/result.json"
"""Written last: where it is, training is over."""


@dataclass(frozen=True)
class FitManifest:
    """A training job as it was started.

    Args:
        request: What the user asked for, as plain JSON: enough to start the job again.
        others: Options that change no weight, as plain JSON.
        model_digest: Of the model that is trained.
        fingerprint: A digest of the model, the input and every option that decides the weights.
        fragments: The input files, those of validation last.
        devices: What it trains on, as `--devices` has it: the number of devices decides bits.
        threads: Of the framework: they decide bits, too.
        backend: Of Keras.
        classes: The names of classes, where labels are text; by output, if there are several.
        versions: What wrote this.
    """

    request: dict[str, Any]
    others: dict[str, Any]
    model_digest: str
    fingerprint: str
    fragments: tuple[Fragment, ...]
    devices: str
    threads: int
    backend: str
    classes: ClassNames = ()
    versions: dict[str, str] = field(default_factory=dict)

    def save(self, place: Place) -> None:
        """Put the manifest into its place, whole."""
        document = {KIND: FIT, "version": VERSION, **asdict(self)}
        body = json.dumps(document)
        place.write(MANIFEST, json.dumps({"checksum": zlib.crc32(body.encode()), "body": body, KIND: FIT}).encode())


def load_fit_manifest(place: Place) -> FitManifest | None:
    """The manifest of the training job in a place; None where there is no such job.

    Raises:
        OutputError: It is damaged, or of another version.
    """
    content = place.read(MANIFEST)
    try:
        document = json.loads(content) if content is not None else None
    except (ValueError, RecursionError):
        return None  # whatever it is, it is no training job that can be read
    if not isinstance(document, dict) or document.get(KIND) != FIT:
        return None
    address = place.address(MANIFEST)
    try:
        if zlib.crc32(document["body"].encode()) != document["checksum"]:
            raise ValueError("it was changed since penstock wrote it: its checksum is another")
        body = json.loads(document["body"])
        version = body.pop("version")
        if version != VERSION:
            raise ValueError(f"version {version}, not {VERSION}")
        del body[KIND]
        fragments = tuple(Fragment(**entry) for entry in body.pop("fragments"))
        return FitManifest(**{**body, "fragments": fragments, "classes": class_names.of(body["classes"])})
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise OutputError(
            "the manifest of this training job cannot be used",
            received=f"{address}: {error}",
            hint="go on with the penstock that began it, or begin again in another folder",
        ) from error


def read_result(place: Place) -> dict[str, Any] | None:
    """What training ended with; None where it is not over."""
    content = place.read(RESULT)
    try:
        found = json.loads(content) if content is not None else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
