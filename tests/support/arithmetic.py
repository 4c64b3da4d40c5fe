"""A runtime without a framework, so that replicas start at once, on a device whose memory is whatever a test says.

Above `most_rows` rows, or at a row whose first value is `LARGE`, a batch ends as `ends_by` says: `error`, as runtimes
tell a shortage; `kill`, as the kernel does; `abort` and `give up`, as C++ does; `crash`, for which memory is no cause.
It never ends at a row whose first value is `ENDLESS`, and rejects one whose first value is `REJECTED`.

While loading, or at the first batch, the process does what `at_load` or `at_first` says (`crash`, `kill`, `hang`), as
often as there are files in the folder `times`, of which it removes one each time.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

import numpy as np

from penstock.core.records import Columns, Device, ModelFile, Signature, TensorSpec
from penstock.errors import OutOfMemory

LARGE = 999.0
ENDLESS = 998.0
REJECTED = 997.0


@dataclass(frozen=True)
class Arithmetic:
    """Doubles what it is given."""

    most_rows: int = 1 << 40
    ends_by: str = "error"
    at_load: str = ""
    at_first: str = ""
    times: str = ""
    name: str = "arithmetic"

    def environment(self, device: Device, threads: int) -> dict[str, str]:
        return {}

    def load(self, model: ModelFile, device: Device, threads: int) -> ArithmeticReplica:
        if self.at_load and self._is_one_left():
            _end(self.at_load)
        return ArithmeticReplica(self)

    def _is_one_left(self) -> bool:
        for name in os.listdir(self.times):
            os.remove(os.path.join(self.times, name))
            return True
        return False


def _end(how: str) -> None:
    if how != "hang":
        os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSEGV)
    time.sleep(3600)  # a signal may reach another thread first: this one must not go on


class ArithmeticReplica:
    signature = Signature((TensorSpec("x", "float32", (4,)),), (TensorSpec("y", "float32", (4,)),))

    def __init__(self, runtime: Arithmetic) -> None:
        self._runtime = runtime

    def predict(self, batch: Columns) -> Columns:
        x = batch["x"]
        if self._runtime.at_first and self._runtime._is_one_left():
            _end(self._runtime.at_first)
        if (x[:, 0] == ENDLESS).any():
            _end("hang")
        if (x[:, 0] == REJECTED).any():
            raise ValueError("a row is rejected")
        if len(x) > self._runtime.most_rows or (x[:, 0] == LARGE).any():
            match self._runtime.ends_by:
                case "kill" | "crash" as how:
                    _end(how)
                case "abort":
                    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
                    os.abort()
                case "give up":
                    raise MemoryError("std::bad_alloc")
            raise OutOfMemory("the device ran out of memory", received=f"a batch of {len(x)} rows: no room")
        return {"y": np.multiply(x, 2)}

    def close(self) -> None:
        pass
