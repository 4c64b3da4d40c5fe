"""Files behind URLs, through fsspec: read in ranges, tried again where that may help.

Each process has one file system for each kind of store: fsspec would make one for each thread, with a session of its
own. Its own retries are turned off; `core.retrying` decides. Only open connections are kept, and copies of files from
web servers that send only whole files.
"""

import hashlib
import io
import os
import re
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from penstock.core.records import Fragment
from penstock.core.retrying import http_status, may_pass, retrying
from penstock.errors import DeviceError, InputError, one_line

T = TypeVar("T")

TRIES = 5
_COPY_BYTES = 4 << 20
_MOST_COPIES = 8
_NOT_FOUND = (404, 410)
_NOT_IN_FILE = 416
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_INSTALL = {
    "gs": "pip install gcsfs",
    "gcs": "pip install gcsfs",
    "az": "pip install adlfs",
    "abfs": "pip install adlfs",
}
_VERSIONS = ("ETag", "etag", "md5Hash", "content_md5", "Content-MD5", "Last-Modified", "LastModified", "last_modified")


def is_url(path: str) -> bool:
    return _URL.match(path) is not None


def protocol_of(url: str) -> str:
    return url.partition("://")[0].lower()


def is_web(url: str) -> bool:
    return protocol_of(url) in ("http", "https")


_file_systems: dict[tuple[int, str], Any] = {}
_lock = threading.Lock()


def file_system(url: str) -> Any:
    """The fsspec file system of a URL, made once in each process.

    Raises:
        DeviceError: fsspec, or the package for this protocol, is not installed.
        InputError: The protocol is unknown.
    """
    protocol = protocol_of(url)
    key = os.getpid(), protocol
    with _lock:
        if key not in _file_systems:
            _file_systems[key] = _make_file_system(url, protocol)
        return _file_systems[key]


def _make_file_system(url: str, protocol: str) -> Any:
    install = _INSTALL.get(protocol, "pip install 'penstock[remote]'")
    try:
        import fsspec  # type: ignore[import-untyped]
    except ImportError:
        raise DeviceError("fsspec is not installed", received=url, hint="pip install 'penstock[remote]'") from None
    options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
    if protocol in ("s3", "s3a"):
        options["config_kwargs"] = {"retries": {"total_max_attempts": 1}, "max_pool_connections": 32}
        options["max_concurrency"] = 1  # more would ask for the size of an object before every read
    try:
        made = fsspec.filesystem(protocol, **options)
    except ImportError as error:
        raise DeviceError(f"{protocol}:// cannot be read: {error}", received=url, hint=install) from None
    except ValueError as error:
        known = "s3://, gs://, az://, http://, https://, file://, memory://"
        raise InputError("unknown protocol", received=f"{url}: {error}", allowed=known) from None
    if hasattr(made, "retries"):
        made.retries = 1
    return made


def key_of(url: str) -> str:
    """A URL in the form that its file system takes: `bucket/key`."""
    key: str = file_system(url)._strip_protocol(url)
    return key


def trying(url: str, call: Callable[[], T], sleep: Callable[[float], object] = time.sleep, tries: int = TRIES) -> T:
    """What `call` returns. After an error that may be temporary, it is called again, at most `tries` times in all.

    Raises:
        FileNotFoundError, PermissionError: As for a file of this machine, without another try.
        InputError: Any other error, or the error of the last try.
    """
    made = 0

    def counted() -> T:
        nonlocal made
        made += 1
        try:
            return call()
        except FileNotFoundError as error:
            # fsspec takes every error of a web server for a missing file.
            if is_web(url) and error.__cause__ is not None and http_status(error.__cause__) not in _NOT_FOUND:
                raise error.__cause__ from None
            raise

    try:
        return retrying(counted, is_transient=_passes, sleep=sleep, tries=tries)
    except (FileNotFoundError, PermissionError, InputError, DeviceError):
        raise
    except Exception as error:
        if type(error).__name__ == "FileExpired":
            raise changed(url) from error
        times = "once" if made == 1 else f"{made} times"
        raise InputError("the file cannot be read", received=f"{url}: {one_line(error)} (tried {times})") from error


def _passes(error: Exception) -> bool:
    """Whether an error may be temporary. A truncated answer is one, although aiohttp gives it the cause `400`."""
    return type(error).__name__ == "ClientPayloadError" or may_pass(error)


def changed(url: str) -> InputError:
    return InputError("the file changed while it was read", received=url, hint="start the job again")


