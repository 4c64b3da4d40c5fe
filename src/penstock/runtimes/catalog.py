"""Which runtime executes a model: the one asked for, or the first that is installed and loads it."""

import os
from collections.abc import Callable
from typing import TypeVar

from penstock.core.kinds import runtime, runtimes
from penstock.core.records import ModelFile
from penstock.errors import DeviceError, ModelError, RefusedByRuntime

Loaded = TypeVar("Loaded")


def is_installed(name: str) -> bool:
    """Whether a runtime can be used, found out without importing its framework."""
    return runtime(name).package.is_installed


def executes(model: ModelFile, name: str) -> bool:
    """Whether a runtime reads this kind of model."""
    entry = runtime(name)
    return name in model.runtimes or entry.variant_of in model.runtimes or model.kind in entry.kinds


def choose_runtime(model: ModelFile, wanted: str | None) -> str:
    """The runtime to use: the one asked for, or the first that is installed and executes this kind of model.

    Raises:
        DeviceError: The framework is not installed.
        ModelError: The runtime asked for does not execute this kind of model.
    """
    if wanted is not None and not executes(model, wanted):
        raise ModelError(
            f"the {wanted} runtime does not execute this kind of model",
            received=f"{model.kind} at {model.location}",
            allowed=", ".join(model.runtimes),
        )
    candidates = (wanted,) if wanted is not None else _preferred(model)
    for name in candidates:
        if is_installed(name):
            return name
    raise DeviceError(
        f"{' or '.join(candidates)} is not installed",
        received=f"a model of kind {model.kind}",
        hint=runtime(candidates[0]).package.install,
    )


def _preferred(model: ModelFile) -> tuple[str, ...]:
    """The runtimes of a model, best first. In the code of a builder, `tf.keras` means what it means in this process."""
    is_legacy = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
    if model.kind == "builder" and is_legacy and "tf_keras" in model.runtimes:
        return ("tf_keras", *(name for name in model.runtimes if name != "tf_keras"))
    # A model that only another package's runtime executes: the model's format names the runtime, or the runtime
    # names the kind of model.
    return model.runtimes or tuple(name for name, entry in runtimes().items() if model.kind in entry.kinds)


def on_the_first_that_loads(
    model: ModelFile, wanted: str | None, load: Callable[[str], Loaded]
) -> tuple[Loaded, str | None]:
    """The result of `load` for the runtime that was asked for, or for the first that does not refuse the model.

    Keras 3 reads most files of Keras 2, and tf_keras reads the others: only an attempt shows which. The second value is
    a note for the user, why another runtime than the first choice is used; None where the first choice is used.
    """
    first = choose_runtime(model, wanted)
    try:
        return load(first), None
    except RefusedByRuntime as error:
        other = _after_refusal(model, first) if wanted is None else None
        if other is None:
            raise
        refusal = error
    try:
        return load(other), f"{other} is used, because {first} refuses the model: {refusal.received}"
    except RefusedByRuntime as second:
        # The error is that of the first choice, with its reason first: the other runtime was only a last resort.
        reasons = f"{refusal.received}; {second.received}"
        raise ModelError(refusal.problem, received=reasons, allowed=refusal.allowed, hint=refusal.hint) from None


def _after_refusal(model: ModelFile, refused: str) -> str | None:
    """The runtime that may load what another one refused; None where there is none."""
    others = [name for name in model.runtimes if name != refused and not _have_one_loader(name, refused)]
    return next((name for name in others if is_installed(name)), None)


def _have_one_loader(name: str, other: str) -> bool:
    """Whether two runtimes load models with the same library. If so, a model that one refuses is refused by both."""
    loader = runtime(name).loader
    return loader is not None and loader == runtime(other).loader


def like(model: ModelFile, used: str) -> list[str]:
    """The runtimes that load what `used` loaded: Keras 3 runs on several frameworks, and tf_keras is another Keras.

    Variants of them come last, as do runtimes that name the model's kind and that the model does not name.
    """
    own = [name for name in model.runtimes if name == used or _have_one_loader(name, used)]
    entries = runtimes().items()
    others = (name for name, entry in entries if entry.variant_of in own or model.kind in entry.kinds)
    return [*own, *(name for name in others if name not in own)]


def own_runtime(model: ModelFile, used: str) -> str:
    """The runtime that counts as the model's own: the other runtimes are compared with it.

    For Keras models this is TensorFlow, where they were most likely trained, unless only tf_keras reads them.
    """
    first = next(iter(model.runtimes), used)
    if _have_one_loader(first, used) and is_installed(first):
        return first
    # A runtime that the model does not name reads a conversion of the model, or compiles what another runtime loads.
    chosen = used if used in model.runtimes else choose_runtime(model, None)
    return used if chosen == used else own_runtime(model, chosen)
