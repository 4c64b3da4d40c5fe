"""What a job is and how it runs, decided from records alone. No process is started here; sources are read.

    Request, Signature ─► fit ─► Fitted ─► (the engine runs the user's function on some rows) ─► decide ─► Decision

What only a loaded model shows changes a Decision afterwards, one step at a time: `shrink_if_slow` takes the seconds of
a small batch, `without_padding` the result of a padding trial, `with_state` what a call changes in the model.
"""

from dataclasses import dataclass, replace

import numpy as np

from penstock.core import kinds, tuning
from penstock.core.agreement import CHECKED_ROWS, ENOUGH_ROWS
from penstock.core.decoding import Undecoded
from penstock.core.job import Job
from penstock.core.mapping import describe
from penstock.core.messages import Asked, PaddingTrial
from penstock.core.missing import bind_nulls
from penstock.core.plans import Choice
from penstock.core.preprocessing import Preprocess
from penstock.core.protocols import Source
from penstock.core.records import STRING, Binding, Placement, Recipe, Signature, Span
from penstock.core.state import NONE, State
from penstock.errors import DeviceError, InputError, ModelError
from penstock.jobs import buckets as shapes
from penstock.jobs import placement as placing
from penstock.jobs import states, steps
from penstock.jobs.batch_size import choose_batch_size, no_larger_than_input, size_with_state
from penstock.jobs.bind import bind, described_as_floats, fed_as_floats
from penstock.jobs.device_decoding import notes_of, with_decoder
from penstock.jobs.placement import Setting
from penstock.options.records import PredictOptions
from penstock.sources.derived.selection import SelectedRows
from penstock.sources.files.paths import NoRows
from penstock.sources.images.columns import find_images

LEARN_ROWS = 16
"""The user's function runs on so many of the first rows, to find out what it gives."""


@dataclass(frozen=True)
class Resumed:
    """What a resumed run takes from its manifest instead of deciding it again."""

    recipe: Recipe
    bindings: tuple[Binding, ...]
    sample: Span | None
    """The rows that the step is compiled and timed with; None for new files of the job, which have no spans yet."""
    weights: str | None
    split: tuple[int, int] | None = None
    """Replicas on each device, and batches in flight in each."""

    @property
    def choice(self) -> Choice | None:
        if self.split is None:
            return None
        recipe = self.recipe
        return Choice(recipe.runtime, recipe.batch_size, recipe.threads, *self.split, recipe.precision)


@dataclass(frozen=True)
class Request:
    """An input, what is asked for, and what is settled already."""

    source: Source
    options: PredictOptions
    resumed: Resumed | None = None
    planned: Choice | None = None
    answers_rows: int = 0
    """How many answers are kept, to be compared with those of others."""

    @property
    def recipe(self) -> Recipe | None:
        return self.resumed.recipe if self.resumed is not None else None

    @property
    def choice(self) -> Choice | None:
        """The settings that the manifest or a plan has settled."""
        return self.resumed.choice if self.resumed is not None else self.planned

    @property
    def runtime(self) -> str | None:
        """The runtime that is settled or asked for; None where the model decides."""
        settled = self.recipe or self.planned
        return settled.runtime if settled is not None else self.options.runtime


@dataclass(frozen=True)
class Fitted:
    """An input as the model takes it, with the user's function in front of the model."""

    source: Source
    preprocess: Preprocess | None
    options: PredictOptions
    """The options, with the columns that are kept by default."""


@dataclass(frozen=True)
class Decision:
    """A job, and how it runs."""

    job: Job
    setting: Setting
    signature: Signature
    options: PredictOptions
    """The options, with the columns that are kept by default."""
    is_resumed: bool
    is_size_settled: bool
    """Whether the batch size was asked for, planned, or is in the manifest."""
    asked: Asked
    """What is found out with the rows of `sample`."""
    sample: Span
    """The first rows, which the step is compiled and timed with."""
    notes: tuple[str, ...] = ()
    """Lines about it that are shown to the user."""

    @property
    def placement(self) -> Placement:
        return self.setting.placement

    @property
    def recipe(self) -> Recipe:
        decoder = self.job.decoder
        return Recipe(
            self.setting.runtime,
            self.setting.device_kind,
            self.job.batch_size,
            self.setting.threads,
            self.options.precision,
            self.job.buckets,
            is_padded=self.job.fewest_rows is None,
            state=self.job.state,
            engine_share=decoder.share if decoder is not None and decoder.decides_bits else 0.0,
        )


