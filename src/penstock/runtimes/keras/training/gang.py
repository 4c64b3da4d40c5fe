"""Several processes of JAX that train together: how they connect, exchange messages and disconnect."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator

from penstock.core.training import Gang
from penstock.errors import WorkersDied, one_line
from penstock.runtimes.frameworks import jax

_MEET_S = 300
_DEAD_AFTER_S = 30
_WAIT_MS = 24 * 3600 * 1000
"""The longest wait at a barrier. The process that watches the gang ends it long before."""


class JaxGang:
    """The line between the processes of a gang (`core.training.Exchange`), through JAX's own service.

    It needs no device, so threads that prepare batches may use it while steps run.

    Args:
        gang: The place of this process.

    Raises:
        WorkersDied: The processes do not find each other: one may be gone, or the port is taken.
    """

    def __init__(self, gang: Gang) -> None:
        self._gang = gang
        self._numbers: dict[str, Iterator[int]] = defaultdict(itertools.count)
        try:
            jax.distributed.initialize(
                gang.coordinator,
                gang.size,
                gang.rank,
                cluster_detection_method="deactivate",
                initialization_timeout=_MEET_S,
                # By default, the service would listen on every address of the machine.
                coordinator_bind_address=gang.coordinator,
                heartbeat_timeout_seconds=_DEAD_AFTER_S,
            )
        except Exception as error:
            raise WorkersDied(
                "the workers do not reach each other", received=f"{gang.coordinator}: {one_line(error)}"
            ) from error
        from jax._src.distributed import global_state

        self._client = global_state.client

    def gather(self, topic: str, message: str = "") -> list[str]:
        """See `Exchange`."""
        folder = f"penstock/{topic}/{next(self._numbers[topic])}/"
        if message:
            self._client.key_value_set(f"{folder}{self._gang.rank:06}", message)
        self._client.wait_at_barrier(f"penstock/{topic}", _WAIT_MS)
        return [text for _, text in sorted(self._client.key_value_dir_get(folder))]

    def part(self) -> None:
        """Wait for the other processes, and close the line. After that, a process that ends does not end the others."""
        self.gather("end")
        jax.distributed.shutdown()
