"""The output folder of a training job. `--overwrite` puts a job aside until the new one has its first checkpoint."""

import os
import shutil

from penstock.crash_points import crash_point
from penstock.evaluation.targets import LABELS_FILE
from penstock.storage.disk import INTERNAL, make_folders, output_errors
from penstock.storage.fit_manifest import RESULT, FitManifest, load_fit_manifest
from penstock.storage.journal import ALL_FAILURES
from penstock.storage.manifest import MANIFEST
from penstock.storage.places import Place
from penstock.storage.turns import end_turns
from penstock.training.fit_job import BATCH_SIZE, CHECKPOINTS, MODEL
from penstock.training.held_back import VALIDATION_ROWS
from penstock.training.history import EVENTS, HISTORY, STEPS
from penstock.training.input_digests import DIGESTS

_WRITTEN = (
    # The result goes first: without it, the job does not look finished.
    *(RESULT, MODEL, HISTORY, STEPS, LABELS_FILE, ALL_FAILURES),
    *(f"{INTERNAL}/{BATCH_SIZE}", VALIDATION_ROWS, DIGESTS),
    *(CHECKPOINTS, EVENTS, f"{INTERNAL}/cache"),
)
"""Files and folders that a training job writes, beside its manifest."""
_ASIDE = f"{INTERNAL}/replaced"


class FitFolder:
    """The folder of one run of training. The caller holds its lock.

    A kill while another job is put aside, or put back, leaves that job, which the next run puts back: the manifest in
    the folder changes last, and a copy of it is among what was put aside.

    Args:
        place: The folder.
        existing: The job in it that goes on.
        replaces: Whether there is another job in it, which the new one replaces.
    """

    def __init__(self, place: Place, existing: FitManifest | None, *, replaces: bool) -> None:
        self.place = place
        self.existing = existing
        self._replaces = replaces
        self._is_aside = os.path.isdir(self._at(_ASIDE))

    @property
    def holds_another(self) -> bool:
        """Whether a job is here that the new one would have replaced."""
        return self._replaces

    @property
    def is_aside(self) -> bool:
        """Whether the other job has been put aside, and is still there."""
        return self._is_aside

    @property
    def aside(self) -> str | None:
        """The folder of the job that was put aside; None if there is none."""
        return self._at(_ASIDE) if self._is_aside else None

    @property
    def has_checkpoint(self) -> bool:
        """Whether the new job has one."""
        return bool(checkpoints_in(self.place))

    def begin(self, manifest: FitManifest) -> None:
        """Write the new job into the folder, where only the training process can still refuse it."""
        with output_errors():
            if self._is_aside:
                self._remove()  # a job that was to replace it, and never began
            elif self._replaces:
                self._put_aside()
            manifest.save(self.place)

    def keep(self) -> None:
        """There is a checkpoint of the new job: the job that it replaces goes."""
        if self._is_aside:
            shutil.rmtree(self._at(_ASIDE), ignore_errors=True)
            self._is_aside = self._replaces = False

    def give_up(self) -> None:
        """Training did not get as far as a checkpoint: leave what was here before."""
        with output_errors():
            if self._is_aside or not self._replaces:
                self._remove()
            if self._is_aside:
                self._put_back()

    def recover(self, mark: str | None) -> None:
        """Put a job back that a run had put aside when it was killed, unless the new job is to go on.

        `mark` is the fingerprint of the job that is asked for; None where it replaces whatever is here.
        """
        if not self._is_aside:
            return
        new, old = self.place.read(MANIFEST), self.place.read(f"{_ASIDE}/{MANIFEST}")
        is_cut_short = old is None or new is None or old == new
        if not is_cut_short and self.has_checkpoint:
            self.keep()
            return
        begun = None if is_cut_short else load_fit_manifest(self.place)
        if is_cut_short or (mark is not None and begun is not None and begun.fingerprint != mark):
            with output_errors():
                if not is_cut_short:
                    self._remove()
                self._put_back()

    def _put_aside(self) -> None:
        end_turns(self.place.address())
        for name in filter(self._has, _WRITTEN):
            make_folders(os.path.dirname(self._at(f"{_ASIDE}/{name}")))
            os.replace(self._at(name), self._at(f"{_ASIDE}/{name}"))
            crash_point("recovery_removed")
        make_folders(os.path.dirname(self._at(f"{_ASIDE}/{MANIFEST}")))
        self.place.write(f"{_ASIDE}/{MANIFEST}", self.place.read(MANIFEST) or b"")
        self._is_aside = True

    def _put_back(self) -> None:
        for name in _WRITTEN:
            if self._has(f"{_ASIDE}/{name}"):
                self._remove_one(name)
                os.replace(self._at(f"{_ASIDE}/{name}"), self._at(name))
                crash_point("recovery_removed")
        manifest = self.place.read(f"{_ASIDE}/{MANIFEST}")
        if manifest is not None:
            self.place.write(MANIFEST, manifest)
        shutil.rmtree(self._at(_ASIDE), ignore_errors=True)
        self._is_aside = False

    def _remove(self) -> None:
        """Remove the files that a training job writes, and nothing else."""
        for name in _WRITTEN:
            self._remove_one(name)
        # A run that was killed may have left temporary files.
        self.place.remove(f"{name}.tmp" for name in (RESULT, LABELS_FILE, VALIDATION_ROWS, DIGESTS, MANIFEST))
        end_turns(self.place.address())
        self.place.remove([MANIFEST])

    def _remove_one(self, name: str) -> None:
        if os.path.isdir(self._at(name)):
            shutil.rmtree(self._at(name), ignore_errors=True)
        else:
            self.place.remove([name])

    def _has(self, name: str) -> bool:
        return os.path.exists(self._at(name))

    def _at(self, name: str) -> str:
        return os.path.join(self.place.address(), name)


def checkpoints_in(place: Place) -> list[str]:
    """The names of the checkpoints, oldest first."""
    return sorted(os.path.basename(name) for name in place.sizes(CHECKPOINTS) if not name.endswith(".tmp"))
