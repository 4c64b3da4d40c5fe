"""Compiled steps that are kept from run to run, in the user's cache: the second start of a model compiles nothing.

JAX and TensorFlow find a step by all that decides it: the program, its shapes, and the flags of the compiler. Beside
each file lies its digest, which is written once the file is whole. A file that was cut short, altered or put there by
another user is removed before the framework reads it, and is then made anew. Another process may just be writing a new
file without a digest, so such a file stays for some minutes; only a process that found the name free writes its digest.
A process that was killed may leave half a file: JAX cannot unpack it, and compiles the step.

Kernels are chosen without timing them (see `environment.xla_flags`), so a kept step and a new one give the same bits,
and clearing the cache changes none.
"""

import contextlib
import hashlib
import json
import os
import platform
import shutil
import time

from penstock.core.kinds import installed_version
from penstock.core.records import Device, ModelFile
from penstock.private_cache import COMPILED, bytes_in, is_own, own_folder

_DIGEST = ".sha256"
_UNUSABLE = "unusable"
"""The file that says that a framework cannot keep the steps of this model."""
_PACKAGES = (
    "jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "jax-cuda12-pjrt", "jax-cuda13-pjrt", "keras",
    "tensorflow", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-cublas-cu12", "nvidia-cublas",
)  # fmt: skip
_LEAST_FREE_BYTES = 1 << 30
"""No steps are kept on a disk with less free space than this: TensorFlow fails where it cannot write a step."""
_MOST_BYTES = 4 << 30
_RECENT_S = 3600.0
_UNFINISHED_S = 600.0
"""How long another process may take from its first file to its digests."""
_JAX = {
    # Every program is kept, however short its compilation: dozens of small ones add up.
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "JAX_RAISE_PERSISTENT_CACHE_ERRORS": "false",
    "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
}
_TF_FLAG = "--tf_xla_persistent_cache_directory="

_folder: str | None = None
"""Where this process keeps its steps; None where it keeps none."""
_found: frozenset[str] = frozenset()
"""The files that were in the folder when this process opened it."""


def keep_jax_steps(runtime: str, model: ModelFile, device: Device) -> None:
    """Have JAX keep what it compiles. To be called before JAX is imported."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return  # the user has a folder for it
    folder = _open(runtime, model, device)
    if folder is not None:
        os.environ.update(_JAX | {"JAX_COMPILATION_CACHE_DIR": folder})


def keep_tensorflow_steps(runtime: str, model: ModelFile, device: Device) -> None:
    """Have TensorFlow keep what XLA compiles for a GPU. To be called before TensorFlow is imported.

    On CPUs its cache does not work: tensorflow#57649.
    """
    flags = os.environ.get("TF_XLA_FLAGS", "")
    if device.kind != "gpu" or _TF_FLAG in flags:
        return
    folder = _open(runtime, model, device)
    if folder is not None and not folder.split()[1:]:  # TensorFlow takes a space for the end of a flag
        os.environ["TF_XLA_FLAGS"] = f"{flags} {_TF_FLAG}{folder}".strip()


def seal() -> None:
    """Write the digests of files that this process has added. To be called when something was compiled."""
    if _folder is None:
        return
    with contextlib.suppress(OSError):
        for name in _files(_folder):
            path = os.path.join(_folder, name)
            if name not in _found and not os.path.exists(path + _DIGEST):
                _write(path + _DIGEST, _digest(path))


def give_up(reason: str) -> bool:
    """Keep no more steps of this model, because the framework fails with them. Returns whether it kept them before."""
    global _folder
    if _folder is None:
        return False
    folder, _folder = _folder, None
    with contextlib.suppress(OSError):
        for name in _files(folder):
            _remove(os.path.join(folder, name))
        _write(os.path.join(folder, _UNUSABLE), reason)
    return True


def _open(runtime: str, model: ModelFile, device: Device) -> str | None:
    """The folder for the steps of a model; None where steps cannot be kept.

    Its files are whole, but for those that another process may just be writing.
    """
    global _folder, _found
    folder = own_folder(COMPILED, _key(runtime, model, device))
    try:
        if folder is None or os.path.exists(os.path.join(folder, _UNUSABLE)):
            return None
        _drop_oldest(os.path.dirname(folder))
        if shutil.disk_usage(folder).free < _LEAST_FREE_BYTES:
            return None
        paths = [os.path.join(folder, name) for name in os.listdir(folder)]
        for path in [path for path in paths if not _is_whole(path.removesuffix(_DIGEST)) and not _is_unfinished(path)]:
            _remove(path)
        _found = frozenset(_files(folder))
        os.utime(folder)
    except OSError:
        return None
    _folder = folder
    return folder


def _key(runtime: str, model: ModelFile, device: Device) -> str:
    facts = {
        "runtime": runtime,
        "model": model.digest,
        "device": [device.kind, device.name] if device.kind == "gpu" else _processor(),
        "flags": [os.environ.get(name) for name in ("XLA_FLAGS", "TF_XLA_FLAGS")],
        "versions": {name: installed_version(name) for name in _PACKAGES},
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _processor() -> list[str]:
    """What compiled code depends on in this machine's cores: several machines may share a home folder."""
    about = [platform.machine()]
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        about += sorted({line for line in file if line.startswith(("model name", "flags", "Features", "CPU part"))})
    return about


def _files(folder: str) -> list[str]:
    """The names of what a framework has written there."""
    return [name for name in os.listdir(folder) if not name.endswith(_DIGEST) and name != _UNUSABLE]


def _is_whole(path: str) -> bool:
    try:
        with open(path + _DIGEST, encoding="ascii") as file:
            return is_own(path) and is_own(path + _DIGEST) and file.read() == _digest(path)
    except (OSError, ValueError):
        return False


def _is_unfinished(path: str) -> bool:
    """Whether another process may just be writing this file: it is new, and the file or its digest is missing."""
    file = path.removesuffix(_DIGEST)
    try:
        has_both = os.path.exists(file) and os.path.exists(file + _DIGEST)
        return not has_both and is_own(path) and 0 <= time.time() - os.stat(path).st_mtime < _UNFINISHED_S
    except OSError:
        return False


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(path: str, text: str) -> None:
    """Write a small file, whole or not at all."""
    staging = f"{path}.{os.getpid()}{_DIGEST}"  # if a killed run leaves it, it is removed as a digest without a file
    with open(staging, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(staging, path)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.remove(path)


def _drop_oldest(parent: str) -> None:
    """Remove the steps of the models that were started longest ago, where all steps together take too much space."""
    folders = sorted(os.scandir(parent), key=lambda entry: -entry.stat().st_mtime)
    total = 0
    for entry in folders:
        total += bytes_in(entry.path)
        if total > _MOST_BYTES and time.time() - entry.stat().st_mtime > _RECENT_S:
            _remove(entry.path)
