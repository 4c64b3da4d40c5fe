"""State of a model: what a call changes in it, and what follows from that for a job.

The answers of a model that changes variables depend on earlier batches: its batches run in order, on one replica, one
at a time. A model that only draws random numbers may run anywhere, if every batch has a seed of its own that depends
only on the job's seed and on the batch's first row.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.deferred import Array

NONE, SEEDS, VARIABLES = "none", "seeds", "variables"
"""What a call changes: nothing, only the seeds of random numbers, or anything else."""
BATCH_SIZE = 32
"""The default for a model that a call changes. Its answers depend on the batch size; `model.predict` has this one."""


@dataclass(frozen=True)
class State:
    """What a call changes: its kind, and what it is called in the model.

    `is_repeatable` is False where operations with generators of their own draw random numbers: nothing can reset those.
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

    Every replica in every run draws the same numbers for this batch.
    """
    kind = np.dtype(dtype)
    words = np.random.SeedSequence([seed % (1 << 64), position, row]).generate_state(
        int(np.prod(shape, dtype=np.int64)), np.uint64
    )
    # The sign bit stays 0: not every framework takes negative seeds.
    most = np.iinfo(kind).max if kind.kind in "iu" else (1 << 24) - 1
    return (words & np.uint64(most)).astype(kind).reshape(shape)
