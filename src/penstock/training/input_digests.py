"""The digests of a training job's input: they tell files that were only touched from files with another content.

Rows are read in another order in every epoch, so that none of them can be digested on the way: a thread reads the
files once, while training runs. Inputs of many gigabytes, and objects in a store, are not read a second time for this.
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
"""So long training waits for the digests: most inputs are small, and no kill comes in between."""
_UNKNOWN = "-"
"""Of a file that cannot be read, or was changed since it was listed."""


@contextlib.contextmanager
def digested_meanwhile(
    place: Place, listed: Sequence[Fragment], files: Callable[[], Sequence[Fragment]]
) -> Iterator[None]:
    """Digest the files of a job while the block runs, unless that was done, and note it in the job's folder.

    Where they are too large, or the block ends before, nothing is noted.

    Args:
        place: The job's folder.
        listed: The input as the manifest has it; one of these may stand for many small files.
        files: Every file.
    """
    if sum(each.size for each in listed) > _MOST_BYTES or _noted(place):
        yield
        return
    is_over, writing = threading.Event(), threading.Lock()

    def digest() -> None:
        with contextlib.suppress(PenstockError, OSError):  # a file that is gone, a full disk: the job tells it
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
            pass  # nothing is written into the folder behind the block


def check_same_bytes(place: Place, files: Sequence[Fragment], touched: str, hint: str) -> None:
    """Check that files of which one was touched are those that training began with.

    Raises:
        InputError: They are not, or it is not known.
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
    """The digests in a job's folder, in the order of its files; none where there are none, or they are damaged."""
    try:
        return list(json.loads(place.read(DIGESTS) or b"[]"))
    except (ValueError, TypeError):
        return []


def _digest(file: Fragment) -> str:
    try:
        return digest_of_file(file)
    except (InputError, OSError):
        return _UNKNOWN
