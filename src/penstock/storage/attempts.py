"""How a node of a cluster brings what it has written to the output. Only the driver commits it.

An attempt is one try to build a piece on one node; its name is unique among all runs. A node whose piece was given to
another node may still write for a while: nothing that it writes can be taken for a part of the job.

On a shared disk a node writes to a folder of the attempt, inside that of the run, which the driver has made. Only the
driver renames. When the attempt or the run is over, its folder is removed, and with it what a late node still writes.

On object storage a node creates objects under the final names, each only where there is none, with the attempt and the
CRC32C in the object's metadata. Where an object of that name has the same bytes, it is as good as the node's own. Where
it has other bytes (of another kind of node, or of one that ran out of memory), the node takes the next name of this
part, as a part that is built again does. No node overwrites or removes an object, so none can harm what another has
delivered or committed; objects that no record names are removed when the run ends. A node that finds the lock of its
run gone, or another lock in its place, is late and creates nothing: nothing would remove what it created then.
"""

import itertools
import os
import shutil
from dataclasses import replace
from typing import Protocol

from penstock.crash_points import crash_point
from penstock.errors import OutputError
from penstock.storage.disk import output_errors
from penstock.storage.journal import piece_number
from penstock.storage.local_folder import LocalFolder, attempt_folder
from penstock.storage.objects import ATTEMPT, CHECKSUM, Objects
from penstock.storage.part_builder import StagedPart
from penstock.storage.places import Place, place_of
from penstock.storage.scratch import Scratch

_MOST_NAMES = 100


class NodeOutput(Protocol):
    """The output of a job as a node sees it."""

    def begin(self, attempt: str) -> str:
        """Make the folder for the temporary files of an attempt.

        Raises:
            OutputError: The run is over, or the disk refuses.
        """
        ...

    def deliver(self, attempt: str, staged: StagedPart) -> StagedPart:
        """Bring a part that was built in the folder of an attempt to the output; returns what the driver commits.

        Raises:
            OutputError: The output refuses it, or the run is over.
        """
        ...

    def drop(self, attempt: str) -> None:
        """Remove the folder of an attempt. May be called twice."""
        ...

    def close(self) -> None: ...


def node_output(output: str, run: str, mark: str) -> NodeOutput:
    """The output of the run of a cluster with the name `run`; `mark` is in the lock that its driver holds."""
    place = place_of(output)
    return _OnDisk(place.path, run) if isinstance(place, LocalFolder) else _InStore(place, Objects(output), mark)


class _OnDisk:
    def __init__(self, path: str, run: str) -> None:
        self._path = path
        self._run = run

    def begin(self, attempt: str) -> str:
        folder = self._folder(attempt)
        with output_errors():
            # Its parents are not made: where the folder of the run is gone, the run is over, and this node is late.
            os.mkdir(folder)
        return folder

    def deliver(self, attempt: str, staged: StagedPart) -> StagedPart:
        crash_point("attempt_staged")
        paths = {os.path.relpath(path, self._path): name for path, name in staged.paths.items()}
        return StagedPart(staged.record, paths, attempt)

    def drop(self, attempt: str) -> None:
        shutil.rmtree(self._folder(attempt), ignore_errors=True)

    def close(self) -> None:
        """Nothing is open."""

    def _folder(self, attempt: str) -> str:
        return os.path.join(self._path, attempt_folder(self._run, attempt))


class _InStore:
    def __init__(self, place: Place, objects: Objects, mark: str) -> None:
        self._place = place
        self._objects = objects
        self._mark = mark
        self._scratch = Scratch()

    def begin(self, attempt: str) -> str:
        folder = os.path.join(self._scratch.path, attempt)
        with output_errors():
            os.mkdir(folder)
        return folder

    def deliver(self, attempt: str, staged: StagedPart) -> StagedPart:
        if self._place.mark() != self._mark:
            raise OutputError("the run that this part was built for is over", received=self._place.address())
        for cut in itertools.islice(itertools.count(staged.record.cut), _MOST_NAMES):
            named = with_cut(staged, cut)
            if all(self._upload(attempt, path, name, named) for path, name in named.paths.items()):
                crash_point("attempt_uploaded")
                self.drop(attempt)
                return StagedPart(named.record, {name: name for name in named.paths.values()}, attempt)
        raise OutputError(
            "the names of a part are all taken by other objects",
            received=", ".join(map(self._objects.address, staged.paths.values())),
            hint="remove what is there under these names and no journal knows: penstock verify lists it",
        )

    def drop(self, attempt: str) -> None:
        shutil.rmtree(os.path.join(self._scratch.path, attempt), ignore_errors=True)

    def close(self) -> None:
        self._scratch.remove()

    def _upload(self, attempt: str, path: str, name: str, staged: StagedPart) -> bool:
        """Create an object from a file; returns whether the object of this name, new or not, has the file's bytes."""
        checksum = staged.record.checksums[name]
        metadata = {ATTEMPT: attempt, CHECKSUM: checksum}
        if self._objects.upload(path, name, only_new=True, metadata=metadata):
            return True
        return self._objects.has_content(name, os.path.getsize(path), checksum)


def with_cut(staged: StagedPart, cut: int) -> StagedPart:
    """The same part under the names of another cut."""
    record = staged.record
    if cut == record.cut:
        return staged
    old, new = piece_number(record.part, record.cut), piece_number(record.part, cut)

    def renamed(name: str) -> str:
        folder, base = os.path.split(name)
        return os.path.join(folder, base.replace(old, new, 1))

    files = {renamed(name): size for name, size in record.files.items()}
    checksums = {renamed(name): value for name, value in record.checksums.items()}
    paths = {path: renamed(name) for path, name in staged.paths.items()}
    return StagedPart(replace(record, cut=cut, files=files, checksums=checksums), paths, staged.attempt)
