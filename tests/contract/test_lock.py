"""One living run for each output folder, seen from another process."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.errors import OutputError
from penstock.storage.disk import internal
from penstock.storage.lock import OutputLock, holder_of

HOLD = """
import sys
from penstock.storage.lock import OutputLock

with OutputLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(output: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until its standard input is closed."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, output], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        if process.stdin is not None and not process.stdin.closed:
            process.stdin.close()
        process.wait(timeout=20)


@pytest.fixture
def output(tmp_path: Path) -> str:
    return str(tmp_path / "deep" / "out")


def test_folder_that_a_living_process_holds_is_refused_and_the_holder_is_named(output: str) -> None:
    with holder(output) as process:
        assert holder_of(output)
        with pytest.raises(OutputError) as caught, OutputLock(output):
            pass
        assert caught.value.exit_code == 7
        assert output in (caught.value.received or "")
        assert f"process {process.pid}" in (caught.value.received or "")
        assert holder_of(output), "a refusal must not take the lock away"


def test_a_look_at_the_lock_refuses_no_run(output: str) -> None:
    """`penstock status` shares the lock for a moment, to see whether a run holds it."""
    with OutputLock(output):
        pass
    looking = os.open(internal(output, "lock"), os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    taken: list[str | None] = []

    def run() -> None:
        with OutputLock(output):
            taken.append(holder_of(output))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(0.05)
    os.close(looking)
    thread.join(60)
    assert taken
    assert taken[0] is not None


def test_what_is_in_the_lock_is_synced_while_it_is_held(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of a cluster know the folder by it, and see nothing of an open file on NFS before that."""
    synced: list[bytes] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        fsync(descriptor)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            synced.append(os.pread(descriptor, 200, 0))

    monkeypatch.setattr(os, "fsync", note)
    with OutputLock(output):
        assert synced == [(Path(output) / "_penstock" / "lock").read_bytes()]


def test_lock_of_a_killed_process_is_free(output: str) -> None:
    with holder(output) as process:
        process.kill()
        process.wait(timeout=20)
        assert not holder_of(output)
        with OutputLock(output):
            assert holder_of(output)


def test_lock_of_a_process_that_ended_is_free(output: str) -> None:
    with holder(output):
        pass
    assert not holder_of(output)


def test_lock_makes_the_folder_and_is_free_after_use(output: str) -> None:
    with OutputLock(output):
        assert holder_of(output)
        assert Path(output, "_penstock", "lock").read_text(encoding="utf-8").startswith(f"process {os.getpid()} on ")
    assert not holder_of(output)
    with OutputLock(output):
        pass


def test_lock_is_free_after_an_error(output: str) -> None:
    with pytest.raises(RuntimeError), OutputLock(output):
        raise RuntimeError("inside")
    assert not holder_of(output)


def test_lock_on_a_file_that_was_removed_meanwhile_is_taken_again(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that never began removes its lock file; whoever had opened it by then would hold a lock on nothing."""
    real, path = fcntl.flock, Path(output, "_penstock", "lock")

    def flock(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        path.unlink()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with OutputLock(output):
        assert path.exists()
        assert holder_of(output)


def test_second_lock_of_the_same_process_is_refused_too(output: str) -> None:
    with OutputLock(output), pytest.raises(OutputError), OutputLock(output):
        pass


def test_folder_without_a_lock_is_not_locked_and_looking_makes_none(tmp_path: Path) -> None:
    assert not holder_of(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_locks_of_different_folders_do_not_meet(tmp_path: Path) -> None:
    with OutputLock(str(tmp_path / "a")), OutputLock(str(tmp_path / "b")):
        assert holder_of(str(tmp_path / "a"))
        assert holder_of(str(tmp_path / "b"))
