"""Faults of the machine under a command: limits of the process, and standard streams that are closed or full."""

import errno
import os
import resource
import sys
from contextlib import suppress

from penstock.errors import DeviceError, OutputError, PenstockError

_NOT_OURS = {errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ELOOP}
_REFUSED = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EBADF}


def open_standard_streams() -> None:
    """Open /dev/null in the place of standard streams that are closed.

    Otherwise the next file that is opened gets the number of the stream, and what a library prints lands in that file.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is that of the stream
            stream = open(number, mode, closefd=False, encoding="utf-8")  # noqa: SIM115 - for the whole process
            setattr(sys, name, stream)


def let_go_of_streams_that_refuse() -> None:
    """Flush standard output and error; redirect a stream that refuses to /dev/null, so that the exit does not fail."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with suppress(OSError, ValueError):  # an object in place of the stream may have no number
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def as_fault(error: OSError) -> PenstockError | None:
    """The error to show for something that the machine refused; None if the error is a bug of penstock."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return DeviceError(
            "too many files are open",
            received=f"{error.strerror}; this process may have {_limit(resource.RLIMIT_NOFILE)} (ulimit -n)",
            hint="raise the limit, for example with ulimit -n 1024, and run the same command again",
        )
    if error.errno == errno.EFBIG:
        return DeviceError(
            "a file, or memory that processes share, would be larger than this process may make one",
            received=f"{error.strerror}; the limit is {_limit(resource.RLIMIT_FSIZE)} bytes (ulimit -f)",
            hint="raise the limit, for example with ulimit -f unlimited, and run the same command again",
        )
    if error.errno in (errno.ENOMEM, errno.EAGAIN):
        return DeviceError(
            "the machine has no memory left, or no room for another process",
            received=str(error),
            hint="ask for fewer --devices and --loaders, or raise the limits (ulimit -u, ulimit -v)",
        )
    if error.errno in _NOT_OURS and error.filename is not None:
        return OutputError(
            f"{error.filename} cannot be read or written",
            received=error.strerror or str(error),
            hint="its owner, its mode (ls -l), or what stands there instead of a file may be the reason",
        )
    if error.errno in _REFUSED:
        where = error.filename or "standard output or standard error"
        return OutputError(f"{where} cannot be written", received=str(error), hint="what was written before stays")
    return None


def _limit(kind: int) -> str:
    soft, _ = resource.getrlimit(kind)
    return "any number" if soft == resource.RLIM_INFINITY else f"{soft:,}"
