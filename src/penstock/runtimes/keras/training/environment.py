"""How a process that trains starts: all its devices, its threads, and the backend of Keras."""

from __future__ import annotations

import os
from collections.abc import Sequence

from penstock.core import kinds
from penstock.core.records import Device
from penstock.runtimes.frameworks import tf, torch
from penstock.runtimes.memory_limit import memory_fraction

_VIRTUAL = "--xla_force_host_platform_device_count="


def environment_for(backend: str, devices: Sequence[Device], threads: int) -> dict[str, str]:
    """The environment variables of a process that trains on these devices. Several CPU devices are virtual ones."""
    # JAX has only one memory limit for all of its GPUs: the smallest one is used.
    first = min(devices, key=lambda device: device.memory_limit)
    environment = kinds.runtime(backend).make().environment(first, threads)
    flags = os.environ.get("XLA_FLAGS", "")
    if first.kind == "gpu":
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(device.uuid or str(device.index) for device in devices)
        # Training on a GPU promises no equal bits, so it does without deterministic kernels, which cost time.
        environment["XLA_FLAGS"] = flags
    elif backend == "jax" and len(devices) > 1:
        environment["XLA_FLAGS"] = f"{environment['XLA_FLAGS']} {_VIRTUAL}{len(devices)}".strip()
    return environment


def prepare(backend: str, devices: Sequence[Device], threads: int) -> None:
    """Set the process's threads, devices and memory limits, before its framework computes anything."""
    if backend == "torch":
        torch.set_num_threads(threads)
        _limit_torch(devices[0])
    if backend != "tensorflow":
        return
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    if devices[0].kind == "cpu" and len(devices) > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * len(devices))
    if devices[0].kind == "gpu":
        # The GPUs are visible in the order of `devices`. TF_FORCE_GPU_ALLOW_GROWTH lets memory grow up to the limit.
        for gpu, device in zip(tf.config.list_physical_devices("GPU"), devices, strict=False):
            if device.memory_limit:
                share = tf.config.LogicalDeviceConfiguration(memory_limit=max(1, device.memory_limit >> 20))
                tf.config.set_logical_device_configuration(gpu, [share])


def _limit_torch(device: Device) -> None:
    fraction = memory_fraction(device)
    if fraction is not None:
        torch.cuda.set_per_process_memory_fraction(fraction)
