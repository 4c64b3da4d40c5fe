"""What a model takes and gives, and what an input holds."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from penstock import registry
from penstock.core.protocols import Source
from penstock.core.records import ModelFile, Placement
from penstock.core.stopping import StopFlag
from penstock.engines.local import LocalEngine
from penstock.errors import InputError
from penstock.opening import log_without_folder
from penstock.pool.devices import cpu_device
from penstock.pool.supervisor import Launch
from penstock.sources.files import is_url
from penstock.telemetry.meter import Meter


def describe_model(file: ModelFile, runtime: str | None) -> dict[str, Any]:
    """Load a model on the CPU, in a process of its own, and say what it is."""
    name = registry.choose_runtime(file, runtime)
    with log_without_folder(False) as log:
        launch = Launch(registry.RUNTIMES[name], file, 1, log)
        with contextlib.closing(
            LocalEngine(launch, Placement((cpu_device(),), 1, 1), Meter().observe, StopFlag())
        ) as engine:
            signature = engine.load()
    return {
        "model": file.location,
        "kind": file.kind,
        "written_by": registry.writer_of(file) or signature.writer,
        "signature": signature.name,
        "other_signatures": list(signature.others),
        "inputs": {spec.name: str(spec) for spec in signature.inputs},
        "outputs": {spec.name: str(spec) for spec in signature.outputs},
        "batch": signature.fixed_batch,
        "parameters": signature.parameters,
        "runtimes": [name for name in file.runtimes if registry.is_installed(name)],
    }


def describe_input(target: str) -> dict[str, Any]:
    """Count and describe what is behind a path, a folder or a glob."""
    if not is_url(target) and not os.path.exists(target) and not any(mark in target for mark in "*?["):
        raise InputError("no such model, file or folder", received=target)
    source = registry.open_files([target])
    fragments = source.fragments()
    files = {"files": num_files(source), "bytes": sum(fragment.size for fragment in fragments)}
    return {"input": target, **files, **describe_data(source)}


def num_files(source: Source) -> int:
    """How many files there are: a fragment may stand for many small ones."""
    return len(getattr(source, "paths", None) or source.fragments())


def describe_data(source: Source) -> dict[str, Any]:
    """The rows and columns of a source. A stream is not counted: it can be read only once."""
    columns = {name: f"{spec} {spec.encoding or ''}".strip() for name, spec in source.schema().items()}
    if not getattr(source, "is_resumable", True):
        return {"rows": None, "columns": columns}
    return {"rows": sum(span.rows for span in source.divide(1 << 16)), "columns": columns}
