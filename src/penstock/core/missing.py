"""Missing values, and the values that the user wants in their place. NaN is a value, and never missing."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.columns import is_list, is_text, storage_of
from penstock.core.records import STRING, Array, Binding, Column, Signature
from penstock.errors import UsageError
from penstock.options.records import Nulls


def bind_nulls(
    bindings: Sequence[Binding], signature: Signature, nulls: Nulls, *, has_function: bool
) -> tuple[Binding, ...]:
    """The bindings with the rule for missing values, and with a dtype that holds the values that replace these.

    A value that no input takes is allowed where a function of the user may take it.

    Raises:
        UsageError: An input, or every input, does not take the value that replaces missing ones.
    """
    if nulls == Nulls():
        return tuple(bindings)
    wanted = {spec.name: spec.dtype for spec in signature.inputs}
    kinds = {_kind(dtype) for binding in bindings for dtype in _dtypes(binding, wanted)}
    numbers = {"float"} if nulls.numbers == "nan" else {"float", "int"}
    for rule, takers in ((nulls.texts, {"text"}), (nulls.numbers, numbers)):
        if rule != "fail" and not kinds & takers and not has_function:
            raise UsageError(
                "no input of the model takes what is to stand for missing values",
                received=f"--nulls {rule}, for {', '.join(f'{each.input} {each.dtype}' for each in bindings)}",
                allowed="nan for floats, a number for floats and integers, empty for text",
            )
    return tuple(_bind_nulls(binding, wanted.get(binding.input, binding.dtype), nulls) for binding in bindings)


def _dtypes(binding: Binding, wanted: Mapping[str, str]) -> list[str]:
    return [feature.dtype for feature in binding.features] or [wanted.get(binding.input, binding.dtype)]


def _kind(dtype: str) -> str:
    return "text" if dtype == STRING else "float" if dtype.startswith(("float", "bfloat")) else "int"


def _bind_nulls(binding: Binding, wanted: str, nulls: Nulls) -> Binding:
    made = replace(binding, nulls=nulls)
    if binding.dtype == STRING or binding.mask_of is not None or nulls.numbers == "fail":
        return made
    own = "float32" if wanted == "bfloat16" else wanted
    if nulls.numbers == "nan":
        return replace(made, dtype=own) if _kind(wanted) == "float" and _kind(binding.dtype) != "float" else made
    for dtype in (binding.dtype, own):
        if _holds(dtype, float(nulls.numbers)):
            return replace(made, dtype=dtype)
    raise UsageError(
        f"the input {binding.input!r} does not take the number that is to stand for missing values",
        received=f"--nulls {nulls.numbers}",
        allowed=f"a value of {wanted}, or fail",
    )


def dtype_for_a_function(dtype: str, nulls: Nulls) -> str:
    """The dtype of a column of numbers for a user's function: the same in all blocks, with missing values or not."""
    if nulls.numbers == "fail":
        return dtype
    if nulls.numbers == "nan":
        return dtype if _kind(dtype) == "float" else "float64"
    return dtype if _holds(dtype, float(nulls.numbers)) else "float64"


def _holds(dtype: str, value: float) -> bool:
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return True
    if kind.kind == "b":
        return value in (0, 1)
    return value == int(value) and bool(np.iinfo(kind).min <= value <= np.iinfo(kind).max)


def filled(column: Column, nulls: Nulls, dtype: str) -> Column:
    """A column for an input of `dtype`, its missing values replaced, also those inside of lists.

    A list that is missing as a whole stays missing: nothing says how long it would be.
    """
    if nulls.texts == nulls.numbers == "fail":
        return column
    if isinstance(column, np.ndarray):
        return _filled_texts(column) if dtype == STRING and nulls.texts == "empty" else column
    column = storage_of(column)
    if not _holds_nulls(column):
        return column
    if dtype == STRING:
        return _rebuilt(column, "") if nulls.texts == "empty" else column
    if nulls.numbers == "fail" or (nulls.numbers == "nan" and not dtype.startswith("float")):
        return column  # nothing but a float can be NaN: such a row fails
    return _rebuilt(column, float(nulls.numbers))


def _filled_texts(column: Array) -> Array:
    if column.dtype != object:
        return column
    made = column.copy()
    made[np.array([item is None for item in column.ravel()], bool).reshape(column.shape)] = ""
    return made


def _holds_nulls(column: pa.Array) -> bool:
    while True:
        column = storage_of(column)
        if column.null_count:
            return True
        if pa.types.is_dictionary(column.type):
            return bool(column.dictionary.null_count)
        if not is_list(column.type):
            return False
        column = column.flatten()


def _rebuilt(column: pa.Array, value: float | str) -> pa.Array:
    """The same lists, with `value` in the place of every null inside of them."""
    column = storage_of(column)
    if pa.types.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    if is_list(column.type):
        lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int64())
        mask = column.is_null() if column.null_count else None
        return pa.LargeListArray.from_arrays(offsets, _rebuilt(column.flatten(), value), mask=mask)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return _leaves(column, value)


def _leaves(column: pa.Array, value: float | str) -> pa.Array:
    if isinstance(value, str):
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            return pc.fill_null(column, "")
        return pc.fill_null(column.cast(pa.large_binary()), b"") if is_text(column.type) else column
    if not (
        pa.types.is_integer(column.type)
        or pa.types.is_floating(column.type)
        or pa.types.is_boolean(column.type)
        or pa.types.is_decimal(column.type)
        or pa.types.is_null(column.type)
    ):
        return column  # dates and the like
    is_whole = math.isfinite(value) and value == int(value) and (value >= 0 or not pa.types.is_uint64(column.type))
    if is_whole and pa.types.is_integer(column.type):
        # A small integer type may not hold the value. The binding decides the dtype that is fed.
        return pc.fill_null(column if pa.types.is_uint64(column.type) else column.cast(pa.int64()), int(value))
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    return pc.fill_null(column.cast(pa.float64()), value)
