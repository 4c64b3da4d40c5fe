"""Labels and weights: makes the arrays that losses and metrics take from the columns of the input."""

from __future__ import annotations

import difflib
import functools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from penstock.core.columns import OPAQUE, describe, to_array, to_arrow
from penstock.core.deferred import BadRows
from penstock.core.records import STRING, Array, Column, Shape, TensorSpec
from penstock.errors import InputError, UsageError
from penstock.evaluation.metric_records import LABEL, WEIGHT
from penstock.options import class_names
from penstock.options.class_names import ClassNames, names_of
from penstock.sources.derived.folder_names import FOLDER, folder_of

LABELS_FILE = "labels.json"
"""The file with the names of the classes, beside the model that was trained with them."""
_SHOWN = 20


@dataclass(frozen=True)
class Targets:
    """Which columns hold labels and weights, and how they are read.

    Args:
        labels: Output to column.
        weight: The column of weights, if there is one.
        classes: The names of the classes, in order, of every output whose labels are text.
        specs: The source's specs of these columns.
    """

    labels: Mapping[str, str]
    weight: str | None = None
    classes: ClassNames = ()
    specs: Mapping[str, TensorSpec] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.labels.values(), *([self.weight] if self.weight else [])]))

    def read(self, kept: Mapping[str, Column]) -> tuple[dict[str, Array], BadRows]:
        """Labels and weights as a fold takes them, and the rows that lack one.

        Raises:
            InputError: A label is no class, or labels or weights of this kind cannot be evaluated.
        """
        bad = BadRows()
        read: dict[str, Array] = {}
        for output, name in self.labels.items():
            read[LABEL + output] = self._label(output, name, kept[name], bad)
        if self.weight is not None:
            spec = describe(self.weight, kept[self.weight])
            if spec.dtype in (STRING, OPAQUE) or spec.shape:
                raise InputError("a weight is one number for each row", received=f"--weight {self.weight}, of {spec}")
            found, odd = to_array(kept[self.weight], "float32", ())
            _note(odd, f"the weight {self.weight!r}", bad)
            read[WEIGHT] = found
        return read, bad

    def _label(self, output: str, name: str, column: Column, bad: BadRows) -> Array:
        spec = describe(name, column)
        if spec.dtype == STRING:
            return self._classes_of(output, name, to_arrow(column), bad)
        shape: Shape = self.specs[name].shape or () if name in self.specs else spec.shape or ()
        if spec.dtype == OPAQUE or None in shape:
            raise InputError(
                "labels of this kind cannot be evaluated",
                received=f"column {name!r} of {kind_of(column) if spec.dtype == OPAQUE else spec}",
                allowed="whole numbers, text, fractions, or lists of one length",
                hint="write dates and times as numbers or as text" if spec.dtype == OPAQUE else None,
            )
        array, odd = to_array(column, "uint8" if spec.dtype == "bool" else spec.dtype, shape)
        _note(odd, f"the label {name!r}", bad)
        return array

    def _classes_of(self, output: str, name: str, column: pa.Array, bad: BadRows) -> Array:
        """The numbers of classes, from a column of their names."""
        if pa.types.is_nested(column.type):
            raise InputError("lists of text are no labels", received=f"column {name!r}", allowed="one text a row")
        if not self._places[output]:
            raise InputError(
                "the labels are text, and the order of the classes is not known",
                received=f"column {name!r}: {', '.join(map(str, column[:3].to_pylist()))}, …",
                hint="--labels FILE names the classes in their order: one a line, or JSON",
            )
        codes = class_codes(column, self._places[output])
        for place in np.flatnonzero(codes.is_null().to_numpy(zero_copy_only=False)).tolist():
            label = column[place].as_py()
            if label is not None:
                raise self._unknown(output, name, str(as_text(label)))
            bad[place] = f"the label {name!r} is null"
        numbers: Array = codes.fill_null(0).to_numpy(zero_copy_only=False)
        return numbers.astype(np.int32)

    @functools.cached_property
    def _places(self) -> dict[str, dict[str, int]]:
        """The place of every class, by output."""
        return {
            output: {name: place for place, name in enumerate(names_of(self.classes, output))} for output in self.labels
        }

    def _unknown(self, output: str, name: str, text: str) -> InputError:
        classes = names_of(self.classes, output)
        close = difflib.get_close_matches(text, classes, n=1)
        more = f", … ({len(classes):,} classes)" if len(classes) > _SHOWN else ""
        return InputError(
            "a label is the name of no class",
            received=f"column {name!r}: {text!r}",
            allowed=", ".join(classes[:_SHOWN]) + more,
            hint=f"did you mean {close[0]!r}?" if close else "--labels FILE names the classes",
        )


