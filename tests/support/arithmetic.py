"""A runtime without a framework, so that replicas start at once, on a device whose memory is whatever a test says.

Above `most_rows` rows, or at a row whose first value is `LARGE`, a batch ends as `ends_by` says: `error`, as runtimes
tell a shortage; `kill`, as the kernel does; `abort` and `give up`, as C++ does; `crash`, for which memory is no cause.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

import numpy as np

from penstock.core.records import Columns, Device, ModelFile, Signature, TensorSpec
from penstock.errors import OutOfMemory

LARGE = 999.0


@dataclass(frozen=True)
class Arithmetic:
    """Doubles what it is given."""

    most_rows: int = 1 << 40
    ends_by: str = "error"
    name: str = "arithmetic"

    def environment(self, device: Device, threads: int) -> dict[str, str]:
        return {}

    def load(self, model: ModelFile, device: Device, threads: int) -> ArithmeticReplica:
        return ArithmeticReplica(self)


class ArithmeticReplica:
    signature = Signature((TensorSpec("x", "float32", (4,)),), (TensorSpec("y", "float32", (4,)),))

    def __init__(self, runtime: Arithmetic) -> None:
        self._runtime = runtime

    def predict(self, batch: Columns) -> Columns:
        x = batch["x"]
        if len(x) > self._runtime.most_rows or (x[:, 0] == LARGE).any():
            match self._runtime.ends_by:
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "abort":
                    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
                    os.abort()
                case "give up":
                    raise MemoryError("std::bad_alloc")
                case "crash":
                    os.kill(os.getpid(), signal.SIGSEGV)
            raise OutOfMemory("the device ran out of memory", received=f"a batch of {len(x)} rows: no room")
        return {"y": np.multiply(x, 2)}

    def close(self) -> None:
        pass
