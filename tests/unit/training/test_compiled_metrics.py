"""Which losses give another result with another batch size."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.training.compiled_metrics import depends_on_batches

keras = pytest.importorskip("keras")


@pytest.mark.parametrize(
    ("loss", "is_dependent"),
    [
        ("mse", False),
        (lambda: keras.losses.MeanSquaredError(), False),
        (lambda: keras.losses.MeanSquaredError(reduction="sum"), True),
        ("dice", True),
        (lambda: keras.losses.Dice(), True),
        (lambda: keras.losses.Tversky(), True),
        (lambda: keras.losses.tversky, True),
        (lambda: keras.losses.Circle(), True),
    ],
)
def test_losses_over_whole_batches_depend_on_the_batch_size(loss: Any, is_dependent: bool) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(loss=loss() if callable(loss) else loss)
    assert depends_on_batches(model) is is_dependent
