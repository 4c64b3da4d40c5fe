"""Digests of what spans were read from."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.core.records import Extent, Fragment, Span
from penstock.sources.files import unchanged
from penstock.sources.files.unchanged import Digester

SPANS = [Span(number, 4 * number, 4, ()) for number in range(4)]


def test_what_spans_have_in_common_is_read_once_by_however_many_threads(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "group"
    path.write_bytes(b"a row group of several spans")
    status = path.stat()
    file = Fragment(str(path), status.st_size, status.st_mtime_ns)
    reading, asked = threading.Event(), threading.Barrier(2, timeout=60)
    reads = []

    class Groups:
        def extents(self, span: Span, columns: Sequence[str]) -> list[Extent]:
            return [Extent(file)]

    def read(extent: Extent) -> str:
        reads.append(extent)
        assert reading.wait(60)
        return of_bytes(extent)

    of_bytes = unchanged._of_bytes
    monkeypatch.setattr(unchanged, "_of_bytes", read)
    source: Any = Groups()
    digester = Digester(source, [])

    def digest(span: Span) -> str:
        asked.wait()
        return digester.digest(span)

    with ThreadPoolExecutor(2) as threads:
        digests = [threads.submit(digest, span) for span in SPANS]
        reading.set()
    assert len({each.result() for each in digests}) == 1
    assert len(reads) == 1
