"""State of a model: what a call changes in it, and what follows from that for a job.

A model that changes variables answers a batch by what it was given before: its batches run in order, on one replica,
one at a time. A model that only draws random numbers may run anywhere, as long as every batch is drawn by a seed of
its own, which depends on the job's seed and on the batch's first row and on nothing else.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.deferred import Array

NONE, SEEDS, VARIABLES = "none", "seeds", "variables"
"""Nothing is changed; only the seeds of random numbers are; anything else is."""
BATCH_SIZE = 32
"""Of a model that changes when it is called, where no other size is asked for: its answers depend on it, and this is
the one of `model.predict`."""


@dataclass(frozen=True)
class State:
    """What a call changes: its kind, and what it is called in the model.

    `is_repeatable` is not set where random numbers are drawn by operations that keep their own generators: nothing can
    put those back.
    """

    kind: str = NONE
    names: tuple[str, ...] = ()
    is_repeatable: bool = True

    def __str__(self) -> str:
        shown = list(dict.fromkeys(self.names))
        return ", ".join(shown[:3]) + (", …" if len(shown) > 3 else "")


STATELESS = State()


def derived_seed(seed: int, position: int, row: int, shape: tuple[int, ...], dtype: Any) -> Array:
    """The value of a model's generator number `position` for the batch that begins with `row`.

    Whatever replica runs the batch, in whatever run, it draws the same numbers.
    """
    kind = np.dtype(dtype)
    words = np.random.SeedSequence([seed % (1 << 64), position, row]).generate_state(
        int(np.prod(shape, dtype=np.int64)), np.uint64
    )
    # The sign stays free: not every framework takes negative seeds.
    most = np.iinfo(kind).max if kind.kind in "iu" else (1 << 24) - 1
    return (words & np.uint64(most)).astype(kind).reshape(shape)
