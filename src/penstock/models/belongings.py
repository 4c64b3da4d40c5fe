"""What belongs to a model besides its file: its weights, the code of its classes. The digest covers all of it."""

import glob
import hashlib
import os
from dataclasses import replace

from penstock.core.records import ModelFile
from penstock.errors import ModelError, UsageError
from penstock.models import digest
from penstock.models.formats import h5


def with_belongings(
    file: ModelFile, weights: str | None, custom_objects: tuple[str, ...], *, trust: bool = False
) -> ModelFile:
    """The model with its weights and the modules of its own classes.

    Raises:
        UsageError: Weights are given for a model that has its own, because no function builds it.
        ModelError: The weights or a module are not there.
    """
    if weights is None and not custom_objects:
        return file
    if weights is not None and file.kind != "builder":
        raise UsageError(
            "--weights is for a model that a function builds",
            received=f"{file.location}, which is of kind {file.kind}",
            allowed="module:function",
        )
    known = [file.digest, *(_digest_of_own(name) for name in custom_objects)]
    if weights is not None:
        weights = os.path.abspath(weights)
        known.append(_digest_of_weights(weights, trust))
    combined = hashlib.sha256("\n".join(known).encode()).hexdigest()
    return replace(file, weights=weights, custom_objects=custom_objects, digest=combined)


def num_bytes(location: str) -> int:
    """The size of a model on disk; 0 if there is no file. For a folder of numbered exports, the largest one counts."""
    if os.path.isdir(location):
        numbered = [name for name in os.listdir(location) if name.isdigit()]
        if numbered and not os.path.exists(os.path.join(location, "saved_model.pb")):
            return max(num_bytes(os.path.join(location, name)) for name in numbered)
        paths = (os.path.join(parent, name) for parent, _, names in os.walk(location) for name in names)
        return sum(os.path.getsize(path) for path in paths if os.path.isfile(path))
    return os.path.getsize(location) if os.path.isfile(location) else 0


def _digest_of_weights(path: str, trust: bool) -> str:
    """The digest of a file of weights, or of the files of a TensorFlow checkpoint that is given by its prefix."""
    if os.path.isfile(path):
        return h5.check_weights(path, trust=trust)
    files = sorted(glob.glob(glob.escape(path) + ".*"))
    if not files:
        raise ModelError(
            "no such file of weights", received=f"--weights {path}", allowed="a .h5 file, or the prefix of a checkpoint"
        )
    return digest.of_files((os.path.basename(name), name) for name in files)


def _digest_of_own(name: str) -> str:
    module_digest = digest.of_module(name)
    if module_digest is None:
        raise ModelError(
            "the module of custom objects is not found",
            received=f"--custom-objects {name}",
            allowed="the name of a module, importable from this folder",
        )
    return module_digest
