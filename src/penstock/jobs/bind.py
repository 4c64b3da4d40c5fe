"""Binding: which columns feed which inputs of a model, and which of them are read as floats."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from penstock.core import mapping
from penstock.core.name_patterns import is_no_feature
from penstock.core.protocols import Source
from penstock.core.records import Binding, Signature, TensorSpec
from penstock.errors import InputError
from penstock.options.records import PredictOptions


def fed_as_floats(bindings: Iterable[Binding]) -> set[str]:
    """The columns that feed floats."""
    fed = {name for binding in bindings if binding.dtype.startswith("float") for name in binding.columns}
    pairs = [pair for binding in bindings for pair in binding.columns_of_features()]
    return fed | {name for feature, names in pairs if feature.dtype.startswith("float") for name in names}


def described_as_floats(columns: Mapping[str, TensorSpec]) -> set[str]:
    """The columns that a source describes as floats. The user's function gets floats, even if a value is no number."""
    return {name for name, spec in columns.items() if spec.dtype.startswith("float")}


def bind(
    signature: Signature, source: Source, schema: Mapping[str, TensorSpec], options: PredictOptions
) -> tuple[Binding, ...]:
    """Columns for every input. A model that declares no inputs takes every column that is not kept.

    Arrays without names, as `model.predict` takes them, go to the inputs in order. `schema` is that of the source, or
    what the user's function makes of it.
    """
    for name in options.keep:
        if name not in schema:
            mapping.find(source.schema(), name, "--keep")
    options = replace(options, keep=tuple(name for name in options.keep if name in schema))
    # A dataset for training gives (x, y); the model takes x.
    is_enough = len(schema) == len(signature.inputs) or source.traits.may_have_targets
    if source.is_positional and is_enough and signature.inputs and not options.inputs:
        in_order = {spec.name: (name,) for spec, name in zip(signature.inputs, schema, strict=False)}
        return mapping.bind(signature, schema, in_order, options.keep)
    if source.traits.is_frame and len(signature.inputs) == 1 and not options.inputs:
        # `model.predict` takes all columns of a DataFrame as one array.
        columns = tuple(name for name in schema if name not in options.keep)
        if mapping.may_be_all_of(signature.inputs[0], columns, schema):
            return mapping.bind(signature, schema, {signature.inputs[0].name: columns}, options.keep)
    if signature.inputs:
        return mapping.bind(signature, schema, options.inputs, options.keep, options.as_example)
    if options.inputs:
        # A caller that names some inputs means these and no others.
        free = tuple(mapping.as_named(name, columns, schema) for name, columns in options.inputs.items())
    else:
        free = tuple(spec for name, spec in schema.items() if name not in options.keep)
        # Data in memory was given for the model; a file may hold other columns, too.
        if source.paths:
            free = tuple(spec for spec in free if spec.shape != () or not is_no_feature(spec.name)) or free
    if not free:
        raise InputError("no column is left to feed the model", received=f"keep={', '.join(options.keep)}")
    declared = replace(signature, inputs=tuple(_as_keras_takes_it(spec) for spec in free))
    return mapping.bind(declared, schema, options.inputs, options.keep)


def as_lenient_as_keras(signature: Signature, schema: Mapping[str, TensorSpec]) -> Signature:
    """The signature with float inputs where columns are floats: `model.predict` casts them for an integer input."""
    inputs = tuple(
        replace(spec, dtype=schema[spec.name].dtype)
        if spec.name in schema and schema[spec.name].dtype.startswith("float") and "int" in spec.dtype
        else spec
        for spec in signature.inputs
    )
    return replace(signature, inputs=inputs)


def _as_keras_takes_it(spec: TensorSpec) -> TensorSpec:
    """Keras turns float64 arrays into float32 before a model sees them; integers stay. Lists may have any length."""
    if spec.varies and spec.shape:
        spec = replace(spec, shape=(None, *spec.shape[1:]))
    return replace(spec, dtype="float32") if spec.dtype == "float64" else spec
