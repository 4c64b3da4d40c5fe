"""Progress of a run: rows done, rate, time left, and what it waits for."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TextIO, cast

from penstock.core.figures import duration
from penstock.telemetry.meter import Meter

if TYPE_CHECKING:
    from rich.console import Group

_LINE_EVERY_S = 5.0
_SHOWN_AFTER_S = 0.5
_RATE_OVER_S = 10.0
_LEAST_ARRIVALS = 6
_STILL_AFTER = 3
"""A run stands still if no rows arrive for this many times the usual interval."""


class Progress(Protocol):
    """Shows a run. A method that a subclass does not define shows nothing."""

    def note(self, text: str) -> None:
        """Show a line that a person should see."""
        return

    def state(self, text: str) -> None:
        """Show how far the run is, in a line that the next one replaces: for runs without a meter."""
        return

    def begin(self, meter: Meter, total: int, before: int) -> None:
        """Show the run from now on: `total` rows, of which `before` were done before it began."""
        return

    def end(self) -> None:
        """Show no more."""
        return


class Silent(Progress):
    """Shows nothing."""


class Rate:
    """The recent rate, in rows a second; the caller passes the time.

    Rows arrive by spans, each of which may take longer than ten seconds. So the rate is measured from one arrival to
    another, over the last ten seconds and at least the last few arrivals.
    """

    def __init__(self) -> None:
        self._arrivals: deque[tuple[float, int]] = deque()

    def at(self, now: float, rows: int) -> float:
        arrivals = self._arrivals
        if not arrivals or rows != arrivals[-1][1]:
            arrivals.append((now, rows))
        while len(arrivals) > _LEAST_ARRIVALS and now - arrivals[1][0] > _RATE_OVER_S:
            arrivals.popleft()
        (began, before), (last, _) = arrivals[0], arrivals[-1]
        if last <= began:
            return 0.0
        usual_s = (last - began) / (len(arrivals) - 1)
        if now - last > max(_RATE_OVER_S, _STILL_AFTER * usual_s):
            return 0.0
        return (rows - before) / max(last - began, now - began - usual_s)


def time_left(rows_left: int, rate: float) -> str:
    """`1 h 02 min`, `3 min 20 s`, `12 s`, or a dash while nothing is known."""
    if rate <= 0:
        return "–"
    return duration(rows_left / rate)


class _Unfailing:
    """A stream whose faults end no run: a full disk, a closed pipe, a terminal that closes before its signal comes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


class Lines(Progress):
    """A plain line every few seconds, for logs and pipes."""

    def __init__(self, stream: TextIO | None = None, every_s: float = _LINE_EVERY_S) -> None:
        self._stream = cast("TextIO", _Unfailing(stream or sys.stderr))
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._noted_at = time.monotonic()

    def note(self, text: str) -> None:
        print(text, file=self._stream, flush=True)
        self._noted_at = time.monotonic()

    def state(self, text: str) -> None:
        if time.monotonic() - self._noted_at >= self._every_s:
            self.note(text)

    def begin(self, meter: Meter, total: int, before: int) -> None:
        self._thread = threading.Thread(target=self._show_until_end, args=(meter, total, before), daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _show_until_end(self, meter: Meter, total: int, before: int) -> None:
        rate = Rate()
        rate.at(time.monotonic(), 0)
        while not self._ended.wait(self._every_s):
            self.note(line(meter, total, before, rate.at(time.monotonic(), meter.done_rows)))


class Later(Progress):
    """Shows a run only once it has lasted a while: most calls for a few rows end before anybody could read it."""

    def __init__(self, shown: Callable[[], Progress], after_s: float = _SHOWN_AFTER_S) -> None:
        self._make = shown
        self._after_s = after_s
        self._shown: Progress | None = None
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()

    def note(self, text: str) -> None:
        with self._lock:
            if self._shown is not None:
                self._shown.note(text)

    def begin(self, meter: Meter, total: int, before: int) -> None:
        self._timer = threading.Timer(self._after_s, self._show, (meter, total, before))
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._timer = None
            if self._shown is not None:
                self._shown.end()
                self._shown = None

    def _show(self, meter: Meter, total: int, before: int) -> None:
        with self._lock:
            if self._timer is not None:
                self._shown = self._make()
                self._shown.begin(meter, total, before)


def line(meter: Meter, total: int, before: int, rate: float) -> str:
    """The state of a run in one line."""
    rows, *others = figures(meter, total, before, rate)
    share = f" ({(before + meter.done_rows) / total:.0%})" if total else ""
    return "; ".join(filter(None, (", ".join([rows + share, *others]), meter.bottleneck_lately())))


def figures(meter: Meter, total: int, before: int, rate: float) -> list[str]:
    """The state of a run: rows, rate, time left, what is committed, what failed, and how busy the devices are."""
    done, committed = before + meter.done_rows, before + meter.committed_rows
    end = "writing the last rows" if meter.is_written and committed < total else "done"
    return [
        f"{done:,} of {total:,} rows" if total else f"{done:,} rows",
        f"{rate:,.0f} rows/s",
        *([f"{time_left(total - done, rate)} left" if done < total else end] if total else []),
        *([f"{meter.rows - meter.done_rows:,} in the postprocess function"] if meter.rows > meter.done_rows else []),
        *([f"{committed:,} committed"] if meter.is_written else []),
        *([failed_of(meter, before)] if meter.failed else []),
        *(f"{each.device} busy {each.busy_share:.0%}" for each in meter.working()),
    ]


def failed_of(meter: Meter, before: int) -> str:
    """How many of the rows that are done failed: they are committed as failures, and have no answers."""
    return f"{meter.failed:,} of {before + meter.done_rows:,} failed"


class Bars(Progress):
    """Bars in a terminal: one for the job, one for each device."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(file=cast("TextIO", _Unfailing(sys.stderr)))
        self._rate = Rate()
        self._live: object = None

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def state(self, text: str) -> None:
        from rich.live import Live
        from rich.text import Text

        live = self._live
        if not isinstance(live, Live):
            self._live = live = Live(console=self._console, auto_refresh=False, transient=True)
            live.start()
        live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)

    def begin(self, meter: Meter, total: int, before: int) -> None:
        from rich.live import Live

        live = Live(
            console=self._console,
            get_renderable=lambda: self._render(meter, total, before),
            refresh_per_second=4,
            transient=False,
        )
        live.start()
        self._live = live

    def end(self) -> None:
        from rich.live import Live

        if isinstance(self._live, Live):
            self._live.stop()
            self._live = None

    def _render(self, meter: Meter, total: int, before: int) -> Group:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        rate = self._rate.at(time.monotonic(), meter.done_rows)
        job = Table.grid(padding=(0, 1))
        job.add_row(
            ProgressBar(total=max(1, total), completed=before + meter.done_rows, width=40),
            *figures(meter, total, before, rate)[: (3 if total else 2) + (meter.rows > meter.done_rows)],
        )
        devices = Table.grid(padding=(0, 1))
        for each in meter.working():
            devices.add_row(
                ProgressBar(total=1.0, completed=each.busy_share, width=16, complete_style="cyan"),
                str(each.device),
                ", ".join(f"{name} {share:.0%}" for name, share in each.shares.items() if share >= 0.005),
            )
        if meter.is_written:
            failed = f"; {failed_of(meter, before)}" if meter.failed else ""
            devices.add_row("", "output", f"{before + meter.committed_rows:,} rows committed{failed}")
        return Group(job, devices, meter.bottleneck_lately())
