"""Which columns become the features of the serialized `tf.train.Example` records that a model parses."""

import difflib
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from penstock.core.columns import OPAQUE
from penstock.core.records import STRING, Binding, Feature, Shape, Signature, TensorSpec
from penstock.errors import InputError

Schema = Mapping[str, TensorSpec]
Chosen = Mapping[str, Sequence[str]]

RAW_RECORD = "example"
"""The column in which a source of records gives every record whole, as it was serialized."""


def feature_names(signature: Signature) -> list[str]:
    """Every feature that an input of the model is parsed into."""
    return [feature.name for features in signature.examples.values() for feature in features]


def bind_records(
    signature: Signature, schema: Schema, chosen: Chosen, keep: Sequence[str], as_example: bool | None
) -> tuple[dict[str, Binding], dict[str, tuple[str, ...]]]:
    """The inputs that are built from columns, and those that take a column of records as it is.

    Args:
        signature: What the model takes.
        schema: The columns of the source.
        chosen: The columns that the user gave to inputs and features.
        keep: Columns that are only written along.
        as_example: Whether records are built from columns; None: if the model says what it parses, and no column holds
            records.

    Raises:
        InputError: A feature has no column, or one that does not fit.
    """
    built: dict[str, Binding] = {}
    fed: dict[str, tuple[str, ...]] = {}
    for spec in _record_inputs(signature, schema, chosen, as_example):
        features = signature.examples.get(spec.name, ())
        raw = None if as_example else _raw_column(spec, features, schema, chosen)
        if raw is not None:
            fed[spec.name] = (raw,)
        elif as_example is not False:
            built[spec.name] = _build(spec, features, schema, chosen, keep)
    return built, fed


def _record_inputs(signature: Signature, schema: Schema, chosen: Chosen, as_example: bool | None) -> list[TensorSpec]:
    if signature.examples or not as_example:
        return [spec for spec in signature.inputs if spec.name in signature.examples]
    texts = [spec for spec in signature.inputs if spec.dtype == STRING and spec.shape in ((), None)]
    free = [spec for spec in texts if spec.name not in schema] or texts
    if len(free) != 1:
        raise InputError(
            "it is not clear which input takes records" if free else "no input of the model takes records",
            received="--as-example",
            allowed=", ".join(f"{spec.name} {spec}" for spec in signature.inputs),
        )
    return free


def _raw_column(spec: TensorSpec, features: Sequence[Feature], schema: Schema, chosen: Chosen) -> str | None:
    """The column that holds whole records, if there is one."""
    wanted = chosen.get(spec.name)
    if wanted is not None:
        return wanted[0] if len(wanted) == 1 and _is_text(schema[wanted[0]]) else None
    names = {feature.name for feature in features}
    if names & set(chosen):
        return None
    for name in (spec.name, RAW_RECORD):
        if name in schema and name not in names and _is_text(schema[name]):
            return name
    return None


def _is_text(column: TensorSpec) -> bool:
    return column.dtype == STRING and column.shape in ((), None)


def _build(
    spec: TensorSpec, features: Sequence[Feature], schema: Schema, chosen: Chosen, keep: Sequence[str]
) -> Binding:
    offered = chosen.get(spec.name)
    if features:
        columns = _columns_of(features, schema, chosen, offered)
        bound = tuple(
            replace(feature, num_columns=len(columns[feature.name])) for feature in features if feature.name in columns
        )
    else:
        names = offered or [name for name in schema if name not in (*keep, RAW_RECORD)]
        bound = tuple(_feature_of(schema[name]) for name in names)
        columns = {name: (name,) for name in names}
    if not bound:
        raise InputError("no column is left to make records of", received=f"columns {shown_names(list(schema))}")
    for feature in bound:
        _check(feature, _joined(columns[feature.name], schema))
    fed = tuple(name for feature in bound for name in columns[feature.name])
    return Binding(spec.name, fed, STRING, (), features=bound)


