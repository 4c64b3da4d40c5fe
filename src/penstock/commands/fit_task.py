"""An opened training job on files: its model, its input, and the description that its fingerprint covers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from penstock.core.protocols import Source
from penstock.core.records import Fragment, ModelFile
from penstock.errors import ModelError, UsageError
from penstock.jobs import steps
from penstock.jobs.open import open_data, open_model
from penstock.jobs.trained_with import inputs_of_training
from penstock.options.fit_records import FITTED_WITH, FitOptions
from penstock.options.records import PredictOptions
from penstock.options.table import Decides
from penstock.runtimes.keras.backends import MODEL_KINDS
from penstock.sources.files.paths import fragments as listing


@dataclass(frozen=True)
class FitTask:
    """A training job, opened: its model and its input, and the description that its fingerprint covers."""

    model: ModelFile
    source: Source
    validation: Source | None
    output: str
    options: PredictOptions
    asked: FitOptions
    request: dict[str, Any]
    notes: tuple[str, ...] = ()
    overwrite: bool = False
    is_verbose: bool = False
    is_resumed: bool = False
    """Whether the user resumes the job in the folder: model, input and options are those of its manifest."""

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        held = self.validation.fragments() if self.validation is not None else ()
        return (*self.source.fragments(), *held)

    def files(self) -> list[Fragment]:
        """Every file as it was listed. In `fragments`, one entry may stand for many small files."""
        sources = (self.source, *([self.validation] if self.validation is not None else []))
        return [file for source in sources for file in listing(source.paths)]


def make_fit_task(
    model: Any,
    data: Any,
    output: str | None,
    options: PredictOptions,
    asked: FitOptions,
    for_live_models: Mapping[str, Any] = MappingProxyType({}),
) -> FitTask:
    """Open a training job. Values in `for_live_models` are refused, because they are only for live models.

    Raises:
        UsageError: There are no labels or no output, or the input is not files.
        ModelError: Models of this kind cannot be trained.
    """
    for name, value in for_live_models.items():
        if value is not None:
            raise UsageError(
                f"{name} is for a live Keras model",
                received=f"{name} of {type(value).__name__}, model={model!r:.60}",
                hint="keras.models.load_model(path), then penstock.fit(model, x, y); in files label='COLUMN'",
            )
    if output is None:
        raise UsageError(
            "a model that is trained on files is written to a folder",
            received=f"model={model!r:.60}, no output",
            hint="output='trained/'; a live model is trained as it is: keras.models.load_model(path)",
        )
    if not asked.label:
        raise UsageError("training needs true answers", hint="name their column: --label COLUMN, or --label @folder")
    file, _, location = open_model(model, options)
    if file.kind not in MODEL_KINDS:
        raise ModelError(
            "models of this kind are run, not trained",
            received=f"{file.location}: {file.kind}",
            allowed="a .keras or .h5 file, or module:function that builds a Keras model",
        )
    source, arguments = open_data(data, options.reading)
    if arguments is None:
        raise UsageError(
            "files are trained on in a folder; data in memory needs a live model",
            received=type(data).__name__,
            hint="penstock.fit(keras.models.load_model(path), x, y)",
        )
    options, notes = inputs_of_training(location, source, options)
    file = replace(file, inputs=tuple(options.inputs))
    held: Source | None = None
    if asked.validation:
        held, paths = open_data(list(asked.validation), options.reading, takes="files")
        asked = replace(asked, validation=tuple(paths or ()))
    request = {"model": location, "data": arguments, **options_as_json(options, asked, Decides.OUTPUT)}
    return FitTask(file, source, held, output, options, asked, request, tuple(notes))


def options_as_json(options: PredictOptions, asked: FitOptions, *decides: Decides) -> dict[str, Any]:
    """The options of a training job that decide these things, as JSON."""
    others = steps.as_json(options, lambda each: each.name in FITTED_WITH and each.decides in decides)
    return {**others, **steps.as_json(asked, lambda each: each.decides in decides)}
