"""The objects under one prefix of a remote store: whole reads, whole writes, and writes on a condition.

Stores differ in what they promise. S3 and Google Cloud Storage create an object only where there is none, in one step;
S3 also replaces an object only if it has not changed. In other stores we look first and then write, and two runs may
both do so at the same moment: the journal's numbers and the lock's token still distinguish them afterwards.

A call may be done although its answer was lost, and is then done again. So every write is safe to repeat, and a
condition that fails is checked against what is there: it may be our own.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from penstock.core.retrying import http_status, may_pass, retrying
from penstock.errors import DeviceError, OutputError, UsageError
from penstock.storage.disk import RESUMABLE, checksum_of

T = TypeVar("T")

ATTEMPT, CHECKSUM = "penstock-attempt", "penstock-crc32c"
"""The names of the metadata of an object that a node of a cluster has created."""
_AT_ONCE = 16
_TRIES = 9
"""Half a minute in all: an hour of predictions is worth that."""
_HASTY_TRIES = 3
_WITHOUT_FOLDERS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "memory"})
_READ_ONLY = ("http://", "https://")


class ConditionFailed(Exception):
    """The object is there already, or is no longer what it was."""


class NoConditions(Exception):
    """The store does not write on a condition."""


class Objects:
    """Objects by their names under `url`.

    Every method raises OutputError, with the address, if the store refuses, or cannot be reached in any of the tries.
    """

    def __init__(self, url: str, *, tries: int = _TRIES, sleep: Callable[[float], object] = time.sleep) -> None:
        self.url = url.rstrip("/")
        self._tries = tries
        self._sleep = sleep
        self._store, self._root = _open(url)
        self._has_folders = not _WITHOUT_FOLDERS & set(_protocols(self._store))
        self._is_s3 = hasattr(self._store, "call_s3")

    def hasty(self) -> Objects:
        """The same objects with fewer retries: for calls that may fail, or that a person waits for."""
        hasty = copy.copy(self)
        hasty._tries = min(_HASTY_TRIES, self._tries)
        return hasty

    def address(self, name: str) -> str:
        return f"{self.url}/{name}" if name else self.url

    def children(self) -> dict[str, str] | None:
        """What lies directly under the prefix, as name to `file` or `directory`; None where nothing does."""
        entries = self._ask("", lambda: self._store.ls(self._root, detail=True))
        if entries is None:
            return None
        kinds = {self._name(entry["name"]): entry["type"] for entry in entries}
        if not any(entry["size"] for entry in entries if not self._name(entry["name"])):
            kinds.pop("", None)  # the empty object that some tools put in the place of a folder
        return kinds

    def sizes(self, folder: str = "") -> dict[str, int]:
        """The objects directly in a folder, with their sizes."""
        entries = self._ask(folder, lambda: self._store.ls(self._path(folder), detail=True)) or []
        files = {self._name(entry["name"]): int(entry["size"]) for entry in entries if entry["type"] == "file"}
        within = f"{folder}/" if folder else ""
        return {name: size for name, size in files.items() if name.startswith(within) and name != within}

    def read(self, name: str) -> bytes | None:
        """The content of an object; None where there is none."""
        content: bytes | None = self._ask(name, lambda: self._store.cat_file(self._path(name)))
        return content

    def read_each(self, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """The objects in their order, read several at once; those that do not exist are left out."""
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            for first in range(0, len(names), _AT_ONCE):
                some = names[first : first + _AT_ONCE]
                for name, content in zip(some, threads.map(self.read, some), strict=True):
                    if content is not None:
                        yield name, content

    def read_tagged(self, name: str) -> tuple[bytes, str] | None:
        """The content of an object, and the tag with which `replace` replaces exactly this content."""
        # The tag comes first: if the object changes in between, the old tag guards the new content, and a replacement
        # is refused. The other way round it would be allowed.
        tag = self._ask(name, lambda: self._store.info(self._path(name))["ETag"]) if self._is_s3 else None
        content = self.read(name)
        return None if content is None else (content, tag or _digest(content))

    def write(self, name: str, content: bytes) -> None:
        """Put an object, whole, in the place of any other."""
        self._tell(name, lambda: self._store.pipe_file(self._path(name), content))

    def create(self, name: str, content: bytes) -> bool:
        """Put an object where there is none; returns whether the object there is now this one."""
        try:
            self._tell(name, lambda: self._store.pipe_file(self._path(name), content, mode="create"))
        except ConditionFailed:
            return self.read(name) == content
        except NoConditions:
            if (there := self.read(name)) is not None:
                return there == content
            self.write(name, content)
        return True

    def replace(self, name: str, content: bytes, tag: str) -> bool:
        """Put an object in the place of the one with this tag; returns whether the object there is now this one."""
        if not self._is_s3:
            return self._look_and_replace(name, content, tag)
        bucket, key, _ = self._store.split_path(self._path(name))
        put = {"Bucket": bucket, "Key": key, "Body": content, "IfMatch": tag}
        try:
            self._tell(name, lambda: self._store.call_s3("put_object", **put))
        except ConditionFailed:
            return self.read(name) == content
        except NoConditions:
            return self._look_and_replace(name, content, tag)
        return True

    def _look_and_replace(self, name: str, content: bytes, tag: str) -> bool:
        current = self.read_tagged(name)
        if current is None or current[1] != tag:
            return current is not None and current[0] == content
        self.write(name, content)
        return True

    def upload(self, path: str, name: str, *, only_new: bool, metadata: Mapping[str, str] | None = None) -> bool:
        """Put a local file, which appears when it is complete; False where `only_new` finds one there.

        Stores that have metadata keep `metadata` with it.
        """
        mode = "create" if only_new else "overwrite"
        options = {"Metadata": dict(metadata)} if metadata and self._is_s3 else {}
        try:
            self._tell(name, lambda: self._store.put_file(path, self._path(name), mode=mode, **options))
        except ConditionFailed:
            return False
        except NoConditions:
            is_free = name not in self.sizes(os.path.dirname(name))
            return is_free and self.upload(path, name, only_new=False, metadata=metadata)
        return True

    def has_content(self, name: str, size: int, checksum: str) -> bool:
        """Whether an object has this size and this CRC32C: by its metadata, or by reading it where it has none."""
        said = self._described(name)
        if said is None or said[0] != size:
            return False
        if said[1]:
            return said[1] == checksum
        content = self.read(name)
        return content is not None and checksum_of(content) == checksum

    def sizes_of(self, checksums: Mapping[str, str]) -> dict[str, int]:
        """The sizes of objects; -1 of one that is not there, or whose metadata has another CRC32C."""
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            said = dict(zip(checksums, threads.map(self._described, checksums), strict=True))
        return {
            name: each[0] if each is not None and each[1] in ("", checksums[name]) else -1
            for name, each in said.items()
        }

    def _described(self, name: str) -> tuple[int, str] | None:
        """The size of an object, and the CRC32C in its metadata or ""; None where there is no object."""
        if not self._is_s3:
            entry = self._ask(name, lambda: self._store.info(self._path(name)))
            return None if entry is None else (int(entry["size"]), "")
        bucket, key, _ = self._store.split_path(self._path(name))
        head = self._ask(name, lambda: self._store.call_s3("head_object", Bucket=bucket, Key=key))
        return None if head is None else (int(head["ContentLength"]), head["Metadata"].get(CHECKSUM, ""))

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects. One that is not there is as good as removed."""
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            list(threads.map(self._remove, names))

    def _remove(self, name: str) -> None:
        self._ask(name, lambda: self._store.rm_file(self._path(name)))

    def abort_uploads(self, is_ours: Callable[[str], bool]) -> None:
        """Drop what S3 holds of uploads in pieces that were never completed: it is invisible, and paid for.

        Other stores drop it by themselves. If the store refuses to list them, they stay.
        """
        if not self._is_s3:
            return
        bucket, root, _ = self._store.split_path(self._root)
        asked: dict[str, str] = {"Bucket": bucket, "Prefix": f"{root}/"}
        with contextlib.suppress(OutputError):
            while True:
                look = functools.partial(self._store.call_s3, "list_multipart_uploads", **asked)
                found = self._ask("", look) or {}
                for upload in found.get("Uploads", ()):
                    key, number = upload["Key"], upload["UploadId"]
                    if is_ours(name := key.removeprefix(f"{root}/")):
                        self._ask(name, functools.partial(self._store.abort_mpu, bucket, key, number))
                if not found.get("IsTruncated"):
                    return
                asked |= {"KeyMarker": found["NextKeyMarker"], "UploadIdMarker": found["NextUploadIdMarker"]}

    def drop_folder(self, name: str) -> None:
        """Remove a folder if it is empty, in a store that has folders."""
        if self._has_folders or "memory" in _protocols(self._store):
            with contextlib.suppress(OSError):
                self._store.rmdir(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _name(self, path: str) -> str:
        return path.strip("/").removeprefix(self._root.strip("/")).strip("/")

    def _ask(self, name: str, call: Callable[[], T]) -> T | None:
        """What the store answers; None where there is no such object."""
        try:
            return retrying(call, is_transient=may_pass, sleep=self._sleep, tries=self._tries)
        except FileNotFoundError:
            return None
        except Exception as error:
            raise _explained(error, self.address(name)) from error

    def _tell(self, name: str, call: Callable[[], object]) -> None:
        """Make a call that writes.

        Raises:
            ConditionFailed: The condition of the write does not hold.
            NoConditions: The store has no conditional writes.
        """
        try:
            if self._has_folders:
                self._store.makedirs(self._store._parent(self._path(name)), exist_ok=True)
            retrying(call, is_transient=may_pass, sleep=self._sleep, tries=self._tries)
        except FileExistsError as error:
            raise ConditionFailed(name) from error
        except Exception as error:
            if http_status(error) == 412:
                raise ConditionFailed(name) from error
            if http_status(error) == 501:
                raise NoConditions(name) from error
            raise _explained(error, self.address(name)) from error


def _open(url: str) -> tuple[Any, str]:
    """The file system behind a URL, and the path in it."""
    if url.startswith(_READ_ONLY):
        raise UsageError("an output cannot be written over http", received=url, allowed="s3://, gs://, az://, a folder")
    try:
        import fsspec.core  # type: ignore[import-untyped]
    except ImportError as error:
        raise DeviceError("fsspec is not installed", received=url, hint="pip install 'penstock[remote]'") from error
    # No listing is kept: other runs and people write here, too.
    options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
    if url.startswith(("s3://", "s3a://")):
        # Only our own layer decides how often a call is tried.
        options["config_kwargs"] = {"retries": {"total_max_attempts": 1}, "max_pool_connections": 2 * _AT_ONCE}
    try:
        store, path = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        raise DeviceError(
            "the library for this kind of URL is not installed",
            received=f"{url}: {error}",
            hint="pip install 'penstock[remote]' for s3://; gcsfs for gs://, adlfs for az://",
        ) from error
    except ValueError as error:
        raise UsageError("this kind of URL is not known", received=f"{url}: {error}") from error
    if not path.strip("/"):
        raise UsageError("the URL names no place", received=url, allowed="s3://BUCKET/PREFIX")
    if hasattr(store, "retries"):
        store.retries = 1
    return store, path.rstrip("/")


def _protocols(store: Any) -> tuple[str, ...]:
    return (store.protocol,) if isinstance(store.protocol, str) else tuple(store.protocol)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _explained(error: Exception, address: str) -> OutputError:
    """The problem, the address, what the store said, and what to do about it."""
    said = f"{address}: {error or type(error).__name__}"
    if isinstance(error, _types("botocore.exceptions", "NoCredentialsError", "PartialCredentialsError")):
        return OutputError(
            "there are no credentials for the output",
            received=said,
            hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
        )
    if isinstance(error, PermissionError):
        return OutputError(
            "there is no permission to write to the output",
            received=said,
            hint="the credentials must be allowed to list, get, put and delete objects there",
        )
    if isinstance(error, FileNotFoundError):
        return OutputError(
            "the bucket of the output does not exist", received=said, hint="make it first, or check its name"
        )
    if isinstance(error, NotImplementedError):
        return OutputError("the output cannot be written to a place of this kind", received=said)
    problem = "the output cannot be reached" if may_pass(error) else "the output cannot be written"
    return OutputError(problem, received=said, hint=RESUMABLE)


def _types(module: str, *names: str) -> tuple[type[BaseException], ...]:
    """Types of a module that may not be installed; one that is not loaded cannot have raised anything."""
    loaded = sys.modules.get(module)
    return tuple(getattr(loaded, name) for name in names) if loaded is not None else ()
