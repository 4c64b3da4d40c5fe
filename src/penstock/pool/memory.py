"""How much memory this process has held, and how much more the machine lets it have."""

from __future__ import annotations

import os

import psutil


def peak_bytes() -> int:
    """The most resident memory that this process has held so far."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux: what it holds now is what can be told
    return int(psutil.Process(os.getpid()).memory_info().rss)
