"""What a started job settles for its manifest, and what a resumed one takes from there: records without processes."""

from dataclasses import dataclass

from penstock.core import division
from penstock.core.protocols import Source
from penstock.core.records import Binding, OutputSchema, Recipe
from penstock.jobs import output_columns
from penstock.jobs.bring_up import Started
from penstock.jobs.decide import Resumed
from penstock.storage.manifest import Manifest


@dataclass(frozen=True)
class Settled:
    """All that a manifest takes from a job that was brought up.

    Args:
        source: The input as the model takes it.
        recipe: What decides the bits.
        split: Replicas on each device, and batches in flight in each.
        bindings: Which columns feed which input.
        schema: What is written.
        columns: What is read of the input.
        weights: A digest, for a model that a function built.
        division: The rows of a span, and the most where the format wants more.
        part_rows: The most rows of a part.
        is_streamed: Whether spans are not known beforehand and cannot be read again.
    """

    source: Source
    recipe: Recipe
    split: tuple[int, int]
    bindings: tuple[Binding, ...]
    schema: OutputSchema
    columns: tuple[str, ...]
    weights: str | None
    division: tuple[int, int]
    part_rows: int
    is_streamed: bool


def settled_by(started: Started) -> Settled:
    """What a job that is up, with its finisher, settles."""
    schema = output_columns.output_schema(started, started.options)
    part_rows = started.options.part_rows
    return Settled(
        started.source,
        started.recipe,
        started.split,
        started.job.bindings,
        schema,
        started.job.columns,
        started.signature.weights,
        started.division(part_rows),
        part_rows or division.rows_per_part(schema.row_bytes, started.rows_per_second()),
        started.is_streamed,
    )


def resumed_from(manifest: Manifest, kind: str = "", *, is_append: bool = False) -> Resumed:
    """What is fixed for a run that goes on with a job, on this kind of node, or appends to it."""
    sample = None if is_append else manifest.spans[manifest.generations[-1].first_span]
    settings = manifest.kind(kind)
    return Resumed(settings.recipe, manifest.bindings, sample, manifest.weights, settings.split)
