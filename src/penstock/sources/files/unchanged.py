"""Check that input files did not change: by size and time while a job runs, by digests when it is resumed.

A digest is taken when the result of a span has arrived. Its bytes are still in the page cache then, and they are the
bytes that were read, because the file still has the size and the time of the listing. Objects in a store have no
digest: their ETag changes with them, and reading them twice would cost money.
"""

import functools
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future

import google_crc32c

from penstock.core.protocols import Source
from penstock.core.records import Extent, Fragment, Result, Span
from penstock.core.source import gone
from penstock.errors import InputError
from penstock.sources.files.paths import is_url, open_binary, read_bytes

_STEP_BYTES = 1 << 20
_DIGITS = 8
_KNOWN_EXTENTS = 256
"""How many digests are remembered: if several spans share an extent (a compressed file, a large row group), only one
reads it."""
_UNKNOWN = "-" * _DIGITS
"""Stands for the digest of a URL, or of a file that was replaced or removed while the job ran."""

WHAT_TO_DO = (
    "put the file back as it was (its time does not matter) and resume; or begin again, with another output or "
    "overwriting this one"
)


def changed(path: str, received: str, hint: str = WHAT_TO_DO) -> InputError:
    """The error for input that is not what it was when the job began."""
    return InputError(f"the input changed since the job began: {path}", received=received, hint=hint)


def check(source: Source, span: Span, columns: Sequence[str]) -> None:
    """Check that the files of a span have the size and the time that they were listed with.

    A file that is one row may change: its row is never made from two states of the file.

    Raises:
        InputError: One of the files changed: some rows may be from before the change, others from after it.
    """
    for file in {extent.file: None for extent in _extents_now(source, span, columns) if extent.nbytes is not None}:
        _check_file(file)


def checked(results: Iterable[Result], source: Source, columns: Sequence[str]) -> Iterator[Result]:
    """Results, each after a check of the files that it was read from."""
    for result in results:
        check(source, result.span, columns)
        yield result


def find_changed(fragments: Iterable[Fragment]) -> InputError | None:
    """The error for the first of these files that is not as it was listed; None where all are."""
    for file in fragments:
        if not file.path.startswith("/") or not os.path.exists(file.path):
            continue  # a fragment of several files, or of none; a missing file is reported elsewhere
        try:
            _check_file(file)
        except InputError as error:
            return error
    return None


class Digester:
    """Digests what spans were read from, 8 hexadecimal digits for each extent; nothing where there are no files.

    A few threads may use it at once.
    """

    def __init__(self, source: Source, columns: Sequence[str]) -> None:
        self._source = source
        self._columns = columns
        self._turn, self._knowing = threading.Lock(), threading.Lock()
        self._known: dict[Extent, Future[str]] = {}

    def digest(self, span: Span) -> str:
        """The digests of all extents of a span.

        Raises:
            InputError: A file changed since it was listed.
        """
        with self._turn:  # a source opens files to find its extents
            extents = _extents_now(self._source, span, self._columns)
        return "".join(map(self._as_listed, extents))

    def _as_listed(self, extent: Extent) -> str:
        """The digest of an extent whose file is as it was listed."""
        if is_url(extent.file.path):
            return _UNKNOWN
        try:
            digest = self._digest(extent)
            _check_file(extent.file)
        except InputError:
            if extent.nbytes is None:
                return _UNKNOWN  # no other row is affected by this file
            raise
        return digest

    def _digest(self, extent: Extent) -> str:
        """The digest of an extent. The first thread that needs it reads the extent; others wait for the result."""
        if extent.nbytes is None:
            return _of_bytes(extent)  # no other span needs a file that is one row
        with self._knowing:
            known = self._known.get(extent)
            if known is None:
                mine = self._known[extent] = Future()
                if len(self._known) > _KNOWN_EXTENTS:
                    del self._known[next(iter(self._known))]
        if known is not None:
            return known.result()
        try:
            mine.set_result(_of_bytes(extent))
        except BaseException as error:
            mine.set_exception(error)
        return mine.result()


