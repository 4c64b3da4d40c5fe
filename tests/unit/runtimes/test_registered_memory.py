"""Memory that a GPU copies from; without a GPU, nothing is registered."""

import numpy as np
import pytest

from penstock.pool.devices.inventory import gpu_devices
from penstock.pool.transfer.slots import Slots
from penstock.runtimes.registered_memory import is_registered, register


@pytest.mark.skipif(bool(gpu_devices()), reason="there is a GPU here")
def test_nothing_is_registered_without_a_gpu() -> None:
    slots = Slots.create(2, 4096)
    assert register(slots.memory) is None
    assert not is_registered(np.frombuffer(slots.view(0, 16), np.uint8))
    slots.close()
