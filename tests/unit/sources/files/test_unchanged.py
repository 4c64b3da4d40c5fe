"""Digests of what spans were read from."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
    is_waited_for, reads = threading.Event(), []

    class Groups:
        def extents(self, span: Span, columns: Sequence[str]) -> list[Extent]:
            return [Extent(file, 0, file.size)]

    class Awaited(Future[str]):
        def result(self, timeout: float | None = None) -> str:
            is_waited_for.set()
            return super().result(timeout)

    def read(extent: Extent) -> str:
        reads.append(extent)
        assert is_waited_for.wait(60)  # by the other thread
        return of_bytes(extent)

    of_bytes = unchanged._of_bytes
    monkeypatch.setattr(unchanged, "_of_bytes", read)
    monkeypatch.setattr(unchanged, "Future", Awaited)
    source: Any = Groups()
    digester = Digester(source, [])
    with ThreadPoolExecutor(2) as threads:
        digests = [threads.submit(digester.digest, span) for span in SPANS]
    assert len({each.result() for each in digests}) == 1
    assert len(reads) == 1
