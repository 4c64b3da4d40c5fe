"""A job of training on files: its records, and the messages between the coordinator and the process that trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.core.protocols import Source
from penstock.core.records import Device, ModelFile
from penstock.core.shuffling import RowSet
from penstock.core.tracing import Mark
from penstock.core.training import Gang
from penstock.options.fit_records import FitOptions
from penstock.options.records import PredictOptions
from penstock.sources.files.unchanged import find_changed

MODEL, CHECKPOINTS = "model.keras", "checkpoints"
"""The names of what training writes to its folder."""
BATCH_SIZE = "batch_size.json"
"""The file, beside the manifest, of a batch size that was measured: a resumed run uses the same one."""


@dataclass(frozen=True)
class SourceRows:
    """Rows of a source, for training or validation, with their labels.

    Labels of text are numbers here already (`CodedLabels`).
    """

    source: Source
    rows: RowSet | None = None
    """Which rows of the source; None for all."""


@dataclass(frozen=True)
class FitJob:
    """Everything that the process that trains needs.

    Args:
        model: The model that is trained.
        train: The rows for training.
        validation: The rows for validation after every epoch.
        options: How the model is loaded, how rows are read, and where it runs.
        asked: The options of training.
        folder: The output folder; the process writes the model, checkpoints and history to it.
        devices: The devices that train.
        threads: The number of the framework's threads.
        backend: The backend of Keras.
        classes: How many classes the labels of an output have, if they are text; "" is the only output.
        class_weights: How much a row counts, by its class.
        cache_key: The fingerprint of the job. It identifies the cache on disk, and the job in its checkpoints.
        gang: The place of the process among several that train together; None where it trains alone.
        staging: The folder of files that are not whole yet, for this life of the process (`storage.turns`).
    """

    model: ModelFile
    train: SourceRows
    validation: SourceRows | None
    options: PredictOptions
    asked: FitOptions
    folder: str
    devices: tuple[Device, ...]
    threads: int
    backend: str
    classes: Mapping[str, int] = field(default_factory=dict)
    class_weights: Mapping[int, float] = field(default_factory=dict)
    cache_key: str = ""
    is_verbose: bool = False
    gang: Gang | None = None
    staging: str = ""

    @property
    def is_first(self) -> bool:
        """Whether this process writes model, checkpoints, history and bad rows: in a gang, only the first one does."""
        return self.gang is None or self.gang.rank == 0

    @property
    def batch_size(self) -> int:
        """Rows of a global batch. If it is to be measured, that was done before."""
        assert isinstance(self.asked.batch_size, int)
        return self.asked.batch_size

    @property
    def validation_is_of_train(self) -> bool:
        """Whether the rows for validation are held back from the input of training."""
        return self.validation is not None and not self.asked.validation

    def check_input(self) -> None:
        """Check that the files have not changed since training began: a checkpoint is valid only for the same files.

        Raises:
            InputError: One of them changed.
        """
        selected = [self.train, *([self.validation] if self.validation is not None else [])]
        files = {fragment.path: fragment for each in selected for fragment in each.source.fragments()}
        error = find_changed(files.values())
        if error is not None:
            raise error


@dataclass(frozen=True)
class Train:
    """Train to the end, from the newest checkpoint on. `sys_path` is the user's `sys.path`."""

    job: FitJob
    sys_path: tuple[str, ...]


@dataclass(frozen=True)
class Stop:
    """End after the step that is under way, with a checkpoint."""


@dataclass(frozen=True)
class Note:
    """A line for the user."""

    text: str


@dataclass(frozen=True)
class StartReport:
    """The model is on its devices. `rows` is the number of rows of an epoch, and `step` that of steps made before."""

    rows: int
    batches: int
    step: int
    devices: tuple[str, ...]
    inputs: Mapping[str, list[str]] = field(default_factory=dict)
    """The columns that feed every input."""


@dataclass(frozen=True)
class Times:
    """How long this process was in each stage since it started. In a traced job, also when, since the last report."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class StepReport:
    """How far training has come. `logs` are the loss and metrics of this epoch so far."""

    epoch: int
    batch: int
    rows: int
    step: int
    logs: Mapping[str, float]
    times: Times


@dataclass(frozen=True)
class EpochReport:
    """An epoch is over: loss and metrics of training and validation."""

    epoch: int
    step: int
    logs: Mapping[str, float]


@dataclass(frozen=True)
class CheckpointReport:
    """A checkpoint was written."""

    step: int


@dataclass(frozen=True)
class EndReport:
    """Training is over: finished, or stopped (`is_stopped`) with a checkpoint."""

    epoch: int
    step: int
    is_stopped: bool
    failed: int
    first_failure: str | None = None
    history: tuple[Mapping[str, float], ...] = ()
    """Loss and metrics of every epoch, also of those before an interruption."""
    times: Times = field(default_factory=Times)
    kept: int = 0
    """The step of the last checkpoint."""
    rows: int = 0
    """The number of good rows of an epoch."""


Report = Note | StartReport | StepReport | EpochReport | CheckpointReport | EndReport
