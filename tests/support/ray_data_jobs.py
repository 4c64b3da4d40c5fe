"""Jobs with Ray Data on a local cluster: python -m tests.support.ray_data_jobs MODEL FOLDER

Writes what they gave: `returned.npy` and `out/` of a dataset as an input, `mapped.npz` of `Predictor` in `map_batches`.
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.cluster.connection import connect
from penstock.ray import Predictor

ROWS, BLOCKS = 600, 6
OPTIONS: dict[str, Any] = {"devices": "cpu:1", "threads": 1, "batch_size": 32}


def _as_input(batch: dict[str, Any]) -> dict[str, Any]:
    """Two by two numbers a row. The first block comes last, unless somebody cares for the order."""
    if batch["id"][0] == 0:
        time.sleep(2)
    numbers = batch["id"].astype(np.float32)[:, None, None]
    return {"x": numbers + np.arange(4, dtype=np.float32).reshape(2, 2), "name": batch["id"].astype(str)}


def main() -> None:
    model, folder = sys.argv[1], Path(sys.argv[2])
    ray, close = connect("local", lambda line: None)
    importlib.import_module("ray.data")
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        rows = ray.data.range(ROWS, override_num_blocks=BLOCKS).map_batches(_as_input, batch_size=None)
        np.save(folder / "returned.npy", penstock.predict(model, rows, **OPTIONS))
        penstock.predict(model, rows, output=folder / "out", keep="name", progress=False, **OPTIONS)
        assert not rows.context.execution_options.preserve_order
        with pytest.raises(penstock.InputError, match=r"a ray\.data\.Dataset: write_parquet"):
            penstock.predict(model, rows, output=folder / "refused", engine="ray", **OPTIONS)
        assert not (folder / "refused").exists()
        keywords = {**OPTIONS, "keep": "name", "on_error": "nan"}
        mapped = rows.map_batches(
            Predictor,
            fn_constructor_args=[model],
            fn_constructor_kwargs=keywords,
            batch_size=64,
            compute=ray.data.ActorPoolStrategy(size=1),
            max_concurrency=2,
        )
        blocks = list(mapped.iter_batches(batch_format="numpy", batch_size=None))
        columns = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
        texts = {name: column.astype(str) for name, column in columns.items() if column.dtype == object}
        np.savez(folder / "mapped.npz", allow_pickle=False, **(columns | texts))
    finally:
        close()


if __name__ == "__main__":
    main()
