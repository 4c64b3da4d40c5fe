"""From a model, an input and options to something that runs: the steps that every command shares."""

from __future__ import annotations

import hashlib
import itertools
import json
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from typing import IO, Any

from penstock import registry
from penstock.core import batching, division, mapping
from penstock.core.events import Prepared
from penstock.core.protocols import Engine, Source
from penstock.core.records import (
    Binding,
    Device,
    Fragment,
    Job,
    ModelFile,
    OutputSchema,
    Placement,
    Recipe,
    Result,
    Signature,
    Span,
    TensorSpec,
)
from penstock.engines.embedded import EmbeddedEngine
from penstock.engines.local import LocalEngine
from penstock.errors import InputError, UsageError
from penstock.options import PredictOptions
from penstock.pool import devices
from penstock.pool.supervisor import Launch
from penstock.runtimes.live import LiveModel
from penstock.sources.memory import InMemory, SharedMemory
from penstock.telemetry.meter import Meter

_MOST_LOADERS = 8
_GPU_LANES = 3


@dataclass(frozen=True)
class Fixed:
    """What a resumed run takes from its manifest instead of deciding it again."""

    recipe: Recipe
    bindings: tuple[Binding, ...]
    sample: Span


@dataclass
class Started:
    """A job whose engine is up and whose step is compiled."""

    engine: Engine
    source: Source
    job: Job
    recipe: Recipe
    placement: Placement
    signature: Signature
    prepared: Prepared
    guesses: list[str]
    shared: SharedMemory | None = None

    def close(self) -> None:
        self.engine.close()
        if self.shared is not None:
            self.shared.close()

    def divide(self, part_rows: int | None = None) -> list[Span]:
        """Every span of the input."""
        input_bytes = sum(binding.row_bytes for binding in self.job.bindings)
        output_bytes = 8 + sum(spec.row_bytes for spec in self.prepared.outputs)
        rows = division.rows_per_span(self.job.batch_size, input_bytes, output_bytes, part_rows)
        return list(self.source.divide(rows))

    def rows_per_second(self) -> float:
        """What the warm-up promises: an upper bound, as it has not read anything."""
        return self.placement.replicas * self.job.batch_size / max(self.prepared.batch_seconds, 1e-6)


def start(
    model: ModelFile | LiveModel,
    source: Source,
    options: PredictOptions,
    meter: Meter,
    *,
    log: IO[Any],
    is_verbose: bool = False,
    fixed: Fixed | None = None,
) -> Started:
    """Start the engine, bind columns to inputs, decide the recipe and compile the step.

    The first replica loads while the source is looked at: importing a framework takes seconds.
    """
    shared = None
    _first_rows(source, 1)  # an empty input is told at once, before seconds of loading
    if isinstance(model, LiveModel):
        placement = embedded_placement(model)
        engine: Engine = EmbeddedEngine(model.replicas, placement, meter.observe)
        threads, runtime, kind = devices.usable_cores(), model.backend, model.devices[0].kind
    else:
        if isinstance(source, InMemory):
            source = shared = source.shared()
        runtime = fixed.recipe.runtime if fixed else registry.choose_runtime(model, options.runtime)
        chosen = devices.choose(options.devices)
        threads = fixed.recipe.threads if fixed else options.threads or devices.share_of_cores(len(chosen))
        placement = _placement(chosen)
        launch = Launch(
            registry.RUNTIMES[runtime],
            model,
            threads,
            log,
            descriptors=(shared.descriptor,) if shared is not None else (),
            is_verbose=is_verbose,
        )
        engine = LocalEngine(launch, placement, meter.observe)
        kind = chosen[0].kind
    try:
        source.schema()  # looked at while the first replica loads
        signature = engine.load()
        bindings = fixed.bindings if fixed else bind(signature, source, options)
        batch_size = fixed.recipe.batch_size if fixed else choose_batch_size(signature, bindings, source, options)
        job = Job(source, bindings, options.keep, batch_size)
        sample = fixed.sample if fixed else _first_rows(source, batch_size)
        prepared = engine.prepare(job, sample)
        recipe = Recipe(runtime, kind, batch_size, threads)
        guesses = [] if fixed else mapping.guessed(bindings, options.inputs)
        return Started(engine, source, job, recipe, placement, signature, prepared, guesses, shared)
    except BaseException:
        engine.close()
        if shared is not None:
            shared.close()
        raise


