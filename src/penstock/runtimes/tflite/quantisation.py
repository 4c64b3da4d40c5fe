"""Real numbers stored as small integers: `real = (stored - zero_point) * scale`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.records import Array


@dataclass(frozen=True)
class Quantisation:
    """How an input or output of a file stores its numbers."""

    dtype: str
    scale: float
    zero_point: int

    @classmethod
    def of_all(cls, details: Mapping[str, Any]) -> dict[str, Quantisation]:
        """Those tensors that are quantised, out of the details that an interpreter gives."""
        found = {}
        for name, detail in details.items():
            parameters = detail["quantization_parameters"]
            if len(parameters["scales"]) == 1 and np.dtype(detail["dtype"]).kind in "iu":
                scale, zero_point = float(parameters["scales"][0]), int(parameters["zero_points"][0])
                found[name] = cls(np.dtype(detail["dtype"]).name, scale, zero_point)
        return found

    def to_stored(self, array: Array) -> Array:
        """Rounded to the nearest step; what lies outside is the largest or smallest value there is.

        Raises:
            ValueError: A value is NaN or infinite: no integer stands for it.
        """
        real = array.astype(np.float32)
        if not np.isfinite(real).all():
            raise ValueError(f"{real[~np.isfinite(real)][0]} cannot be stored as {self.dtype}")
        limits = np.iinfo(self.dtype)
        # In 64 bits: 2**31 - 1 is no float32, and the one above it is no int32.
        steps = np.rint(real / np.float32(self.scale)).astype(np.float64) + self.zero_point
        stored: Array = np.clip(steps, limits.min, limits.max).astype(self.dtype)
        return stored

    def to_real(self, array: Array) -> Array:
        return (array.astype(np.float32) - np.float32(self.zero_point)) * np.float32(self.scale)

    def in_words(self, what: str) -> str:
        return (
            f"{what} stores numbers as {self.dtype} in steps of {self.scale:.6g}: columns of {self.dtype} are taken as "
            "they are stored, any other numbers are quantised"
        )
