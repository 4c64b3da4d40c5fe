"""Which runtimes can use which device: asked in processes of their own, because a framework takes what it sees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from penstock.core.packages import PACKAGES
from penstock.pool.devices.inventory import cpu_device, gpu_devices, usable_cores

_TIMEOUT_S = 120

_TENSORFLOW = "import tensorflow as f; print(len(f.config.list_physical_devices('GPU')))"
_JAX = "import jax; print(sum(d.platform in ('gpu', 'cuda') for d in jax.devices()))"
_TORCH = "import torch; print(torch.cuda.device_count())"
_ONNX = "import onnxruntime as f; print(int('{}ExecutionProvider' in f.get_available_providers()))"
_QUESTIONS = {
    "tensorflow": _TENSORFLOW,
    "jax": _JAX,
    "torch": _TORCH,
    "torch-compiled": _TORCH,
    "tf_keras": _TENSORFLOW,
    "onnx": _ONNX.format("CUDA"),
    "onnx-tensorrt": _ONNX.format("Tensorrt"),
    "stablehlo": _JAX,
}


def devices_with_runtimes(runtimes: Sequence[str]) -> list[dict[str, Any]]:
    """Every device with `runtimes`: name to `yes, VERSION` or the reason why not."""
    gpus = gpu_devices()
    named = {name: _QUESTIONS[name] for name in runtimes if name in _QUESTIONS and PACKAGES[name].is_installed}
    asked = {question: _ask(question) for question in (set(named.values()) if gpus else ())}
    answers = {question: _answer(process) for question, process in asked.items()}
    counts = {name: answers.get(question) for name, question in named.items()}
    return [
        {
            "device": str(device) if device.kind == "gpu" else "cpu",
            "name": device.name,
            "memory_bytes": device.memory_bytes,
            "free_bytes": device.free_bytes,
            "cores": usable_cores() if device.kind == "cpu" else None,
            "runtimes": {name: _verdict(name, device.kind, counts.get(name)) for name in runtimes},
        }
        for device in [*gpus, cpu_device()]
    ]


def _verdict(runtime: str, kind: str, gpus_seen: int | str | None) -> str:
    version = PACKAGES[runtime].version
    if version is None:
        return f"no: not installed ({PACKAGES[runtime].install})"
    if kind not in PACKAGES[runtime].device_kinds:
        return f"no: {runtime} runs on {' and '.join(PACKAGES[runtime].device_kinds)} only"
    if kind == "cpu" or (isinstance(gpus_seen, int) and gpus_seen > 0):
        return f"yes, {version}"
    if isinstance(gpus_seen, str):
        return f"no: {gpus_seen}"
    return f"no: {runtime} {version} does not see the GPU (a build without CUDA, or a driver that is too old)"


def _ask(question: str) -> subprocess.Popen[str]:
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    return subprocess.Popen(
        [sys.executable, "-P", "-c", question],
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
        return f"it does not import: {lines[-1] if lines else process.returncode}"
    return int(json.loads(out.strip().splitlines()[-1]))
