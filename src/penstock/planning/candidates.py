"""Candidates: the runtimes that could run a model on a device here, the most promising first."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.core import kinds
from penstock.core.kinds import RuntimeEntry
from penstock.core.records import Binding, ModelFile, Recipe, TensorSpec
from penstock.runtimes.catalog import executes


@dataclass(frozen=True)
class Candidate:
    """A runtime that may be faster than the model's own. `why_not` says why it cannot be tried."""

    runtime: str
    is_converted: bool = False
    why_not: str | None = None


def candidates(
    model: ModelFile, recipe: Recipe, bindings: Sequence[Binding], outputs: Sequence[TensorSpec] = ()
) -> list[Candidate]:
    """Every runtime, other than the recipe's, that could execute the model on the same kind of device.

    Those that cannot be tried come last.
    """
    own, device_kind = recipe.runtime, recipe.device_kind
    ranked = sorted(
        (entry.rank[device_kind], name)
        for name, entry in kinds.runtimes().items()
        if device_kind in entry.rank and device_kind in entry.device_kinds and name != own
    )
    others: list[Candidate] = []
    for _, name in ranked:
        entry = kinds.runtime(name)
        if not recipe.is_padded and entry.compiles_each_size:
            others.append(Candidate(name, why_not="it compiles anew for each size of rows, and there are many"))
        elif executes(model, name) and _is_alike(kinds.runtime(own), entry):
            why_not = _missing(entry) or _too_wide(entry, bindings, outputs)
            others.append(Candidate(name, why_not=why_not))
        elif entry.reads_steps and _has_steps(model):
            lacks = kinds.missing_to_convert()
            if lacks is not None:
                why_not = _missing(entry) or f"it needs a converted model, and that needs {lacks}"
            elif can_convert(model, own):
                why_not = _missing(entry) or _too_wide(entry, bindings, outputs)
            else:
                continue
            others.append(Candidate(name, is_converted=True, why_not=why_not))
    return sorted(others, key=lambda candidate: candidate.why_not is not None)


def _is_alike(own: RuntimeEntry, other: RuntimeEntry) -> bool:
    """Whether another runtime loads a model as its own runtime does: no other Keras reads what only tf_keras reads."""
    return own.loader is None or other.loader in (None, own.loader)


def can_convert(model: ModelFile, own: str) -> bool:
    return kinds.runtime(own).writes_steps and _has_steps(model)


def needs_conversion(model: ModelFile, runtime: str) -> bool:
    """Whether a runtime reads only what was converted from this model."""
    return kinds.runtime(runtime).reads_steps and _has_steps(model)


def _has_steps(model: ModelFile) -> bool:
    return any(each.has_steps for each in kinds.model_formats().values() if each.kind == model.kind)


def _too_wide(entry: RuntimeEntry, bindings: Sequence[Binding], outputs: Sequence[TensorSpec]) -> str | None:
    """Why a runtime would lose digits: OpenVINO cuts integers to 32 bits, Keras on JAX or torch float64 weights."""
    cut = [binding.input for binding in bindings if binding.dtype in entry.narrows]
    if cut:
        return f"it has no whole numbers as wide as {cut[0]} takes"
    dtypes = {binding.input: binding.dtype for binding in bindings} | {spec.name: spec.dtype for spec in outputs}
    double = [name for name, dtype in dtypes.items() if dtype == "float64"]
    return f"it does not compute {double[0]} in float64" if double and not entry.has_float64 else None


def _missing(entry: RuntimeEntry) -> str | None:
    return None if entry.package.is_installed else f"not installed: {entry.package.install}"
