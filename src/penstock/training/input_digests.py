"""The digests of a training job's input: they distinguish files that were only touched from files with new content.

Rows are read in another order in every epoch, so they cannot be digested while they are read for training: a thread
reads the files once more, while training runs. This is not done for inputs of more than 4 GiB, nor for objects in a
store.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence

from penstock.core.records import Fragment
from penstock.errors import InputError, PenstockError
from penstock.sources.files.paths import is_url
from penstock.sources.files.unchanged import digest_of_file
from penstock.storage.disk import INTERNAL
from penstock.storage.places import Place

DIGESTS = f"{INTERNAL}/input.json"
_MOST_BYTES = 4 << 30
_AT_ONCE_S = 2.0
"""How long training waits for the digests at its start: most inputs are small, and are digested before any kill."""
_UNKNOWN = "-"
"""The digest of a file that cannot be read, or that has changed since it was listed."""


@contextlib.contextmanager
def digested_meanwhile(
    place: Place, listed: Sequence[Fragment], files: Callable[[], Sequence[Fragment]]
) -> Iterator[None]:
    """Digest the files of a job while the context is open, and write the digests into the job's folder.

    Nothing is written if they are there already, if the files are too large, or if the context ends before the digests
    are ready.

    Args:
        place: The job's folder.
        listed: The input as in the manifest, in which one entry may stand for many small files.
        files: Returns every file.
    """
    if sum(each.size for each in listed) > _MOST_BYTES or _noted(place):
        yield
        return
    is_over, writing = threading.Event(), threading.Lock()

    def digest() -> None:
        with contextlib.suppress(PenstockError, OSError):  # a lost file or a full disk: the job itself reports it
            as_listed = {file.path: file for file in listed}
            every = [as_listed.get(file.path, file) for file in files()]
            if any(is_url(file.path) for file in every):
                return
            digests = [_digest(file) for file in every if not is_over.is_set()]
            with writing:
                if digests and not is_over.is_set():
                    place.write(DIGESTS, json.dumps(digests).encode())

    thread = threading.Thread(target=digest, daemon=True, name="digests")
    thread.start()
    thread.join(_AT_ONCE_S)
    try:
        yield
    finally:
        is_over.set()
        with writing:
            pass  # wait for a write that has begun: afterwards, nothing is written into the folder


def check_same_bytes(place: Place, files: Sequence[Fragment], touched: str, hint: str) -> None:
    """Check that files, one of which was touched, still have the content with which training began.

    Raises:
        InputError: The content has changed, or there are no digests to compare it with.
    """
    noted = _noted(place)
    if not noted or len(noted) != len(files):
        raise InputError(
            f"the input may have changed since training began: {touched}",
            received="another time than it had, and no digest to compare it with",
            allowed=f"files with their times (cp -p); local files of at most {_MOST_BYTES >> 30} GiB are digested",
            hint=hint,
        )
    for file, digest in zip(files, noted, strict=True):
        if _digest(file) != digest:
            raise InputError(
                f"the input changed since training began: {file.path}", received="other bytes than it had", hint=hint
            )


def _noted(place: Place) -> list[str]:
    """The digests in a job's folder, in the order of its files; an empty list where they are missing or damaged."""
    try:
        return list(json.loads(place.read(DIGESTS) or b"[]"))
    except (ValueError, TypeError):
        return []


def _digest(file: Fragment) -> str:
    try:
        return digest_of_file(file)
    except (InputError, OSError):
        return _UNKNOWN
