"""What the feed of a GPU does with rows that are there already."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.core.decoding import OnDevice
from penstock.runtimes.cuda_feed import CudaFeed


def test_rows_on_the_gpu_are_taken_over_without_a_copy() -> None:
    def refuse(*given: Any) -> Any:
        raise AssertionError(f"{given} need no copy")

    rows = np.zeros((4, 3), np.uint8)
    feed = CudaFeed(cupy=None, take=lambda on_device: (on_device,), usual=refuse, narrowed=refuse)
    (taken,) = feed(OnDevice(rows, refuse))
    assert taken is rows
    assert feed.copied_s() == 0.0