def read_bytes(url: str, start: int = 0, nbytes: int | None = None) -> bytes:
    """A piece of an object in one request."""
    if nbytes == 0:
        return b""
    if is_web(url):
        # A web server may ignore the range and send everything, which RangedFile handles.
        with RangedFile(url) as file:
            file.seek(start)
            return file.readall() if nbytes is None else file.read(nbytes) or b""
    system, key = file_system(url), key_of(url)
    begin = start if start or nbytes is not None else None
    end = None if nbytes is None else start + nbytes
    try:
        piece: bytes = trying(url, lambda: system.cat_file(key, start=begin, end=end))
    except InputError as error:
        if error.__cause__ is not None and http_status(error.__cause__) == _NOT_IN_FILE:
            return b""  # from the end on, as in a file of this machine
        raise
    return piece


def read_many(urls: Sequence[str], at_once: int = 16) -> list[bytes | Exception]:
    """Whole objects, of one store or several, `at_once` requests at a time; an error stands in its object's place."""
    with ThreadPoolExecutor(min(at_once, max(1, len(urls)))) as threads:
        return list(threads.map(_read_or_error, urls))


def _read_or_error(url: str) -> bytes | Exception:
    try:
        return read_bytes(url)
    except (OSError, InputError) as error:
        return error


class RangedFile(io.RawIOBase):
    """An object as a file that can be read at any offset: every read is one ranged request, and nothing is kept.

    S3 is asked for the version that was found on opening, so that an object that changes meanwhile is noticed.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._offset = 0
        self._file: Any = trying(url, self._open)
        self.size: int = self._file.size

    def _open(self) -> Any:
        file = file_system(self.url).open(key_of(self.url), "rb", cache_type="none")
        return _LocalCopy(self.url) if type(file).__name__ == "HTTPStreamFile" else file

    @property
    def version(self) -> int | None:
        """The version, as in `Fragment.mtime_ns`; None where asking for it would cost a request."""
        return version_of(self._file.details) if protocol_of(self.url) in ("s3", "s3a") else None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._offset

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._offset = max(0, offset + (0, self._offset, self.size)[whence])
        return self._offset

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), self.size - self._offset)
        if wanted <= 0:
            return 0
        view[:wanted] = trying(self.url, lambda: self._fetch(self._offset, wanted))
        self._offset += wanted
        return wanted

    def readall(self) -> bytes:
        return self.read(max(0, self.size - self._offset)) or b""

    def _fetch(self, start: int, nbytes: int) -> bytes:
        try:
            self._file.seek(start)
            data: bytes = self._file.read(nbytes)
        except ValueError:
            if not is_web(self.url) or isinstance(self._file, _LocalCopy):
                raise
            self._file = _LocalCopy(self.url)  # the server gives whole files only
            return self._fetch(start, nbytes)
        if len(data) != nbytes:
            raise ConnectionError(f"{len(data)} bytes came, {nbytes} were asked for")
        return data

    def close(self) -> None:
        if not self.closed and hasattr(self, "_file"):
            self._file.close()
        super().close()


class _WholeFile:
    """A copy in a file without a name, which is removed when its last user closes it."""

    def __init__(self, url: str) -> None:
        with tempfile.TemporaryFile(prefix="penstock-") as file:
            with file_system(url).open(key_of(url), "rb", block_size=0) as stream:
                shutil.copyfileobj(stream, file, _COPY_BYTES)
            file.flush()
            self.descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self.descriptor)


_copies: dict[tuple[int, str], _WholeFile] = {}


class _LocalCopy:
    """A file that a web server sends only whole: each process copies it once, and the last few copies are kept."""

    def __init__(self, url: str) -> None:
        key = os.getpid(), url
        with _lock:
            copy = _copies.pop(key, None)
        self._copy = copy or _WholeFile(url)
        with _lock:
            _copies[key] = self._copy
            while len(_copies) > _MOST_COPIES:
                _copies.pop(next(iter(_copies)))
        self._offset = 0
        self.size = os.fstat(self._copy.descriptor).st_size

    def seek(self, offset: int) -> None:
        self._offset = offset

    def read(self, nbytes: int) -> bytes:
        return os.pread(self._copy.descriptor, nbytes, self._offset)  # others read it, too: its offset must not move

    def close(self) -> None:
        """Nothing: the copy is removed with its last user."""


def fragment(url: str) -> Fragment:
    """The entry of an object in the fingerprint, with a number from its ETag, or its time of change, as the time."""
    system, key = file_system(url), key_of(url)
    info = trying(url, lambda: system.info(key))
    size = info.get("size")
    if size is None:
        with RangedFile(url) as file:
            size = file.size
    return Fragment(url, int(size), version_of(info))


def version_of(info: dict[str, Any]) -> int:
    """A number that changes with the object, made from what its store lists of it."""
    version = next((str(info[name]) for name in _VERSIONS if info.get(name)), None)
    if version is None:
        version = str(info.get("mtime") or info.get("created") or "")
    plain = version.removeprefix("W/").strip('"')
    return int.from_bytes(hashlib.blake2b(plain.encode(), digest_size=8).digest(), "big") >> 1
