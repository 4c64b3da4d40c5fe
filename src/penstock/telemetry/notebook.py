"""Progress in a notebook: one line of HTML under the cell, replaced as the run goes on."""

import html
import importlib
import sys
import threading
import time
from typing import Any

from penstock.telemetry.meter import Meter
from penstock.telemetry.progress import Rate, time_left

_EVERY_S = 0.25


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook. IPython is imported already if it is."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


class NotebookBar:
    """A bar under the cell, with the figures of the run beside it."""

    def __init__(self, every_s: float = _EVERY_S) -> None:
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def begin(self, meter: Meter, total: int, before: int) -> None:
        display: Any = importlib.import_module("IPython.display")
        rate = Rate()
        rate.at(time.monotonic(), 0)
        handle = display.display(display.HTML(bar(meter, total, before, 0.0)), display_id=True)
        self._thread = threading.Thread(target=self._tell, args=(handle, meter, total, before, rate), daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _tell(self, handle: Any, meter: Meter, total: int, before: int, rate: Rate) -> None:
        display: Any = importlib.import_module("IPython.display")
        is_over = False
        while not is_over:
            is_over = self._ended.wait(self._every_s)
            handle.update(display.HTML(bar(meter, total, before, rate.at(time.monotonic(), meter.rows))))


def bar(meter: Meter, total: int, before: int, rate: float) -> str:
    """The state of a run as HTML."""
    done = before + meter.rows
    figures = [
        f"{done:,} of {total:,} rows" if total else f"{done:,} rows",
        f"{rate:,.0f} rows/s",
        *([f"{time_left(total - done, rate)} left" if done < total else "done"] if total else []),
        *([f"{before + meter.committed_rows:,} committed"] if meter.is_written else []),
        *([f"{meter.failed:,} failed"] if meter.failed else []),
        *(f"{each.device} busy {each.busy_share:.0%}" for each in meter.snapshot()),
    ]
    share = f'value="{min(done, total)}" max="{total}"' if total else ""
    shown = f'<progress {share} style="width: 20em; vertical-align: middle"></progress>'
    return f'<div style="font-family: monospace">{shown} {html.escape(", ".join(figures))}</div>'


def table(title: str, rows: list[tuple[str, str]]) -> str:
    """Names and values as a table of HTML."""
    body = "".join(
        f'<tr><th style="text-align: left">{html.escape(name)}</th>'
        f'<td style="text-align: left">{html.escape(value)}</td></tr>'
        for name, value in rows
    )
    return f"<table><caption>{html.escape(title)}</caption><tbody>{body}</tbody></table>"
