"""Which columns feed which input of the model: as the user gave them, or guessed where there is no doubt."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from penstock.core.columns import OPAQUE
from penstock.core.example_mapping import RAW_RECORD, bind_records, feature_names, shown_names
from penstock.core.name_patterns import closest, families, gap_in, is_in_order, is_no_feature, missing_from, pattern_of
from penstock.core.records import STRING, Binding, Shape, Signature, TensorSpec
from penstock.errors import InputError

__all__ = ["RAW_RECORD", "bind", "describe", "describe_all", "expand", "find", "misfit", "shortened", "wire_dtype"]

Schema = Mapping[str, TensorSpec]
_LONG = ("int64", "uint64")


def bind(
    signature: Signature,
    schema: Schema,
    requested: Mapping[str, Sequence[str]],
    keep: Sequence[str] = (),
    as_example: bool | None = None,
) -> tuple[Binding, ...]:
    """Give every input of the model its columns.

    Args:
        signature: What the model takes.
        schema: The columns of the source.
        requested: Input name to column names or `prefix*`, as the user gave them; also the names of features that the
            model parses out of records.
        keep: Columns that are only written along: never guessed as inputs.
        as_example: Whether records are built from columns for an input of serialized `tf.train.Example`s. None where
            the model says which features it parses, and no column holds the records themselves.

    Raises:
        InputError: A column is missing, ambiguous, or of a shape or dtype that the model does not take.
    """
    _check_requested(signature, requested)
    for name in keep:
        find(schema, name, "--keep")
    chosen: dict[str, tuple[str, ...]] = {name: expand(schema, name, columns) for name, columns in requested.items()}
    built, records = bind_records(signature, schema, chosen, keep, as_example)
    chosen |= records
    for spec in signature.inputs:
        if spec.name not in chosen and spec.name in schema:
            chosen[spec.name] = (spec.name,)
    missing = [spec for spec in signature.inputs if spec.name not in chosen and spec.name not in built]
    masks = [spec for spec in missing if _is_mask(spec)] if len(signature.inputs) > 1 else []
    missing = [spec for spec in missing if spec not in masks]
    if missing:
        fed = {column for columns in chosen.values() for column in columns}
        fed |= {column for binding in built.values() for column in binding.columns}
        unfed = {name: spec for name, spec in schema.items() if name not in fed}
        has_numbers = any(_is_number(spec) for spec in signature.inputs if spec not in missing)
        chosen.update(_guess(missing, unfed, keep, schema, has_numbers=has_numbers))
    made = {
        spec.name: _make(spec, chosen[spec.name], schema)
        for spec in signature.inputs
        if spec.name in chosen and spec.name not in built
    }
    made |= built
    for spec in masks:
        made[spec.name] = _mask(spec, list(made.values()), schema)
    return tuple(made[spec.name] for spec in signature.inputs)


def _check_requested(signature: Signature, requested: Iterable[str]) -> None:
    names = [*(spec.name for spec in signature.inputs), *feature_names(signature)]
    for name in requested:
        if name not in names:
            raise InputError(
                "the model has no such input",
                received=f"--input {name}=…",
                allowed=", ".join(f"{spec.name} {spec}" for spec in signature.inputs),
                hint=_closest(name, names) or (f"name its input: --input {names[0]}=…" if len(names) == 1 else None),
            )


def _is_mask(spec: TensorSpec) -> bool:
    """Whether an input marks which values of another one are real: it is made from the lengths of its rows."""
    return "mask" in spec.name.lower() and spec.shape == (None,) and spec.dtype != STRING


def _mask(spec: TensorSpec, others: Sequence[Binding], schema: Schema) -> Binding:
    fed = [other for other in others if other.mask_of is None and other.shape]
    named = [other for other in fed if spec.name == f"{other.input}_mask"]
    for other in [*named, *(other for other in fed if other.shape[0] is None)]:
        # Rows that happen to have one length have a mask of one length: all of their values are real.
        return Binding(spec.name, other.columns, spec.dtype, other.shape[:1], mask_of=other.input)
    raise InputError(
        f"no column fits the input {spec.name!r}, and no other input has rows of different lengths that it could mask",
        received=shown_names([f"{name} {column}" for name, column in schema.items()]),
        allowed=f"one column of {spec}",
        hint=f"name it: --input {spec.name}=COLUMN",
    )


def describe_all(
    bindings: Sequence[Binding], requested: Mapping[str, Sequence[str]], schema: Schema, *, is_positional: bool
) -> list[str]:
    """Every binding in words, and whether it was given, follows from the names or the order, or was guessed."""
    # The only column of images or audio feeds what takes them: there is nothing to guess.
    encoded = tuple(name for name, column in schema.items() if column.encoding is not None)
    return [f"{describe(each)}{_why(each, requested, encoded, is_positional)}" for each in bindings]


def _why(
    binding: Binding, requested: Mapping[str, Sequence[str]], encoded: tuple[str, ...], is_positional: bool
) -> str:
    if binding.mask_of is not None:
        return ""
    if binding.input in requested:
        return " (as given)"
    if binding.columns == (binding.input,) or binding.features:
        return " (by name)"
    if len(encoded) == 1 and binding.columns == encoded:
        return ""
    return " (by position)" if is_positional else " (guessed)"


def describe(binding: Binding) -> str:
    """`image ← pixels, uint8[784]`; a long list of columns is shortened."""
    columns = shortened(binding.columns)
    if binding.features:
        return f"{binding.input} ← one tf.train.Example a row, of {columns}"
    if binding.mask_of is not None:
        return f"{binding.input} ← ones where {binding.mask_of} is not padding"
    return f"{binding.input} ← {columns}, {TensorSpec('', binding.dtype, binding.shape)}"


def as_named(name: str, columns: Sequence[str], schema: Schema) -> TensorSpec:
    """The input of this name, for a model that declares no inputs: one column, or several columns stacked."""
    expanded = expand(schema, name, columns)
    if len(expanded) == 1:
        return replace(schema[expanded[0]], name=name)
    return _stacked(TensorSpec(name, "", None), expanded, schema)


def expand(schema: Schema, name: str, columns: Sequence[str]) -> tuple[str, ...]:
    """The columns that are meant for the input `name`: each by its name, or all with a prefix (`f*`).

    Raises:
        InputError: There is no such column.
    """
    expanded: list[str] = []
    for column in columns:
        if not column.endswith("*") or column in schema:
            expanded.append(find(schema, column, f"--input {name}=…"))
            continue
        matching = [candidate for candidate in schema if candidate.startswith(column[:-1])]
        if not matching:
            raise InputError(
                "no column starts with this prefix",
                received=f"--input {name}={column}",
                allowed=shown_names(list(schema)),
            )
        expanded += matching
    return tuple(expanded)


def find(schema: Schema, column: str, flag: str) -> str:
    """The column of this name.

    Raises:
        InputError: There is none; the closest name is offered.
    """
    if column not in schema:
        raise InputError(
            "the input has no such column",
            received=f"{flag}: {column!r}",
            allowed=shown_names(list(schema)),
            hint=_closest(column, list(schema)),
        )
    return column


def _guess(
    missing: Sequence[TensorSpec], unfed: Schema, keep: Sequence[str], schema: Schema, *, has_numbers: bool
) -> dict[str, tuple[str, ...]]:
    """The columns of inputs that no column has the name of, among those that feed no other input."""
    free = {name: column for name, column in unfed.items() if name not in keep}
    if len(missing) > 1:
        wanted = {spec.name: closest(spec.name, list(free)) or "COLUMN" for spec in missing}
        raise InputError(
            "these inputs of the model have no column of the same name",
            received=f"columns {shown_names(list(schema))}",
            allowed=", ".join(f"{spec.name} {spec}" for spec in missing),
            hint="say which column feeds which input: "
            + " ".join(f"--input {name}={column}" for name, column in wanted.items()),
        )
    spec = missing[0]
    # If no other column fits, the input may be a column that is also kept.
    fitting = _fitting(spec, free) or _fitting(spec, unfed)
    if any(schema[name].encoding is not None for name in fitting):
        fitting = [name for name in fitting if schema[name].encoding is not None]
    if RAW_RECORD in fitting:
        # Only a model that parses records takes a whole record: it is not guessed where another column could be meant.
        wants_records = any(word in spec.name.lower() for word in ("example", "serialized"))
        fitting = [RAW_RECORD] if wants_records else [name for name in fitting if name != RAW_RECORD]
    if len(schema) > 1:
        fitting = [name for name in fitting if schema[name].shape != () or not is_no_feature(name)]
    # Where other inputs are numbers that were found by name, a column of numbers that is left may mean anything.
    is_doubtful = has_numbers and all(_is_number(schema[name]) for name in fitting)
    if len(fitting) == 1 and not is_doubtful:
        return {spec.name: (fitting[0],)}
    if not fitting:
        return {spec.name: _stackable(spec, free, schema)}
    near = closest(spec.name, fitting)
    raise InputError(
        f"several columns could feed the input {spec.name!r}"
        if len(fitting) > 1
        else f"no column has the name of the input {spec.name!r}",
        received=shown_names(fitting),
        allowed=f"one column of {spec}",
        hint=f"choose one: --input {spec.name}={near or fitting[0]}",
    )


def _stackable(spec: TensorSpec, free: Schema, schema: Schema) -> tuple[str, ...]:
    """The columns of single numbers that make up an input: their names have one pattern, and their number fits."""
    needed = math.prod(_ones(spec.shape)) if spec.shape is not None else 0
    numbers = [name for name, column in free.items() if _is_number(column) and not is_no_feature(name)]
    groups = [
        family
        for is_bool in (False, True)
        for family in families(name for name in numbers if (schema[name].dtype == "bool") == is_bool)
    ]
    fitting = [family for family in groups if len(family) == needed > 1]
    gap = gap_in(fitting[0]) if len(fitting) == 1 else None
    if len(fitting) == 1 and is_in_order(fitting[0]) and gap is None:
        return fitting[0]
    nearest = max(groups, key=len, default=())
    if len(fitting) == 1:
        prefix, _, _ = pattern_of(nearest[0]).partition("#")
        raise InputError(
            f"the columns that could feed the input {spec.name!r} leave out a number: {gap[0]} is followed by {gap[1]}"
            if gap is not None and is_in_order(fitting[0])
            else f"the columns that could feed the input {spec.name!r} are not in the order of their numbers",
            received=shown_names(fitting[0]),
            hint=f"name them in the order that the model takes; --input {spec.name}={prefix}* is the order of the file",
        )
    if needed > 1 and len(nearest) > 1:
        raise _not_as_many(spec, needed, nearest, [name for name in schema if name not in nearest])
    as_many = ",".join(numbers) if len(numbers) == needed else "COLUMN"
    raise InputError(
        f"no column fits the input {spec.name!r}",
        received=shown_names([f"{name} {column}" for name, column in schema.items()]),
        allowed=f"one column of {spec}, or columns of numbers whose names differ in a number only: f0, f1, …",
        hint=f"name it: --input {spec.name}={as_many}, or --input {spec.name}=prefix* to stack columns; "
        "--image COLUMN for images",
    )


def may_be_all_of(spec: TensorSpec, columns: Sequence[str], schema: Schema) -> bool:
    """Whether these columns are single numbers, as many as the input takes, and none has a name like a label."""
    is_plain = all(_is_number(schema[name]) and not is_no_feature(name) for name in columns)
    return is_plain and spec.shape is not None and len(columns) == math.prod(_ones(spec.shape)) > 1


def _not_as_many(spec: TensorSpec, needed: int, matching: Sequence[str], others: Sequence[str]) -> InputError:
    """The error for too many or too few stacked columns, as a typo in a header causes it."""
    lacking = missing_from(matching, needed) if 0 < needed - len(matching) <= 3 else []
    passed_over = [name for name in lacking if name in others]
    lacking = [name for name in lacking if name not in others]
    near = next((name for name in lacking if closest(name, others)), None)
    hint = f"name those that are meant: --input {spec.name}=COLUMN,COLUMN,…"
    if passed_over:
        hint = f"{', '.join(passed_over)}: a column that is kept, or is no number, feeds an input only by name; " + hint
    elif near is not None:
        hint = f"is {closest(near, others)!r} meant to be {near!r}? Mend the header, or " + hint
    return InputError(
        f"{needed} columns are needed for the input {spec.name!r}, {len(matching)} match",
        received=shortened(matching) + (f"; there is no {', no '.join(lacking)}" if lacking else ""),
        allowed=f"{spec.name} {spec}",
        hint=hint,
    )


def shortened(columns: Sequence[str], separator: str = ", ") -> str:
    """The names of columns; of many, the first ones and the last one."""
    if len(columns) > 4:
        columns = [*columns[:2], f"… {len(columns) - 3} more …", columns[-1]]
    return separator.join(columns)


def _fitting(spec: TensorSpec, columns: Schema) -> list[str]:
    return [name for name, column in columns.items() if misfit(_as_fed(column, spec), spec) is None]


def _make(spec: TensorSpec, columns: tuple[str, ...], schema: Schema) -> Binding:
    source = _stacked(spec, columns, schema) if len(columns) > 1 else _as_fed(schema[columns[0]], spec)
    problem = misfit(source, spec)
    if problem is not None and len(columns) > 1 and spec.shape is not None and None not in spec.shape:
        others = [name for name in schema if name not in columns]
        raise _not_as_many(spec, math.prod(_ones(spec.shape)), columns, others)
    if problem is not None:
        raise InputError(
            f"the input {spec.name!r} does not take {problem}",
            received=f"{shown_names(columns, 4)} {source}",
            allowed=f"{spec.name} {spec}",
            hint="`penstock inspect` shows what the model takes and what the columns are",
        )
    return Binding(spec.name, columns, wire_dtype(source.dtype, spec.dtype), _fed_shape(source, spec))


def _as_fed(column: TensorSpec, spec: TensorSpec) -> TensorSpec:
    """A column of images or audio is decoded, unless the model takes strings: then the model decodes it."""
    return TensorSpec(column.name, STRING, ()) if column.encoding is not None and spec.dtype == STRING else column


def _stacked(spec: TensorSpec, columns: tuple[str, ...], schema: Schema) -> TensorSpec:
    for name in columns:
        if not _is_number(schema[name]):
            raise InputError(
                "only columns of single numbers can be stacked into one input",
                received=f"{name} {schema[name]}",
                allowed="int, float or bool columns",
                hint=f"leave it out of --input {spec.name}=…",
            )
    dtypes = [np.dtype(schema[name].dtype) for name in columns]
    return TensorSpec(spec.name, np.result_type(*dtypes).name, (len(columns),))


def misfit(column: TensorSpec, spec: TensorSpec) -> str | None:
    """Why this column cannot feed this input; None if it can."""
    if column.dtype == OPAQUE or not _dtype_fits(column.dtype, spec.dtype):
        return f"the dtype {column.dtype}"
    if spec.shape is None or column.shape is None:
        return None
    if column.encoding == "audio" and len(spec.shape) in (1, 2):
        return None  # samples, or samples by channels
    same_rank = len(column.shape) == len(spec.shape)
    if same_rank and all(a == b or a is None or b is None for a, b in zip(column.shape, spec.shape, strict=True)):
        return None
    if None not in column.shape and None not in spec.shape:
        # The same values under another shape: a flat list of 784 for 28×28, or a missing channel axis.
        is_flat = min(len(column.shape), len(spec.shape)) <= 1
        if is_flat and math.prod(_ones(column.shape)) == math.prod(_ones(spec.shape)):
            return None
        if [n for n in column.shape if n != 1] == [n for n in spec.shape if n != 1]:
            return None
    elif column.shape == () and spec.shape == (None,):
        return None
    return f"the shape {TensorSpec('', column.dtype, column.shape)}"


def _dtype_fits(column: str, wanted: str) -> bool:
    if column == STRING or wanted == STRING:
        return column == wanted
    kinds = {"f": "fiub", "V": "fiub", "i": "iub", "u": "iub", "b": "biu"}
    return _numpy_kind(column) in kinds.get(_numpy_kind(wanted), "fiub")


def _numpy_kind(name: str) -> str:
    return "f" if name == "bfloat16" else np.dtype(name).kind


def wire_dtype(column: str, wanted: str) -> str:
    """The dtype in which values cross to the device: the column's own, unless the model's is smaller.

    An integer stays an integer, so that a pixel crosses the bus as one byte; a 64-bit number for a 32-bit input is
    cast before it crosses, which halves the bytes. So is an integer for a smaller integer type: the cast here finds
    values that do not fit, and one on the device would wrap them around. A 64-bit integer for a float crosses as a
    float: a column of CSV that begins with whole numbers may go on with fractions.

    >>> wire_dtype("uint8", "float32"), wire_dtype("int64", "float32"), wire_dtype("int64", "float64")
    ('uint8', 'float32', 'float64')
    """
    if STRING in (column, wanted):
        return column
    if wanted == "bfloat16":
        return "float64" if column in _LONG else column
    if wanted == "float64" and column in _LONG:
        return wanted
    if _numpy_kind(wanted) in "iu" and _numpy_kind(column) in "iu":
        return column if np.can_cast(column, wanted) else wanted
    if _numpy_kind(wanted) != "f":
        return column
    return wanted if np.dtype(column).itemsize > np.dtype(wanted).itemsize else column


def _fed_shape(column: TensorSpec, spec: TensorSpec) -> Shape:
    if spec.shape is None:
        return (None, *column.shape[1:]) if column.varies and column.shape else column.shape or ()
    if column.varies and column.shape and spec.shape[:1] == (None,) and len(column.shape) == len(spec.shape):
        return (None, *(b if a is None else a for a, b in zip(column.shape[1:], spec.shape[1:], strict=True)))
    if None not in spec.shape or column.encoding == "audio":
        return spec.shape
    if column.shape is not None and len(column.shape) == len(spec.shape):
        return tuple(b if a is None else a for a, b in zip(column.shape, spec.shape, strict=True))
    return tuple(1 if length is None else length for length in spec.shape)


def _is_number(column: TensorSpec) -> bool:
    return column.shape == () and column.dtype not in (STRING, OPAQUE)


def _ones(shape: Shape) -> list[int]:
    return [1 if length is None else length for length in shape]


def _closest(name: str, names: Sequence[str]) -> str | None:
    near = closest(name, names)
    return f"did you mean {near!r}?" if near is not None else None
