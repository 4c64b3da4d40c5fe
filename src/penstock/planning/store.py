"""Where plans and converted steps are kept between runs: a cache folder of the user, written whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from penstock import steps
from penstock.core.plans import Plan, plan_from_json
from penstock.core.records import Binding, Device, ModelFile, TensorSpec
from penstock.errors import UsageError
from penstock.options import PredictOptions
from penstock.packages import CONVERTER, PACKAGES
from penstock.pool.devices import usable_cores

_KEPT_CONVERSIONS = 16
_OF_THE_INPUT = ("skip", "limit", "sample", "sample_by", "seed", "row_timeout")
"""Options that say which rows are taken: the plan for the others is the same."""


def cache_folder() -> str:
    """`$PENSTOCK_CACHE`, or `penstock` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("PENSTOCK_CACHE") or os.path.join(base, "penstock")


def plan_key(
    model: ModelFile,
    schema: Mapping[str, TensorSpec],
    options: PredictOptions,
    devices: Iterable[Device],
    versions: Mapping[str, str],
) -> str:
    """What a plan is good for: this model, fed such columns, on these devices, by these versions."""
    asked = steps.as_request(options)
    known = {
        "model": [model.digest, model.signature, dict(model.constants), model.precision],
        "columns": {name: str(spec) for name, spec in schema.items()},
        "inputs": {name: list(columns) for name, columns in options.inputs.items()},
        "asked": {name: value for name, value in asked.items() if name not in _OF_THE_INPUT},
        "answers": [options.outputs, options.top_k, options.argmax, options.as_example, options.tolerance],
        "pinned": [
            options.runtime,
            options.batch_size,
            options.threads,
            str(options.devices),
            options.replicas_per_device,
            options.memory_fraction,
        ],
        "devices": [[device.kind, device.name, device.memory_bytes] for device in devices],
        "cores": usable_cores(),
        "versions": dict(versions),
    }
    return _digest(known)


def installed() -> dict[str, str]:
    """The versions of everything that a plan may choose."""
    found = {name: package.version for name, package in {**PACKAGES, "converter": CONVERTER}.items()}
    return {name: version for name, version in found.items() if version is not None}


def load_plan(key: str) -> Plan | None:
    """The plan that was found before; None where there is none that can be used."""
    path = _plan_path(key)
    try:
        with open(path, encoding="utf-8") as file:
            plan = plan_from_json(json.load(file), path)
    except (OSError, ValueError, UsageError):
        return None  # none there, or of another version: a new one takes its place
    converted = plan.choice.converted
    return plan if converted is None or is_whole(converted) else None


def save_plan(plan: Plan) -> None:
    """Keep a plan. A cache that cannot be written costs time, not the job."""
    path = _plan_path(plan.key)
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=os.path.dirname(path), delete=False, encoding="utf-8") as file:
            json.dump(plan.as_json(), file, indent=1)
        os.replace(file.name, path)


def forget(plan: Plan) -> None:
    """Drop a plan that does not run any more, with what was converted for it."""
    with contextlib.suppress(OSError):
        os.remove(_plan_path(plan.key))
    if plan.choice.converted is not None:
        shutil.rmtree(plan.choice.converted, ignore_errors=True)


def read_plan(path: str) -> Plan:
    """The plan in a file that the user named.

    Raises:
        UsageError: It cannot be read, or is no plan.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return plan_from_json(json.load(file), path)
    except (OSError, ValueError) as error:
        raise UsageError(
            "the plan cannot be read", received=f"--plan {path}: {error}", allowed="what `penstock plan --json` prints"
        ) from None


def conversion_folder(model: ModelFile, bindings: Iterable[Binding]) -> str:
    """Where the converted step of this model, fed in this way, belongs."""
    known = {
        "model": [model.digest, model.signature, dict(model.constants), list(model.inputs), model.precision],
        "scaling": asdict(model.scaling) if model.scaling is not None else None,
        "answers": asdict(model.answers) if model.answers is not None else None,
        "bindings": [asdict(binding) for binding in bindings],
        "versions": {name: PACKAGES[name].version for name in ("tensorflow", "tf_keras")}
        | {"tf2onnx": CONVERTER.version},
    }
    return os.path.join(cache_folder(), "converted", _digest(known))


def is_whole(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, "model.onnx")) and os.path.isfile(os.path.join(folder, "signature.json"))


def touch(folder: str) -> None:
    """It is used now: it is not among those that go first."""
    with contextlib.suppress(OSError):
        os.utime(folder)


@contextlib.contextmanager
def staged(folder: str) -> Iterator[str]:
    """A folder beside `folder` that takes its place when all went well: other runs see a whole one, or none."""
    parent = os.path.dirname(folder)
    os.makedirs(parent, exist_ok=True)
    _drop_oldest(parent)
    staging = tempfile.mkdtemp(prefix=".staging-", dir=parent)
    try:
        yield staging
        if is_whole(staging):
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # another run was faster with the same step
                os.replace(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def converted_model(model: ModelFile, folder: str) -> ModelFile:
    """The model behind a converted step: scaling and ranking are inside it already."""
    return replace(
        model,
        kind="converted",
        location=folder,
        runtimes=("openvino", "onnx", "onnx-tensorrt"),
        scaling=None,
        answers=None,
    )


def _drop_oldest(parent: str) -> None:
    """Converted steps are as large as their models: only the latest are kept."""
    folders = [entry for entry in os.scandir(parent) if entry.is_dir() and not entry.name.startswith(".")]
    folders.sort(key=lambda entry: entry.stat().st_mtime)
    for entry in folders[: max(0, len(folders) - _KEPT_CONVERSIONS + 1)]:
        shutil.rmtree(entry.path, ignore_errors=True)


def _plan_path(key: str) -> str:
    return os.path.join(cache_folder(), "plans", f"{key}.json")


def _digest(known: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()[:32]