def compare(
    source: Source,
    spans: Iterable[Span],
    digests: Mapping[str, str],
    columns: Sequence[str],
    touched: Collection[str],
    accepted: Collection[str] = (),
) -> None:
    """Compare files whose time changed with the digests of what was read from them.

    Args:
        source: The input as it is now.
        spans: The spans whose results are committed.
        digests: Span number to digest, from the journal.
        columns: What was read of every span.
        touched: Paths of fragments that have another time now, as `Source.fragments` calls them.
        accepted: Paths of files that may have changed.

    Raises:
        InputError: The content of a file is not what was read.
    """
    digest = functools.lru_cache(_KNOWN_EXTENTS)(_of_bytes)
    has_groups = any(not os.path.exists(path) and not is_url(path) for path in touched)
    for span in spans:
        known = digests.get(str(span.index), "")
        extents = _extents(source, span, columns, touched)
        if not extents:
            raise changed(next(iter(touched)), "it cannot be compared with what was read")
        for position, extent in enumerate(extents):
            if extent.file.path in accepted or (extent.file.path not in touched and not has_groups):
                continue
            before = known[position * _DIGITS : (position + 1) * _DIGITS]
            if is_url(extent.file.path) or digest(extent) != before:
                raise changed(extent.file.path, _differing(_rows(span, extents, position), before))


def _extents_now(source: Source, span: Span, columns: Sequence[str]) -> list[Extent]:
    """The extents of a span. Where finding them fails because a file changed, the error says that it changed."""
    try:
        return list(source.extents(span, columns))
    except (InputError, OSError):
        for file in source.fragments():
            _check_file(file)
        raise


def _extents(source: Source, span: Span, columns: Sequence[str], touched: Collection[str]) -> list[Extent]:
    try:
        return list(source.extents(span, columns))
    except InputError as error:  # the file no longer has even its form
        raise changed(next(iter(touched)), str(error.received or error.problem)) from error


def _rows(span: Span, extents: Sequence[Extent], position: int) -> str:
    """The rows that were read from one extent of a span, in words; a single row if every row is a file."""
    if extents[position].nbytes is None and len(extents) == span.rows and span.numbers is None:
        return f"row {span.start + position:,} was"
    return f"rows {span.start:,} to {span.stop - 1:,} were"


def _differing(rows_were: str, before: str) -> str:
    if before in ("", _UNKNOWN):
        return f"{rows_were} predicted, and there is nothing to compare it with"
    return f"other bytes than those that {rows_were} predicted from"


def _check_file(file: Fragment) -> None:
    if is_url(file.path):
        return
    try:
        status = os.stat(file.path)
    except FileNotFoundError:
        raise gone(file.path) from None
    except OSError as error:
        raise changed(file.path, error.strerror or str(error)) from error
    if status.st_size != file.size:
        raise changed(file.path, f"{status.st_size:,} bytes; it had {file.size:,}")
    if status.st_mtime_ns != file.mtime_ns:
        raise changed(file.path, "it was written to, or touched, while it was read")


def digest_of_file(file: Fragment) -> str:
    """The digest of a whole file. Afterwards, the file is checked to be as it was listed.

    Raises:
        InputError: The file changed.
    """
    digest = _of_bytes(Extent(file))
    _check_file(file)
    return digest


def _of_bytes(extent: Extent) -> str:
    """The CRC32C of the bytes of an extent as they are now."""
    left = extent.file.size - extent.start if extent.nbytes is None else extent.nbytes
    value = 0
    try:
        if 0 < left <= _STEP_BYTES:
            return f"{google_crc32c.value(read_bytes(extent.file.path, extent.start, left)):0{_DIGITS}x}"
        with open_binary(extent.file.path) as file:
            file.seek(extent.start)
            while left > 0 and (raw := file.read(min(_STEP_BYTES, left))):
                value = google_crc32c.extend(value, raw)
                left -= len(raw)
    except FileNotFoundError:
        raise gone(extent.file.path) from None
    except OSError as error:
        raise changed(extent.file.path, error.strerror or str(error)) from error
    return f"{value:0{_DIGITS}x}"
