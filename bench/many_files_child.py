"""The process of J: lists a folder and prints its own peak memory, as the system counts it."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROWS_PER_SPAN = 64


def with_penstock(folder: str) -> int:
    """Open and divide, as a job does; return the rows of all spans, which are the files."""
    from penstock.sources.catalog import open_files

    source = open_files([folder])
    # Kept, as a job keeps them: the manifest holds every span.
    spans = list(source.divide(ROWS_PER_SPAN))
    return sum(span.rows for span in spans)


def as_a_list(folder: str) -> int:
    """What anybody would write: sorted paths, with the sizes that a fingerprint needs."""
    found = [
        (os.path.join(place, name), os.stat(os.path.join(place, name)).st_size)
        for place, _, names in os.walk(folder)
        for name in names
    ]
    return len(sorted(found))


WAYS: dict[str, Callable[[str], int]] = {"penstock": with_penstock, "list": as_a_list}


def main(way: str, folder: str) -> None:
    began = time.perf_counter()
    files = WAYS[way](str(Path(folder).resolve()))
    seconds = time.perf_counter() - began
    print(json.dumps({"files": files, "seconds": seconds, "peak_megabytes": peak_bytes() / 1e6}))


def peak_bytes() -> int:
    """The largest resident size of this program; getrusage would count that of the parent before the exec, too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
