"""`.h5` and `.hdf5` files: whole models of Keras 1, 2 and 3."""

import os
import zipfile
from typing import Any

from penstock.core.kinds import FileFacts
from penstock.errors import ModelError
from penstock.models import digest
from penstock.models.facts import Malformed, damaged, refuse_untrusted, require_file
from penstock.models.formats.keras import RUNTIMES, parsed, refuse_giant, weights_need_trust
from penstock.models.scan import hdf5, keras_config
from penstock.models.single_file import SingleFile

_SUFFIXES = (".h5", ".hdf5", ".hdf")
_WEIGHTS_GROUPS = frozenset({"layers", "vars", "_layer_checkpoint_dependencies", "model_weights"})


def _is_ours(location: str) -> bool:
    if location.lower().endswith(_SUFFIXES):
        return True
    return location.lower().endswith(".keras") and os.path.isfile(location) and hdf5.is_hdf5(require_file(location))


def _look(path: str, own: tuple[str, ...]) -> FileFacts:
    """What the file says about itself."""
    if not hdf5.is_hdf5(path):
        raise damaged(path, "an HDF5 file", "it does not begin as one")
    contents = _contents(path)
    if "model_config" not in contents.attributes:
        raise _no_model(path, contents)
    version = _text(contents.attributes.get("keras_version"))
    backend = _text(contents.attributes.get("backend"))
    # Keras 1 wrote its version from about 1.0.8 on; older files have none.
    writer = f"Keras {version or '1'}" + (f" on {backend}" if backend else "")
    return FileFacts(writer, os.path.getsize(path), tuple(_needs_trust(path, contents, own)))


def check_weights(location: str, *, trust: bool = False) -> str:
    """Check a file that holds only weights before a framework loads it, and return its digest.

    Raises:
        ModelError: It is not there, damaged, or reaches into other files without being trusted.
    """
    path = require_file(location)
    if hdf5.is_hdf5(path):
        refuse_untrusted(location, _contents(path).needs_trust, trust)
    elif location.lower().endswith(_SUFFIXES):
        raise damaged(location, "an HDF5 file", "it does not begin as one")
    elif zipfile.is_zipfile(path):
        refuse_untrusted(location, weights_need_trust(path), trust)
    return digest.of_files([("weights", path)])


def _contents(path: str) -> hdf5.Contents:
    def look() -> hdf5.Contents:
        return hdf5.look(path, os.path.getsize(path))

    try:
        hdf5.rehearse(look)
        return look()
    except Malformed as error:
        raise damaged(path, "an HDF5 file that can be used", error) from None


def _no_model(location: str, contents: hdf5.Contents) -> ModelError:
    is_weights = "layer_names" in contents.attributes or not _WEIGHTS_GROUPS.isdisjoint(contents.groups)
    if not is_weights:
        return ModelError(
            "the HDF5 file holds no Keras model", received=location, allowed="a file that model.save('model.h5') wrote"
        )
    return ModelError(
        "the file holds weights only, without the model they belong to",
        received=location,
        hint=f"penstock predict module:function --weights {location}",
    )


def _needs_trust(path: str, contents: hdf5.Contents, own: tuple[str, ...]) -> list[str]:
    try:
        config = parsed(_text(contents.attributes["model_config"]))
        refuse_giant(config, contents.num_bytes)
    except Malformed as error:
        raise damaged(path, "a Keras model", error) from None
    return keras_config.needs_trust(config, own) + contents.needs_trust


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value) if value is not None else ""


FORMAT = SingleFile("h5", "an .h5 file", RUNTIMES, _is_ours, _look).format(".h5", has_steps=True)
