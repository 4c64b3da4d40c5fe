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
"""What training writes to its folder."""
BATCH_SIZE = "batch_size.json"
"""Where the batch size is kept that was measured, beside the manifest: a resumed run has the same."""


@dataclass(frozen=True)
class SourceRows:
    """Rows that a model is trained on or measured with: which of a source, with which labels.

    Labels that are text are numbers by now (`CodedLabels`).
    """

    source: Source
    rows: RowSet | None = None
    """Which of them; None for all."""


@dataclass(frozen=True)
class FitJob:
    """Everything that the process that trains needs.

    Args:
        model: What is trained.
        train: The rows that it learns from.
        validation: The rows that it is measured with after every epoch.
        options: How the model is loaded, how rows are read, and where it runs.
        asked: What is learned and how.
        folder: Where everything is written; the process writes the model, checkpoints and history.
        devices: What it trains on.
        threads: Of the framework.
        backend: Of Keras.
        classes: How many classes the labels of an output have, where they are text; "" is the only output.
        class_weights: How much a row counts, by its class.
        cache_key: What a cache on disk is told apart by.
        gang: The place of the process among several that train together; None where it trains alone.
        staging: Where this life of it writes files until they are whole (`storage.turns`).
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
        """Whether this process writes model, checkpoints, history and bad rows: one of a gang does."""
        return self.gang is None or self.gang.rank == 0

    @property
    def batch_size(self) -> int:
        """Rows of a global batch. It was measured by now, where that was asked for."""
        assert isinstance(self.asked.batch_size, int)
        return self.asked.batch_size

    @property
    def validation_is_of_train(self) -> bool:
        """Whether rows to measure with are held back of the input that is trained on."""
        return self.validation is not None and not self.asked.validation

    def check_input(self) -> None:
        """Check that the files are those that training began with: a checkpoint is of one state of them.

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
    """Train to the end, from the newest checkpoint on. `sys_path` is that of the user."""

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
    """The model is on its devices. `rows` are those of an epoch; `step` were made before."""

    rows: int
    batches: int
    step: int
    devices: tuple[str, ...]
    inputs: Mapping[str, list[str]] = field(default_factory=dict)
    """The columns that feed every input."""


@dataclass(frozen=True)
class Times:
    """How long this process was at each stage since it started; and when, since the last report, in a traced job."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class StepReport:
    """How far training is. `logs` are of this epoch so far."""

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
    """Of an epoch, without bad ones."""


Report = Note | StartReport | StepReport | EpochReport | CheckpointReport | EndReport
