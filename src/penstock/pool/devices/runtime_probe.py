"""Which runtimes can use which device. Each is asked in its own process: a framework reserves what it sees."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

from penstock.core.kinds import RuntimeEntry, missing_to_convert, runtimes
from penstock.pool.devices.inventory import cpu_device, gpu_devices, usable_cores
from penstock.pool.devices.near import near_cores

_TIMEOUT_S = 120


def devices_with_runtimes() -> list[dict[str, Any]]:
    """Every device with `runtimes`: name to `yes, VERSION` or the reason why not."""
    gpus = gpu_devices()
    entries = runtimes()
    probes = {entry.gpu_probe for entry in entries.values() if entry.gpu_probe and entry.package.is_installed}
    asked = {probe: _ask(probe) for probe in (probes if gpus else ())}
    seen = {probe: _answer(process) for probe, process in asked.items()}
    return [
        {
            "device": str(device) if device.kind == "gpu" else "cpu",
            "name": device.name,
            "memory_bytes": device.memory_bytes,
            "free_bytes": device.free_bytes,
            "cores": usable_cores() if device.kind == "cpu" else None,
            "near_cores": near_cores(device),
            "runtimes": {
                name: _verdict(name, entry, device.kind, seen.get(entry.gpu_probe or ""))
                for name, entry in entries.items()
            },
        }
        for device in [*gpus, cpu_device()]
    ]


def _verdict(name: str, entry: RuntimeEntry, kind: str, gpus_seen: int | str | None) -> str:
    version = entry.package.version
    if version is None:
        return f"no: not installed ({entry.package.install})"
    if kind not in entry.device_kinds:
        return f"no: {name} runs on {' and '.join(entry.device_kinds)} only"
    if kind == "cpu" or (isinstance(gpus_seen, int) and gpus_seen > 0):
        lacks = missing_to_convert() if entry.reads_steps else None
        return f"yes, {version}" + (f"; Keras and TensorFlow models need {lacks}" if lacks is not None else "")
    if isinstance(gpus_seen, str):
        return f"no: {gpus_seen}"
    return f"no: {name} {version} does not see the GPU (a build without CUDA, or a driver that is too old)"


def _ask(probe: str) -> subprocess.Popen[str]:
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    return subprocess.Popen(
        [sys.executable, "-P", "-c", probe],
        env=os.environ | quiet,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _answer(process: subprocess.Popen[str]) -> int | str:
    """How many GPUs the framework sees, or why it could not say."""
    try:
        out, err = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return f"it did not answer within {_TIMEOUT_S} s"
    if process.returncode:
        lines = [line for line in err.strip().splitlines() if line.strip()]
        code = process.returncode
        ended = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"it does not start: {lines[-1] if lines else ended}"
    return int(json.loads(out.strip().splitlines()[-1]))
