"""A private local folder for parts on their way to a remote store.

It is removed when its run ends. A run that was killed cannot do that: so each holds a lock on its folder, which the
kernel frees, and the next run on this machine sweeps away the folders that nobody holds.
"""

import fcntl
import glob
import os
import shutil
import tempfile

_PREFIX = "penstock-parts-"


class Scratch:
    """A folder in the temporary folder of this machine (`TMPDIR`), empty at first."""

    def __init__(self) -> None:
        sweep()
        self._descriptor, self.path = _make()

    def remove(self) -> None:
        if self._descriptor >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._descriptor)
            self._descriptor = -1


def sweep() -> None:
    """Remove the folders of runs that are no more."""
    for path in glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), _PREFIX + "*")):
        try:
            descriptor = _hold(path)
        except OSError:
            continue  # it is held, or gone, or another user's
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def _make() -> tuple[int, str]:
    while True:
        path = tempfile.mkdtemp(prefix=_PREFIX)
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
