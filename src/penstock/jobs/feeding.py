"""How columns reach the model, in words: for prediction, evaluation and training."""

from collections.abc import Sequence

from penstock.core import mapping
from penstock.core.protocols import Source
from penstock.core.records import STRING, Binding
from penstock.jobs import steps
from penstock.options.records import PredictOptions, ReadOptions


def describe_inputs(source: Source, bindings: Sequence[Binding], options: PredictOptions) -> list[str]:
    """What feeds each input, and whether that was given or guessed."""
    is_positional = source.is_positional or source.traits.is_frame
    return mapping.describe_all(bindings, options.inputs, source.schema(), is_positional=is_positional)


def describe_feeding(
    source: Source,
    bindings: Sequence[Binding],
    options: PredictOptions,
    *,
    has_function: bool,
    has_engine: bool = False,
) -> list[str]:
    """Lines about how columns reach the model.

    Args:
        source: Where the columns are from.
        bindings: What feeds which input.
        options: How the job is asked for.
        has_function: Whether the user's function stands before the model.
        has_engine: Whether a GPU decodes JPEGs, or some of them.
    """
    lines = [f"input: {each}" for each in describe_inputs(source, bindings, options)]
    schema = source.schema()
    columns = {name for binding in bindings if binding.dtype != STRING for name in binding.columns}
    if any(name in schema and schema[name].encoding == "image" for name in columns):
        lines.append(_describe_images(options.reading, has_engine=has_engine))
        if steps.make_scaling(options) is None and not has_function:
            lines.append("pixels are fed as 0 to 255; --preset or --scale changes that on the device")
    return lines


def _describe_images(reading: ReadOptions, *, has_engine: bool) -> str:
    scale = "; JPEGs at a smaller scale" if reading.fast_decode else ""
    if has_engine:
        scale += "; JPEGs with the exact transform, on the GPU and by loaders alike"
    return (
        f"images are decoded and resized as by {reading.interpolation} ({reading.resize}{scale}); see --interpolation"
    )
