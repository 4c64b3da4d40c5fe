"""Runs a model on a share of the first GPU, and prints as JSON what it held: `FRAMEWORK MODEL LIMIT`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.core.protocols import Gauged
from penstock.core.records import ModelFile
from penstock.errors import OutOfMemory
from penstock.pool.devices.inventory import gpu_devices
from penstock.runtimes.jax.runtime import JaxRuntime
from penstock.runtimes.tensorflow.runtime import TensorFlowRuntime
from penstock.runtimes.torch import TorchRuntime

RUNTIMES: dict[str, Any] = {"tensorflow": TensorFlowRuntime(), "jax": JaxRuntime(), "torch": TorchRuntime()}


def main(framework: str, model: str, limit: str) -> None:
    device = replace(gpu_devices()[0], memory_limit=int(limit))
    runtime = RUNTIMES[framework]
    os.environ.update(runtime.environment(device, 2))
    replica = runtime.load(ModelFile("keras", model, "", (framework,)), device, 2)
    rows = np.random.default_rng(2).integers(0, 17, (16_384, 64), dtype=np.uint8)
    told: dict[str, Any] = {"is_gauged": isinstance(replica, Gauged)}
    told["predicted"] = [replica.predicted_bytes({"pixels": rows[:count]}) for count in (512, 16_384)]
    try:
        replica.predict({"pixels": rows})
        told["too_large"] = "fitted"
    except OutOfMemory as error:
        told["too_large"] = error.received
    told["answers"] = replica.predict({"pixels": rows[:512]})["digit"].tolist()
    told["peak"] = replica.peak_bytes()
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
