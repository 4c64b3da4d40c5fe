"""The noise of a framework: how far its answers are from the truth, because numbers have only so many digits."""

import numpy as np

from penstock.core.agreement import FLOAT64, NO_NOISE, Noise, distances
from penstock.core.protocols import Exact, Replica
from penstock.core.records import Columns
from penstock.errors import one_line


def find_noise(replica: Replica, first_rows: Columns, rows: int) -> Noise:
    """Compare the answers to the first rows with those in float64 or, without these, with those in other batches.

    Other batches show only a part of the noise: other runtimes may then differ by less, never by more.
    """
    if not first_rows:
        return NO_NOISE
    batch = {name: array[:rows] for name, array in first_rows.items()}
    try:
        # In the batch that is compiled already; the rows that are compared are its first.
        answers = {name: output[:rows] for name, output in replica.predict(dict(first_rows)).items()}
    except Exception as error:  # no answers, no noise: nothing is allowed for it
        print(f"penstock: no noise was found: {one_line(error)}", flush=True)
        return NO_NOISE
    if isinstance(replica, Exact):
        try:
            return Noise(distances(answers, replica.predict_exactly(batch)), FLOAT64)
        except Exception as error:  # an operation without float64 may raise anything: there is another way
            print(f"penstock: not computed in float64: {one_line(error)}", flush=True)
    return _in_other_batches(replica, batch, answers)


def _in_other_batches(replica: Replica, batch: Columns, answers: Columns) -> Noise:
    """The noise that shows in batches of half the size, and of single rows."""
    rows = len(next(iter(batch.values())))
    if replica.signature.fixed_batch is not None or rows < 2:
        return NO_NOISE
    found = NO_NOISE
    for size in sorted({(rows + 1) // 2, 1}, reverse=True):
        try:
            pieces = [
                replica.predict({name: array[start : start + size] for name, array in batch.items()})
                for start in range(0, rows, size)
            ]
            joined = {name: np.concatenate([piece[name] for piece in pieces]) for name in answers}
        except Exception as error:  # a model may insist on a size
            print(f"penstock: no answers in batches of {size}: {one_line(error)}", flush=True)
            continue
        found = Noise(found.joined(Noise(distances(answers, joined))).distances, "its answers in other batches")
    return found
