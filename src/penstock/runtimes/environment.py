"""How a framework starts in a replica: its device and threads, the flags of XLA, and which libraries it may import."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.core.records import Device, ModelFile
from penstock.errors import DeviceError, one_line

UNNEEDED = ("sklearn", "scipy", "pandas", "IPython", "jax", "torch", "tensorflow")
"""Libraries that TensorFlow and Keras import only to see whether they are installed. They take a third of the processor
time in which a replica starts (measured: 5.3 s with them, 3.2 s without)."""

MOST_QUEUES = "32"


def pinned(device: Device, threads: int) -> dict[str, str]:
    """The environment variables that every framework reads: its only GPU, or none, and the size of its thread pools.

    CUDA puts all streams of a process into 8 queues by default. A copy, or a JPEG to decode, that lands in the queue
    of the model's stream waits for whole batches: JPEGs beside ResNet50 on an H200 took 1.6 times as long.
    """
    if device.kind != "gpu":
        return {"CUDA_VISIBLE_DEVICES": "-1", "OMP_NUM_THREADS": str(threads)}
    return {
        "CUDA_VISIBLE_DEVICES": device.uuid or str(device.index),
        "CUDA_DEVICE_MAX_CONNECTIONS": os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", MOST_QUEUES),
        "OMP_NUM_THREADS": str(threads),
    }


def does_not_start(library: str, model: ModelFile, error: ImportError, hint: str) -> DeviceError:
    """The error for a library that cannot be imported."""
    received = f"{model.location}: {one_line(error)}"
    return DeviceError(f"{library} is not installed, or does not start", received=received, hint=hint)


def without_gpu(library: str, version: str, device: Device, *ways: str) -> DeviceError:
    """The error for a library that does not see the GPU; `ways` are what may help."""
    received = f"{device} {device.name}, {library.lower()} {version}"
    return DeviceError(f"this {library} does not see the GPU", received=received, hint=", or ".join(ways))


@contextmanager
def lean_imports(file: ModelFile, *needed: str) -> Iterator[None]:
    """Hide the libraries that are not needed, as if they were not installed. Afterwards they import as usual.

    Nothing is hidden where there is a builder, a `model_fn` or a module of custom objects: the user's own code may need
    any of these libraries.
    """
    hidden = [name for name in UNNEEDED if name not in needed and name not in sys.modules]
    if file.kind in ("builder", "estimator") or file.custom_objects:
        hidden = []
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)


def xla_flags(device: Device, threads: int) -> str:
    """The user's own flags, then ours.

    On a GPU, XLA chooses kernels by timing them. Two processes may choose differently, and their answers would then
    differ in the last bits. Deterministic kernels cost about 2 % of ResNet50's speed on an H200.
    """
    if device.kind == "gpu":
        ours = "--xla_gpu_deterministic_ops=true"
    else:
        ours = f"--xla_cpu_multi_thread_eigen={'false' if threads == 1 else 'true'}"
    return f"{os.environ.get('XLA_FLAGS', '')} {ours}".strip()
