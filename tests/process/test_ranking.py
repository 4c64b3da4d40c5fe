"""The best classes as each framework ranks them: of equal values the first comes first, as in a stable sort."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ENVIRONMENT

SCRIPT = """
import numpy as np
from penstock.core.output_selection import Answers, keep
from penstock.runtimes.{module} import {ranking}
{prepare}
def first_of(tensor):
    return np.asarray(keep(Answers(argmax=True), dict(y=tensor), {ranking})["classes:y"])
for dtype in ("float32", "float16", "int32", "uint8"):
    rows = np.random.default_rng(1).integers(0, 4, (50, 300)).astype(dtype)
    values, places = {ranking}(to_tensor(rows), 7)
    best = np.argsort(-rows.astype("int32"), axis=1, kind="stable")[:, :7]
    assert np.array_equal(np.asarray(places), best), dtype
    assert np.array_equal(np.asarray(values), np.take_along_axis(rows, best, axis=1)), dtype
    first = first_of(to_tensor(rows))
    assert np.array_equal(first, rows.argmax(axis=1)), dtype
    assert first.dtype == np.asarray(places).dtype == np.int32, dtype
rows = np.where(np.random.default_rng(2).random((50, 30)) < 0.1, np.nan, 1).astype("float32")
best = np.asarray({ranking}(to_tensor(rows), 1)[1])[:, 0]
assert np.array_equal(first_of(to_tensor(rows)), best)
"""


@pytest.mark.parametrize(
    ("module", "ranking", "prepare"),
    [
        ("jax.runtime", "jax_top_k", "import jax.numpy as jnp; to_tensor = jnp.asarray"),
        ("torch", "torch_top_k", "import torch; to_tensor = torch.from_numpy"),
    ],
)
def test_of_equal_values_the_first_comes_first(module: str, ranking: str, prepare: str) -> None:
    has_it = subprocess.run(
        [sys.executable, "-c", f"import {module.partition('.')[0]}"], capture_output=True, check=False
    )
    if has_it.returncode:
        pytest.skip(f"{module} is not installed")
    code = SCRIPT.format(module=module, ranking=ranking, prepare=prepare)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert ran.returncode == 0, ran.stderr