def kind_of(column: Column) -> str:
    """The type of a column's values, as Arrow names it: `date32[day]`."""
    arrow = to_arrow(column)
    return str(arrow.type.value_type if pa.types.is_dictionary(arrow.type) else arrow.type)


def class_codes(labels: pa.Array, places: Mapping[str, int]) -> pa.Array:
    """The places of labels among the classes, as int64; null where a label is null, or none of the classes.

    >>> class_codes(pa.array(["dog", None, "owl"]), {"cat": 0, "dog": 1}).to_pylist()
    [1, None, None]
    """
    encoded = labels if pa.types.is_dictionary(labels.type) else labels.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    codes = [None if value is None else places.get(str(as_text(value))) for value in values]
    return pa.array(codes, pa.int64()).take(encoded.indices)


def as_text(value: str | bytes | int | bool) -> str | int:
    """A label as text, or as a number if it is one."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")  # so that two labels never become the same text
    return int(value) if isinstance(value, bool) else value


def label_columns(outputs: Sequence[str], label: Mapping[str, str]) -> dict[str, str]:
    """The column of labels of every output that has one, in the order of the outputs.

    Args:
        outputs: The names of the model's outputs; empty where they are not known yet.
        label: Output to column, or "" to the column of the only output.

    Raises:
        UsageError: There is no such output, or there are several and none is named.
    """
    allowed = ", ".join(outputs)
    if "" in label and len(outputs) > 1:
        raise UsageError(
            "the model has several outputs",
            received=f"--label {label['']}",
            allowed=allowed,
            hint=" ".join(f"--label {name}=COLUMN" for name in outputs),
        )
    if "" in label:
        return {outputs[0] if outputs else "": label[""]}
    unknown = [name for name in label if outputs and name not in outputs]
    if unknown:
        raise UsageError(
            "the model has no such output", received=f"--label {unknown[0]}={label[unknown[0]]}", allowed=allowed
        )
    return {name: label[name] for name in outputs or label if name in label}


def _note(odd: BadRows, what: str, bad: BadRows) -> None:
    for place, reason in odd.items():
        bad.setdefault(place, f"{what} {reason}")


def classes_beside(model: str | None) -> ClassNames:
    """The names of the classes in the file beside a model, by output if it has several; empty where there is none.

    Raises:
        InputError: The file is damaged.
    """
    path = os.path.join(os.path.dirname(model), LABELS_FILE) if model is not None and "://" not in model else ""
    if not path or not os.path.isfile(path):
        return ()
    try:
        with open(path, encoding="utf-8") as file:
            return class_names.from_json(json.load(file))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError("the labels beside the model cannot be read", received=f"{path}: {error}") from None


def classes_of_folders(paths: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the folders of photos, sorted: Keras numbers the classes in this order.

    >>> classes_of_folders(("/p/dogs/1.jpg", "/p/cats/1.jpg", "/p/cats/2.jpg"))
    ('cats', 'dogs')
    """
    return tuple(sorted({folder_of(path) for path in paths}))


__all__ = ["FOLDER", "LABELS_FILE", "Targets", "class_codes", "classes_beside", "classes_of_folders"]