def bind(signature: Signature, source: Source, options: PredictOptions) -> tuple[Binding, ...]:
    """Columns for every input. A model that declares no inputs takes every column that is not kept.

    Arrays without names, as `model.predict` takes them, go to the inputs in order.
    """
    schema = source.schema()
    if getattr(source, "is_positional", False) and len(schema) == len(signature.inputs) and not options.inputs:
        in_order = {spec.name: (name,) for spec, name in zip(signature.inputs, schema, strict=True)}
        return mapping.bind(signature, schema, in_order)
    if signature.inputs:
        return mapping.bind(signature, schema, options.inputs, options.keep)
    free = tuple(spec for name, spec in schema.items() if name not in options.keep)
    if not free:
        raise InputError("no column is left to feed the model", received=f"keep={', '.join(options.keep)}")
    declared = replace(signature, inputs=tuple(_as_keras_takes_it(spec) for spec in free))
    return mapping.bind(declared, schema, options.inputs, options.keep)


def as_lenient_as_keras(signature: Signature, schema: Mapping[str, TensorSpec]) -> Signature:
    """`model.predict` casts floats for an integer input without a word; its drop-in does, too, on the device."""
    inputs = tuple(
        replace(spec, dtype=schema[spec.name].dtype)
        if spec.name in schema and schema[spec.name].dtype.startswith("float") and "int" in spec.dtype
        else spec
        for spec in signature.inputs
    )
    return replace(signature, inputs=inputs)


def _as_keras_takes_it(spec: TensorSpec) -> TensorSpec:
    """Keras turns float64 arrays into float32 before a model sees them; integers stay."""
    return replace(spec, dtype="float32") if spec.dtype == "float64" else spec


def choose_batch_size(
    signature: Signature, bindings: Iterable[Binding], source: Source, options: PredictOptions
) -> int:
    if signature.fixed_batch is not None:
        if options.batch_size not in (None, signature.fixed_batch):
            raise UsageError(
                "the model takes batches of one size only",
                received=f"--batch-size {options.batch_size}",
                allowed=str(signature.fixed_batch),
            )
        return signature.fixed_batch
    if options.batch_size is not None:
        return options.batch_size
    size = batching.default_batch_size(sum(binding.row_bytes for binding in bindings))
    rows = sum(span.rows for span in itertools.islice(source.divide(size), 2))
    return batching.default_batch_size(sum(binding.row_bytes for binding in bindings), rows)


def _first_rows(source: Source, batch_size: int) -> Span:
    first = next(iter(source.divide(batch_size)), None)
    if first is None:
        raise InputError("the input has no rows", received=", ".join(f.path for f in source.fragments()[:3]))
    return first


def _placement(chosen: list[Device]) -> Placement:
    """How many threads read and run beside each other in each replica.

    Reading releases the GIL, so loaders up to the replica's share of the cores help; on a CPU they share the cores
    with the model, and two lanes are enough to hide the copies.
    """
    share = devices.share_of_cores(len(chosen))
    lanes = _GPU_LANES if chosen[0].kind == "gpu" else min(2, share)
    return Placement(tuple(chosen), loaders=min(_MOST_LOADERS, max(1, share)), lanes=lanes)


def embedded_placement(model: LiveModel) -> Placement:
    # Two lanes even on one core: while one converts its answer, the other computes.
    lanes = _GPU_LANES if model.devices[0].kind == "gpu" else 2
    return Placement(tuple(model.devices), loaders=1, lanes=lanes)


def output_schema(started: Started, options: PredictOptions) -> OutputSchema:
    """The columns that will be written, under the names that they will have."""
    source_schema = started.source.schema()
    kept = [source_schema[name] for name in options.keep]
    specs = [*started.prepared.outputs, *kept]
    unknown = [name for name in options.rename if name not in {spec.name for spec in specs}]
    if unknown:
        raise UsageError(
            "--rename names a column that is not written",
            received=unknown[0],
            allowed=", ".join(spec.name for spec in specs),
        )
    named = tuple(replace(spec, name=options.rename.get(spec.name, spec.name)) for spec in specs)
    return OutputSchema(named, len(started.prepared.outputs))


def renamed(result: Result, rename: Mapping[str, str]) -> Result:
    """A result under the names that are written."""
    if not rename:
        return result
    return replace(result, columns={rename.get(name, name): column for name, column in result.columns.items()})


def fingerprint(digest: str, fragments: Iterable[Fragment], request: Mapping[str, Any]) -> str:
    """A digest of everything that decides the output."""
    parts = [digest, [[f.path, f.size, f.mtime_ns] for f in fragments], dict(request)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def versions(runtime: str) -> dict[str, str]:
    """The versions that a manifest records."""
    found = {"python": platform.python_version(), "platform": sys.platform}
    for name in ("penstock", "numpy", "pyarrow", "keras", runtime):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed as a package"
    return found
