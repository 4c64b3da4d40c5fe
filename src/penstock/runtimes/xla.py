"""What XLA is told, whichever framework brings it."""

from __future__ import annotations

import os

from penstock.core.records import Device


def xla_flags(device: Device, threads: int) -> str:
    """The user's own flags, then ours.

    On a GPU, XLA chooses kernels by timing them, and two processes may choose differently: other bits in the last place
    from one replica to the next. Deterministic kernels cost about 2 % of ResNet50's speed on an H200.
    """
    if device.kind == "gpu":
        ours = "--xla_gpu_deterministic_ops=true"
    else:
        ours = f"--xla_cpu_multi_thread_eigen={'false' if threads == 1 else 'true'}"
    return f"{os.environ.get('XLA_FLAGS', '')} {ours}".strip()
