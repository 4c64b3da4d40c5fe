"""Progress in a notebook: one line of HTML under the cell, replaced as the run goes on."""

import html
import importlib
import sys
import time
from typing import Any

from penstock.telemetry.meter import Meter
from penstock.telemetry.progress import Lines, Rate, figures

_EVERY_S = 0.25


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook. IPython is imported already if it is."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


class NotebookBar(Lines):
    """A bar under the cell, with the figures of the run beside it."""

    def __init__(self, every_s: float = _EVERY_S) -> None:
        super().__init__(every_s=every_s)
        self._handle: Any = None

    def state(self, text: str) -> None:
        display: Any = importlib.import_module("IPython.display")
        line = display.HTML(f'<div style="font-family: monospace">{html.escape(text)}</div>')
        if self._handle is None:
            self._handle = display.display(line, display_id=True)
        else:
            self._handle.update(line)

    def begin(self, meter: Meter, total: int, before: int) -> None:
        display: Any = importlib.import_module("IPython.display")
        self._handle = display.display(display.HTML(bar(meter, total, before, 0.0)), display_id=True)
        super().begin(meter, total, before)

    def _show_until_end(self, meter: Meter, total: int, before: int) -> None:
        display: Any = importlib.import_module("IPython.display")
        rate = Rate()
        rate.at(time.monotonic(), 0)
        is_over = False
        while not is_over:
            is_over = self._ended.wait(self._every_s)
            self._handle.update(display.HTML(bar(meter, total, before, rate.at(time.monotonic(), meter.done_rows))))


def bar(meter: Meter, total: int, before: int, rate: float) -> str:
    """The state of a run as HTML."""
    share = f'value="{min(before + meter.done_rows, total)}" max="{total}"' if total else ""
    shown = f'<progress {share} style="width: 20em; vertical-align: middle"></progress>'
    text = html.escape(", ".join(figures(meter, total, before, rate)))
    return f'<div style="font-family: monospace">{shown} {text}</div>'


def table(title: str, rows: list[tuple[str, str]]) -> str:
    """Names and values as a table of HTML."""
    body = "".join(
        f'<tr><th style="text-align: left">{html.escape(name)}</th>'
        f'<td style="text-align: left">{html.escape(value)}</td></tr>'
        for name, value in rows
    )
    return f"<table><caption>{html.escape(title)}</caption><tbody>{body}</tbody></table>"
