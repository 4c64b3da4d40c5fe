"""The runtime of toy models."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from penstock.core.kinds import Package, RuntimeEntry
from penstock.core.records import Columns, Device, ModelFile, Signature, TensorSpec


class ToyRuntime:
    def environment(self, device: Device, threads: int) -> dict[str, str]:
        return {}

    def load(self, model: ModelFile, device: Device, threads: int) -> ToyReplica:
        return ToyReplica(float(Path(model.location).read_text(encoding="ascii")))


class ToyReplica:
    def __init__(self, factor: float) -> None:
        self.signature = Signature((TensorSpec("x", "float32", ()),), (TensorSpec("y", "float32", ()),))
        self._factor = np.float32(factor)

    def predict(self, batch: Columns) -> Columns:
        return {"y": batch["x"] * self._factor}

    def close(self) -> None:
        pass


RUNTIME = RuntimeEntry(
    ToyRuntime, Package(("penstock_toy",), ("penstock-toy",), "pip install penstock-toy"), device_kinds=("cpu",)
)