def first_rows(source: Source, rows: int) -> Span:
    """The first span of a source.

    Raises:
        NoRows: It has none.
    """
    first = next(iter(source.divide(rows)), None)
    if first is None:
        is_selected = isinstance(source, SelectedRows)
        raise NoRows(
            "no row is left of the input" if is_selected else "the input has no rows",
            received=", ".join(f.path for f in source.fragments()[:3]),
            hint="--skip leaves out all of it" if is_selected else None,
        )
    return first


def fit(request: Request, signature: Signature) -> Fitted:
    """The input as this model takes it.

    Raises:
        ModelError: A function built the model, and another one than when the job began.
    """
    _check_weights(request.resumed, signature)
    source, options = request.source, request.options
    source = source.fitted_to(signature.inputs)
    preprocess = steps.make_preprocess(source, signature, options)
    if preprocess is not None:
        source = source.with_floats(sorted(described_as_floats(preprocess.takes) - set(options.keep)))
    else:
        source = find_images(source, signature, options.inputs, options.reading, options.keep)
    return Fitted(source, preprocess, steps.keep_by_default(options, source))


def _check_weights(resumed: Resumed | None, signature: Signature) -> None:
    if resumed is not None and resumed.weights != signature.weights:
        raise ModelError(
            "the function built another model than when this job began",
            received=f"weights {signature.weights}",
            allowed=f"weights {resumed.weights}",
            hint="load the weights from a file, or set a seed; or start again with --overwrite",
        )


def decide(fitted: Fitted, signature: Signature, request: Request, setting: Setting) -> Decision:
    """The job, and how it runs, as far as that is known before anything is computed."""
    options, resumed = fitted.options, request.resumed
    bindings = _bind(fitted, signature) if resumed is None or resumed.sample is None else resumed.bindings
    if resumed is not None and bindings != resumed.bindings:
        raise _fed_differently(bindings, resumed.bindings)
    if resumed is not None and fitted.preprocess is not None:
        _check_function(_bind(fitted, signature), bindings)
    source = fitted.source
    if fitted.preprocess is None:  # else bindings name what the function gives, which is not in the file
        source = source.with_floats(sorted(fed_as_floats(bindings) - set(options.keep)))
    if resumed is not None:
        buckets = resumed.recipe.buckets
    else:
        buckets = shapes.choose_buckets(source, bindings, fitted.preprocess, options.buckets)
    job = Job(
        source,
        bindings,
        options.keep,
        _batch_size(request, signature, shapes.sized(bindings, buckets), source, setting.device_kind),
        fitted.preprocess,
        buckets,
        is_traced=options.trace is not None,
        seed=states.seed_of(options, is_live=setting.is_live),
    )
    placement = placing.with_loaders(setting.placement, job, options.loaders)
    job = with_decoder(job, replace(setting, placement=placement), options, request.recipe)
    if resumed is not None and resumed.recipe.state != NONE:
        job, placement = states.settled(job, placement, signature, resumed.recipe.state)
    setting = replace(setting, placement=placement)
    is_padded = resumed.recipe.is_padded if resumed is not None else options.padding != "never"
    job = job if is_padded or not buckets else _of_one_size(job, setting, signature)
    asked = _asked(request, job)
    return Decision(
        job,
        setting,
        signature,
        options,
        is_resumed=resumed is not None,
        is_size_settled=request.choice is not None or resumed is not None or options.batch_size is not None,
        asked=asked,
        sample=(resumed.sample if resumed is not None else None) or _sample(job, asked),
        notes=(*signature.notes, *notes_of(job, options)),
    )


