"""The manifest of a training job: what it was asked for, and what its weights depend on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.core.records import Fragment
from penstock.errors import OutputError
from penstock.options import class_names
from penstock.options.class_names import ClassNames
from penstock.storage.disk import INTERNAL
from penstock.storage.manifest import FIT, KIND, MANIFEST
from penstock.storage.places import Place
from penstock.storage.seal import CHECKSUM, check_seal, sealed

VERSION = 2
_VERSION = "version"
RESULT = f"{INTERNAL}/result.json"
"""Written last: where it is, training is over."""


@dataclass(frozen=True)
class FitManifest:
    """A training job as it was started.

    Args:
        request: What the user asked for, as plain JSON: enough to start the job again.
        others: Options that change no weight, as plain JSON.
        model_digest: The digest of the model that is trained.
        fingerprint: A digest of the model, the input and every option that decides the weights.
        fragments: The input files, those of validation last.
        devices: What it trains on, as `--devices` has it: the number of devices decides bits.
        threads: The threads of the framework: they decide bits, too.
        backend: The backend of Keras.
        classes: The names of classes, where labels are text; by output, if there are several.
        versions: The versions of what wrote this.
        workers: How many processes began it; 0 on one machine.
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
    workers: int = 0

    def save(self, place: Place) -> None:
        """Put the manifest into its place, whole."""
        place.write(MANIFEST, sealed({KIND: FIT, _VERSION: VERSION, **asdict(self)}))


def load_fit_manifest(place: Place) -> FitManifest | None:
    """The manifest of the training job in a place; None where there is no such job.

    Raises:
        OutputError: It is damaged, or of another version.
    """
    content = place.read(MANIFEST)
    if content is None:
        return None
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None  # whatever it is, it is no training job that can be read
    if not isinstance(document, dict) or document.get(KIND) != FIT:
        return None
    address = place.address(MANIFEST)
    try:
        version = document.get(_VERSION, 1)  # version 1 kept this field in another place
        if version != VERSION:
            raise ValueError(f"version {version}, not {VERSION}")
        check_seal(content)
        records = {
            "fragments": tuple(Fragment(**entry) for entry in document["fragments"]),
            "classes": class_names.of(document["classes"]),
        }
        plain = {name: value for name, value in document.items() if name not in (CHECKSUM, KIND, _VERSION)}
        return FitManifest(**plain | records)
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
