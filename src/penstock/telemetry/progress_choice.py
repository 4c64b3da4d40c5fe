"""Which progress display fits a call."""

import sys
from collections.abc import Callable

from penstock.errors import UsageError
from penstock.telemetry.notebook import NotebookBar, is_notebook
from penstock.telemetry.progress import Bars, Later, Lines, Progress, Silent


def progress_for(wanted: bool | Progress | None, verbose: bool | int | str = "auto") -> Callable[[], Progress]:
    """The progress display: the one that was given, or one that fits this terminal, notebook or log.

    Raises:
        UsageError: `verbose` is no value that Keras takes.
    """
    if verbose not in (0, 1, 2, "auto"):
        raise UsageError("unknown verbose", received=f"verbose={verbose!r}", allowed='"auto", 0, 1, 2, True, False')
    if wanted is not None and not isinstance(wanted, bool):
        return lambda: wanted
    if wanted is False or (wanted is None and verbose == 0):
        return Silent
    if verbose == 2:
        return Lines
    return NotebookBar if is_notebook() else Bars if sys.stderr.isatty() else Lines


def delayed(shown: Callable[[], Progress]) -> Progress:
    """The progress of a call that returns its predictions: hidden at first, because most calls end in a moment."""
    return Silent() if shown is Silent else Later(shown)