def _columns_of(
    features: Sequence[Feature], schema: Schema, chosen: Chosen, offered: Sequence[str] | None
) -> dict[str, tuple[str, ...]]:
    """Feature name to columns. A feature with a default may have no column, but one feature at least must have one."""
    columns: dict[str, tuple[str, ...]] = {}
    for feature in features:
        given = tuple(chosen.get(feature.name, (feature.name,)))
        if all(name in (schema if offered is None or feature.name in chosen else offered) for name in given):
            columns[feature.name] = given
    missing = [feature for feature in features if feature.name not in columns and feature.is_required]
    if missing or not columns:
        used = {name for names in columns.values() for name in names}
        raise _missing(missing or features, schema, [name for name in schema if name not in used])
    return columns


def _joined(columns: tuple[str, ...], schema: Schema) -> TensorSpec:
    """A column, or several columns of numbers that are stacked."""
    specs = [schema[name] for name in columns]
    if len(specs) == 1:
        return specs[0]
    odd = next((spec for spec in specs if spec.shape != () or spec.dtype in (STRING, OPAQUE)), None)
    if odd is not None:
        raise InputError("only columns of single numbers can be stacked into a feature", received=f"{odd.name} {odd}")
    dtype = np.result_type(*(np.dtype(spec.dtype) for spec in specs)).name
    return TensorSpec(f"{columns[0]} … {columns[-1]}", dtype, (len(specs),))


def _missing(features: Sequence[Feature], schema: Schema, free: Sequence[str]) -> InputError:
    first = features[0]
    close = difflib.get_close_matches(first.name, free, n=1)
    column = close[0] if close else "COLUMN"
    is_vector = first.shape is not None and math.prod(length or 1 for length in first.shape) > 1
    if is_vector and close and schema[column].shape == ():
        column = "prefix*"
    return InputError(
        "these features of the model have no column of the same name",
        received=f"columns {shown_names(list(schema))}",
        allowed=shown_names([f"{feature.name} {feature}" for feature in features]),
        hint=f"say which column it is: --input {shlex.quote(f'{first.name}={column}')}",
    )


def _feature_of(column: TensorSpec) -> Feature:
    """A feature as the column has it, for a model that does not say what it parses."""
    if column.dtype == STRING or column.encoding is not None:
        kind = STRING
    elif column.dtype == OPAQUE:
        raise InputError(
            "this column cannot be part of a record",
            received=f"{column.name} {column}",
            allowed="text, numbers, and lists of them",
            hint=f"leave it out with --keep {column.name}, or name the columns: --input INPUT=COLUMN,…",
        )
    else:
        kind = "float32" if "float" in column.dtype else "int64"
    is_fixed = column.encoding is None and not column.varies and column.shape is not None and None not in column.shape
    return Feature(column.name, kind, column.shape if is_fixed else None, is_required=False)


def _check(feature: Feature, column: TensorSpec) -> None:
    if not _holds(feature.dtype, column):
        problem = f"the dtype {column.dtype}"
    elif not _fits(feature.shape, column):
        problem = f"the shape {TensorSpec('', column.dtype, column.shape)}"
    else:
        return
    raise InputError(
        f"the feature {feature.name!r} does not take {problem}",
        received=f"{column.name} {column}",
        allowed=f"{feature.name} {feature}",
        hint=f"choose another column: --input {feature.name}=COLUMN",
    )


def _holds(kind: str, column: TensorSpec) -> bool:
    if kind == STRING:
        return column.dtype == STRING or column.encoding is not None
    if column.dtype in (STRING, OPAQUE) or column.encoding is not None:
        return False
    return np.dtype(column.dtype).kind in ("iub" if kind == "int64" else "fiub")


def _fits(shape: Shape | None, column: TensorSpec) -> bool:
    """Whether the rows of this column may have as many values as the feature. Lists are checked later, row by row."""
    if shape is None or None in shape or column.shape is None or column.encoding is not None or column.varies:
        return True
    wanted = math.prod(length for length in shape if length is not None)
    return None in column.shape or math.prod(length for length in column.shape if length is not None) == wanted


def shown_names(names: Sequence[str], limit: int = 12) -> str:
    """Names for a message, and not too many of them."""
    shown = ", ".join(names[:limit])
    return (f"{shown}, … ({len(names)} in all)" if len(names) > limit else shown) or "nothing"
