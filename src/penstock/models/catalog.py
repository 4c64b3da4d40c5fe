"""Opens a model: each format recognises its own files."""

import os

from penstock.core.kinds import FileFacts, model_formats
from penstock.core.records import ModelFile
from penstock.errors import ModelError


def open_model(
    location: str, *, signature: str | None = None, trust: bool = False, own: tuple[str, ...] = ()
) -> ModelFile:
    """The model behind a path or `module:function`. `own` are the modules that the user named for its classes.

    Raises:
        ModelError: No format recognises it, or it is damaged, or needs trust.
    """
    file = find_model(location, signature=signature, trust=trust, own=own)
    if file is not None:
        return file
    if not os.path.exists(location):
        raise ModelError("no such model", received=location, allowed=_allowed())
    raise ModelError(
        "this is not a model that penstock knows", received=location, allowed=_allowed(), hint=_hint(location)
    )


def _hint(location: str) -> str | None:
    """What to give instead of a folder that holds checkpoints, a model, or a training job that has not ended."""
    if not os.path.isdir(location):
        return None
    names = sorted(os.listdir(location))
    if "checkpoint" in names:
        return f"of an Estimator's checkpoint: --estimator module:function --checkpoint {location}"
    models = [name for name in names if name.endswith(_suffixes())]
    if models:
        return f"give the model in this folder: {os.path.join(location, models[0])}"
    if {"_penstock", "checkpoints"} <= set(names):
        return f"training has not ended there: penstock resume {location} goes on and writes model.keras"
    return None


def _suffixes() -> tuple[str, ...]:
    return tuple(each.looks_like for each in model_formats().values() if each.looks_like.startswith("."))


def _allowed() -> str:
    forms = [each.looks_like for each in model_formats().values()]
    suffixes = ", ".join(_suffixes())
    *others, last = [form for form in forms if not form.startswith(".")]
    return ", ".join([f"a file ({suffixes})", *others, f"or {last}"])


def find_model(
    location: str, *, signature: str | None = None, trust: bool = False, own: tuple[str, ...] = ()
) -> ModelFile | None:
    """As `open_model`, but None where no format recognises it."""
    for each in model_formats().values():
        file = each.recognise(location, signature=signature, trust=trust, own=own)
        if file is not None:
            return file
    return None


def facts_of(model: ModelFile) -> FileFacts:
    """What a model's file says about itself, without running it."""
    model_format = next((each for each in model_formats().values() if each.kind == model.kind), None)
    return model_format.facts(model) if model_format is not None else FileFacts(None, 0)
