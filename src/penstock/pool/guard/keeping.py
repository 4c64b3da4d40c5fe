"""A model that changes when it is called, kept as it was: warming up, comparing and timing leave no trace in it."""

from penstock.core.batching import Batch
from penstock.core.job import Job
from penstock.core.protocols import Replica, Stateful
from penstock.core.state import NONE, SEEDS, STATELESS, State


class Keeper:
    """Holds the model of one replica for the jobs that it is prepared for, and puts it back before the first batch."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica if isinstance(replica, Stateful) else None
        self._is_held = False

    def look(self, batch: Batch) -> State:
        """What a call changes in the model."""
        return STATELESS if self._replica is None else self._replica.look(batch.arrays)

    def hold(self, job: Job) -> None:
        """Remember the model as it is before anything of the job runs. Done once."""
        if self._replica is not None and job.state != NONE and not self._is_held:
            self._replica.hold(job.seed)
            self._is_held = True

    def restore(self) -> None:
        """Make the model what it was."""
        if self._replica is not None and self._is_held:
            self._replica.restore()

    def let_go(self, job: Job) -> None:
        """After a run: variables stay changed, as after `model.predict`; seeds become what they were before."""
        if job.state == SEEDS:
            self.restore()
        self._is_held = False


def trim(job: Job, batch: Batch) -> None:
    """Cut off the rows that fill a batch up, where these would change the model as real rows do."""
    if job.is_trimmed:
        batch.arrays = {name: array[: batch.rows] for name, array in batch.arrays.items()}
