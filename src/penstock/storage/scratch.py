"""A private local folder of a run: for parts on their way to a remote store, or for a local Ray cluster.

It is removed when its run ends. A run that was killed cannot do that: so each run holds a lock on its folder, which the
kernel frees, and the next run on this machine removes the folders without a lock.
"""

import fcntl
import glob
import os
import shutil
import tempfile

_PREFIX = "penstock-parts-"


class Scratch:
    """A folder of this user alone, empty at first.

    Args:
        prefix: How its name begins. Folders with such names that no process holds are removed.
        parent: Where it lies; the temporary folder of this machine (`TMPDIR`) if None.
    """

    def __init__(self, prefix: str = _PREFIX, parent: str | None = None) -> None:
        parent = parent or tempfile.gettempdir()
        _sweep(prefix, parent)
        self._descriptor, self.path = _make(prefix, parent)

    def remove(self) -> None:
        if self._descriptor >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._descriptor)
            self._descriptor = -1


def _sweep(prefix: str, parent: str) -> None:
    """Remove the folders of runs that have ended."""
    for path in glob.glob(os.path.join(glob.escape(parent), prefix + "*")):
        try:
            descriptor = _hold(path)
        except OSError:
            continue  # it is held, or gone, or another user's
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def _make(prefix: str, parent: str) -> tuple[int, str]:
    while True:
        path = tempfile.mkdtemp(prefix=prefix, dir=parent)
        try:
            descriptor = _hold(path)
        except (BlockingIOError, FileNotFoundError):
            continue  # a sweep was faster
        if os.path.isdir(path):
            return descriptor, path
        os.close(descriptor)


def _hold(path: str) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