def _fed_differently(new: tuple[Binding, ...], before: tuple[Binding, ...]) -> InputError:
    return InputError(
        "the new files do not feed the model as the files of this job do",
        received="; ".join(map(describe, new)),
        allowed="; ".join(map(describe, before)),
        hint="predict them in another job, with another --output",
    )


def _check_function(new: tuple[Binding, ...], before: tuple[Binding, ...]) -> None:
    """Check that a function that was changed since the job began, as a retry allows, feeds the model as before.

    Raises:
        InputError: It gives columns of other names, types or shapes.
    """
    if len(new) != len(before) or not all(map(_feeds_alike, new, before)):
        raise InputError(
            "the preprocessing function does not feed the model as it did when the job began",
            received="; ".join(map(describe, new)),
            allowed="; ".join(map(describe, before)),
            hint="mend the function, or begin again: with another --output, or with --overwrite",
        )


def _feeds_alike(new: Binding, before: Binding) -> bool:
    is_typed_alike = new.dtype == before.dtype or (
        STRING not in (new.dtype, before.dtype) and bool(np.can_cast(new.dtype, before.dtype))
    )
    is_shaped_alike = len(new.shape) == len(before.shape) and all(
        size in (None, now) for now, size in zip(new.shape, before.shape, strict=True)
    )
    same = replace(new, dtype=before.dtype, shape=before.shape)
    return same == before and is_typed_alike and is_shaped_alike


def _bind(fitted: Fitted, signature: Signature) -> tuple[Binding, ...]:
    function = fitted.preprocess
    columns = function.gives if function is not None else fitted.source.schema()
    bindings = bind(signature, fitted.source, columns, fitted.options)
    return bind_nulls(bindings, signature, fitted.options.nulls, has_function=function is not None)


def _batch_size(
    request: Request, signature: Signature, bindings: tuple[Binding, ...], source: Source, device_kind: str
) -> int:
    if request.recipe is not None:
        return request.recipe.batch_size
    if request.choice is None:
        return choose_batch_size(signature, bindings, source, request.options, device_kind)
    size = request.choice.batch_size
    return size if signature.fixed_batch else no_larger_than_input(source, size)


def _asked(request: Request, job: Job) -> Asked:
    """What is found out with the first rows."""
    options, answers_rows = request.options, request.answers_rows
    is_padding_tried = bool(job.buckets) and request.resumed is None and options.padding == "auto"
    return Asked(
        max(answers_rows, CHECKED_ROWS if options.check else 0),
        is_alone=answers_rows > 0 and bool(job.buckets) and job.state == NONE,
        tolerance=options.tolerance if is_padding_tried else None,
        learn_rows=LEARN_ROWS if options.postprocess is not None else 0,
    )


def _sample(job: Job, asked: Asked) -> Span:
    return first_rows(job.source, max(job.batch_size, ENOUGH_ROWS) if asked.answers_rows else job.batch_size)


def _of_one_size(job: Job, setting: Setting, signature: Signature) -> Job:
    """The job with rows of one size in each batch. Where each shape is compiled, there is one shape for each size."""
    has_one_shape = kinds.runtime(setting.runtime).compiles_each_size or signature.fixed_batch is not None
    return replace(job, fewest_rows=job.batch_size if has_one_shape else 1)


def with_few_rows(decision: Decision) -> Job | None:
    """The job with a small batch, which is timed before a large one is tried. None where that saves no time."""
    job = decision.job
    is_free = not decision.is_size_settled and decision.signature.fixed_batch is None
    is_small = job.batch_size <= 2 * tuning.TRIED_ROWS
    if not is_free or is_small or decision.setting.device_kind != "cpu" or not job.source.traits.is_resumable:
        return None
    return replace(job, batch_size=tuning.TRIED_ROWS, fewest_rows=None)


