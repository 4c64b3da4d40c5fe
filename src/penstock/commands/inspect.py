"""Inspection of a model (its inputs and outputs) and of an input (its rows and columns)."""

import contextlib
import os
import shlex
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

from penstock.core import kinds
from penstock.core.protocols import Source
from penstock.core.records import ANY_SIGNATURE, ModelFile, Placement, Signature
from penstock.core.stopping import StopFlag
from penstock.errors import InputError
from penstock.jobs.bring_up import open_engine
from penstock.jobs.open import log_without_folder
from penstock.jobs.placement import Setting
from penstock.jobs.run_context import RunContext
from penstock.models.catalog import facts_of
from penstock.planning.candidates import can_convert
from penstock.pool.devices.inventory import cpu_device, gpu_devices
from penstock.runtimes.catalog import is_installed, like, on_the_first_that_loads
from penstock.sources.catalog import open_files
from penstock.sources.files.paths import is_url


def describe_model(file: ModelFile, runtime: str | None, target: str) -> dict[str, Any]:
    """Describe a model file, its inputs and outputs. It is loaded on the CPU, in a process of its own.

    `target` is the name that the user gave. A model that needs trust and has none is described, but not loaded.
    """
    facts = facts_of(file)
    described: dict[str, Any] = {"model": file.location, "kind": file.kind, "written_by": facts.writer}
    is_loaded = file.trust or not facts.needs_trust
    if is_loaded:
        looked_at = (
            replace(file, signature=ANY_SIGNATURE) if file.kind == "saved_model" and not file.signature else file
        )
        (signature, runtime_used), fallback = on_the_first_that_loads(file, runtime, partial(_load, looked_at))
        described["written_by"] = facts.writer or signature.writer
        described["loaded_by"] = kinds.runtime(runtime_used).package.described
        described |= _describe_signature(signature)
        described["other_signatures"] = {str(other.name): _describe_signature(other) for other in signature.others}
        described |= {"batch": signature.fixed_batch, "parameters": signature.parameters}
        described["notes"] = [*facts.notes, *([fallback] if fallback is not None else signature.notes)]
    else:
        described["notes"] = [
            *facts.notes,
            "it was not loaded, because it needs trust: --trust-model shows what it takes",
        ]
    described |= {"bytes": facts.num_bytes or None, "digest": file.digest}
    described["needs_trust"] = list(facts.needs_trust)
    runtimes = like(file, runtime_used) if is_loaded else file.runtimes
    here = {"cpu", *(device.kind for device in gpu_devices())}
    described["runtimes"] = [name for name in runtimes if _runs_here(name, here)]
    if is_loaded and can_convert(file, runtime_used) and kinds.missing_to_convert() is None:
        others = (name for name, entry in kinds.runtimes().items() if entry.reads_steps and name not in runtimes)
        described["runtimes_by_conversion"] = [name for name in others if _runs_here(name, here)]
    described["run_it"] = _command(file, described, target, runtime, needs_trust=bool(facts.needs_trust))
    described["columns_of_other_names"] = _inputs(described) or None
    return described


def _runs_here(runtime: str, device_kinds: Collection[str]) -> bool:
    return is_installed(runtime) and any(kind in device_kinds for kind in kinds.runtime(runtime).device_kinds)


def _load(file: ModelFile, runtime: str) -> tuple[Signature, str]:
    """Load a model; returns its signature and the runtime."""
    setting = Setting(runtime, file, 1, Placement((cpu_device(),), 1, 1))
    with log_without_folder(False) as log:
        engine, _ = open_engine(setting, RunContext(log, StopFlag()))
        with contextlib.closing(engine):
            return engine.load(), runtime


def _describe_signature(signature: Signature) -> dict[str, Any]:
    described: dict[str, Any] = {
        "signature": signature.name,
        "inputs": {spec.name: str(spec) for spec in signature.inputs},
        "outputs": {spec.name: str(spec) for spec in signature.outputs},
    }
    for name, features in signature.examples.items():
        described[f"features of {name}"] = {
            feature.name: f"{feature}{'' if feature.is_required else ', optional'}" for feature in features
        }
    return described


def _command(file: ModelFile, described: dict[str, Any], target: str, runtime: str | None, *, needs_trust: bool) -> str:
    """The command that runs the model with the options of the inspection. It matches columns to inputs by name."""
    parts = ["penstock", "predict", shlex.quote(target), "INPUT", "--output", "OUT"]
    if described.get("signature") and (file.signature is not None or described.get("other_signatures")):
        parts += ["--signature", shlex.quote(described["signature"])]
    for module in file.custom_objects:
        parts += ["--custom-objects", module]
    if file.weights is not None:
        parts += ["--weights", shlex.quote(file.weights)]
    if needs_trust:
        parts += ["--trust-model"]
    if runtime is not None:
        parts += ["--runtime", runtime]
    for name, value in file.constants.items():
        parts += ["--constant", shlex.quote(f"{name}={value}")]
    return " ".join(parts)


def _inputs(described: dict[str, Any]) -> str:
    """The flags that the command needs where columns have other names than the inputs."""
    parsed = {key.removeprefix("features of ") for key in described if key.startswith("features of ")}
    names = [name for name in described.get("inputs", ()) if name not in parsed]
    return " ".join("--input " + shlex.quote(f"{name}=COLUMN") for name in names)


def describe_input(target: str) -> dict[str, Any]:
    """Count and describe the rows of a path, a folder or a glob."""
    if not is_url(target) and not os.path.exists(target) and not any(mark in target for mark in "*?["):
        raise InputError("no such model, file or folder", received=target)
    source = open_files([target])
    fragments = source.fragments()
    files = {"files": num_files(source), "bytes": sum(fragment.size for fragment in fragments)}
    return {"input": target, **files, **describe_data(source)}


def num_files(source: Source) -> int:
    """How many files a source has. (A fragment may stand for many small files.)"""
    return len(source.paths or source.fragments())


def describe_data(source: Source) -> dict[str, Any]:
    """The rows and columns of a source. A stream is not counted: it can be read only once."""
    columns = {name: f"{spec} {spec.encoding or ''}".strip() for name, spec in source.schema().items()}
    if not source.traits.is_resumable:
        return {"rows": None, "columns": columns}
    return {"rows": sum(span.rows for span in source.divide(1 << 16)), "columns": columns}
