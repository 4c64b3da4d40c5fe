"""Models that change when they are called: how a job runs them."""

from dataclasses import replace

from penstock.core.job import Job
from penstock.core.protocols import Source
from penstock.core.records import Placement, Signature
from penstock.core.state import SEEDS, VARIABLES, State
from penstock.options.records import PredictOptions
from penstock.sources.derived.selection import WholeBatches


def seed_of(options: PredictOptions, *, is_live: bool) -> int | None:
    """The seed by which a model draws random numbers. Without one a live model goes on from where its own generators
    stand, as in `model.predict`."""
    return (options.seed or None) if is_live else options.seed


def kind_of(state: State, seed: int | None) -> str:
    """How a model is run. A model that goes on from where its own generators stand runs in order."""
    return VARIABLES if state.kind == SEEDS and seed is None else state.kind


def settled(job: Job, placement: Placement, signature: Signature, kind: str) -> tuple[Job, Placement]:
    """The job for a model of this kind of state, and where it runs.

    Where variables change, spans are whole batches, whatever files they come from, and one replica runs one at a time.
    """
    job = replace(job, state=kind)
    if kind != VARIABLES:
        return job, placement
    job = replace(job, source=in_whole_batches(job.source), is_trimmed=signature.fixed_batch is None)
    most = 1 if placement.has_loader_processes else placement.most_loaders
    return job, replace(placement, devices=placement.devices[:1], loaders=1, lanes=1, most_loaders=most)


def in_whole_batches(source: Source) -> Source:
    """The source in spans of one size. The spans of a stream have one size already."""
    return WholeBatches(source) if source.traits.is_resumable else source


def describe(state: State, job: Job) -> str:
    """What a call changes, and what the job does about it."""
    if job.state == SEEDS:
        return (
            f"the model draws random numbers ({state}): each batch of {job.batch_size:,} rows draws by the "
            f"seed {job.seed} and its first row"
        )
    text = f"the model keeps state ({state}): one replica, batches of {job.batch_size:,} rows in order"
    if not state.is_repeatable:
        text += "; another run gives other answers, as nothing can put that state back"
    return text
