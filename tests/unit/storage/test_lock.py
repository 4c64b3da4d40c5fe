"""One living run for each output folder."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from penstock.errors import OutputError
from penstock.storage.disk import internal
from penstock.storage.lock import OutputLock, holder_of


def test_a_second_run_is_refused_with_the_first_ones_process(tmp_path: Path) -> None:
    with OutputLock(str(tmp_path)):
        assert (holder_of(str(tmp_path)) or "").startswith(f"process {os.getpid()} on ")
        with pytest.raises(OutputError, match="locked by a run that is alive") as caught, OutputLock(str(tmp_path)):
            pass
    assert f"held by process {os.getpid()} on " in (caught.value.received or "")
    assert holder_of(str(tmp_path)) is None


def test_a_look_at_the_lock_refuses_no_run(tmp_path: Path) -> None:
    """`penstock status` shares the lock for a moment, to see whether a run holds it."""
    with OutputLock(str(tmp_path)):
        pass
    looking = os.open(internal(str(tmp_path), "lock"), os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    taken: list[str | None] = []

    def run() -> None:
        with OutputLock(str(tmp_path)):
            taken.append(holder_of(str(tmp_path)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(0.05)
    os.close(looking)
    thread.join(60)
    assert taken
    assert taken[0] is not None