def shrink_if_slow(decision: Decision, few_s: float) -> Decision:
    """Smaller batches where one by the rule of thumb would keep a CPU busy for long.

    `few_s` are the seconds of the job's batch `with_few_rows`.
    """
    job = replace(decision.job, batch_size=tuning.size_if_slow(decision.job.batch_size, few_s))
    if job.fewest_rows is not None:
        job = _of_one_size(job, decision.setting, decision.signature)
    return replace(decision, job=job, sample=_sample(job, decision.asked))


def without_padding(decision: Decision, trial: PaddingTrial) -> Decision:
    """Rows of one size in each batch, because a trial says that padding changes answers."""
    job = _of_one_size(decision.job, decision.setting, decision.signature)
    note = _describe_padding(trial, decision.setting.runtime)
    asked = replace(decision.asked, tolerance=None)
    return replace(decision, job=job, asked=asked, notes=(*decision.notes, note))


def _describe_padding(trial: PaddingTrial, runtime: str) -> str:
    """Why rows of different sizes do not share a batch."""
    if trial.problem is not None:
        why = f"it could not be found out whether padding changes the answers ({trial.problem})"
    elif trial.difference == float("inf"):
        why = "padding changes the answers"
    else:
        why = f"padding changes the answers, by up to {trial.difference:.2g} of the spread of an output"
    text = f"rows of different sizes: {why}; each batch holds rows of one size"
    if kinds.runtime(runtime).compiles_each_size:
        text += f", and {runtime} compiles once for each size"
    return text


def with_state(decision: Decision, state: State) -> Decision:
    """The job for a model that changes when it is called.

    Raises:
        ModelError: The job is resumed, and the model did not change when it began.
    """
    if decision.is_resumed:
        raise ModelError(
            "the model changes when it is called, and did not when this job began",
            received=str(state),
            hint="are these the versions that began it? start again with --overwrite",
        )
    job, options, signature = decision.job, decision.options, decision.signature
    largest = shapes.sized(job.bindings, job.buckets)
    is_chosen = decision.is_size_settled
    job = replace(job, batch_size=size_with_state(signature, largest, options, job.batch_size, is_chosen=is_chosen))
    job, placement = states.settled(job, decision.placement, signature, states.kind_of(state, job.seed))
    setting = replace(decision.setting, placement=placement)
    if job.buckets and options.padding != "always":
        # No trial shows what padding does to a model that answers differently each time.
        job = _of_one_size(job, setting, signature)
    asked = replace(decision.asked, is_alone=False, tolerance=None)
    return replace(decision, job=job, setting=setting, asked=asked, sample=_sample(job, asked))


def without_decoder(decision: Decision, error: Undecoded) -> Decision:
    """The job with all photos decoded by loaders, because the device does not decode any.

    Raises:
        DeviceError: The job is resumed, and began with photos that were decoded there, with other bits.
    """
    assert decision.job.decoder is not None
    if decision.is_resumed and decision.job.decoder.decides_bits:
        raise DeviceError(
            "the job was begun with a GPU that decodes its JPEGs, and now it does not",
            received=error.received,
            hint="make room on the GPU, or go on where the job was begun",
        ) from error
    note = f"loaders decode all photos: {error.problem} ({error.received})"
    notes = tuple(each for each in decision.notes if each not in notes_of(decision.job, decision.options))
    return replace(decision, job=replace(decision.job, decoder=None), notes=(*notes, note))


def with_last_notes(decision: Decision, state: State) -> Decision:
    """The notes that need the compiled step: what its calls change, and whether batches had to be smaller."""
    job, wanted, notes = decision.job, decision.options.batch_size, decision.notes
    if job.state != NONE:
        notes += (states.describe(state, job),)
    if not decision.is_resumed and wanted is not None:
        # A model with state has batches as large as asked for, however few rows there are.
        useful = wanted if job.state != NONE else no_larger_than_input(job.source, wanted)
        if job.batch_size < useful:
            what = f"--batch-size {wanted:,} is more than the memory of this machine holds"
            notes += (f"{what}: batches of {job.batch_size:,}",)
    return replace(decision, notes=notes)
