"""Functions around the model of the fault harness: slow enough for a run to be hit, and some rows fail in them."""

from __future__ import annotations

import time
from typing import Any

ROW_S = 0.0004


def dim(row: dict[str, Any]) -> dict[str, Any]:
    """Half the brightness. A row whose pixels add up to a multiple of 61 fails."""
    time.sleep(ROW_S)
    pixels = row["pixels"]
    if int(pixels.sum()) % 61 == 0:
        raise ValueError("this row cannot be dimmed")
    return {"pixels": pixels // 2}


def doubled(outputs: dict[str, Any]) -> dict[str, Any]:
    """The answers and twice the answers."""
    time.sleep(0.01)
    return {"digit": outputs["digit"], "twice": 2 * outputs["digit"]}
