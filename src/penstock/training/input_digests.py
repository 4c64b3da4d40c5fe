"""The digests of a training job's input: they tell files that were only touched from files with another content.

Rows are read in another order in every epoch, so that none of them can be digested on the way: a thread reads the
files once, while training runs. Inputs of many gigabytes, and objects in a store, are not read a second time for this.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence

from penstock.errors import InputError, PenstockError
from penstock.sources.files.paths import fragment, is_url
from penstock.sources.files.unchanged import digest_of_file
from penstock.storage.disk import INTERNAL
from penstock.storage.places import Place

DIGESTS = f"{INTERNAL}/input.json"
_MOST_BYTES = 4 << 30
_AT_ONCE_BYTES = 64 << 20
"""So much is read before training begins: no kill comes in between."""


@contextlib.contextmanager
def digested_meanwhile(place: Place, paths: Callable[[], Sequence[str]], total_bytes: int) -> Iterator[None]:
    """Digest the files of a job while the block runs, unless that was done, and note it in the job's folder.

    Where they are too large, or the block ends before, nothing is noted.
    """
    if total_bytes > _MOST_BYTES or _noted(place) or any(map(is_url, paths())):
        yield
        return
    is_over, writing = threading.Event(), threading.Lock()

    def digest() -> None:
        with contextlib.suppress(PenstockError, OSError):  # a file that is gone or changes, a full disk: the job tells
            digests = [digest_of_file(fragment(path)) for path in paths() if not is_over.is_set()]
            with writing:
                if digests and not is_over.is_set():
                    place.write(DIGESTS, json.dumps(digests).encode())

    thread = threading.Thread(target=digest, daemon=True, name="digests")
    thread.start()
    if total_bytes <= _AT_ONCE_BYTES:
        thread.join()
    try:
        yield
    finally:
        is_over.set()
        with writing:
            pass  # nothing is written into the folder behind the block


def _noted(place: Place) -> list[str]:
    """The digests in a job's folder, in the order of its files; none where there are none, or they are damaged."""
    try:
        return list(json.loads(place.read(DIGESTS) or b"[]"))
    except (ValueError, TypeError):
        return []


def check_same_bytes(place: Place, paths: Sequence[str], hint: str) -> None:
    """Check that files whose time changed are those that training began with.

    Raises:
        InputError: They are not, or it is not known.
    """
    before = _noted(place)
    if len(before) != len(paths):
        raise InputError(
            "the input may have changed since training began",
            received="files with other times than they had, and no digests to compare them with",
            allowed=f"files with their times; digests are taken of local files, of at most {_MOST_BYTES >> 30} GiB",
            hint=hint,
        )
    for path, digest in zip(paths, before, strict=True):
        if digest_of_file(fragment(path)) != digest:
            raise InputError(
                f"the input changed since training began: {path}", received="other bytes than it had", hint=hint
            )
