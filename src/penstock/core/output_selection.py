"""Selection of what is kept of a model's outputs: some of them, the best classes, or the best one.

It is computed where the model runs, so that a thousand logits need not travel.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.deferred import Array, Column
from penstock.errors import UsageError
from penstock.options.class_names import ClassNames, check_named, names_of

CLASSES, SCORES, LABELS, LOGITS = "classes:", "scores:", "labels:", "logits:"
"""Prefixes of an output's name in a Result: its best classes, their scores and their names; the logits from which a
softmax or sigmoid made the output.

A model may have an output called `p_class` of its own: only the prefix tells them apart."""
_SHOWN = {CLASSES: "_class", SCORES: "_score", LABELS: "_label"}


def shown(key: str) -> str:
    """The name under which people see a column of a Result.

    >>> shown("classes:probabilities"), shown("probabilities")
    ('probabilities_class', 'probabilities')
    """
    for prefix, suffix in _SHOWN.items():
        if key.startswith(prefix):
            return key.removeprefix(prefix) + suffix
    return key


@dataclass(frozen=True)
class Answers:
    """What to keep.

    Args:
        outputs: The outputs that are kept; all where it is empty.
        top_k: How many of the largest values of a vector, and their places, are kept; None for all values.
        argmax: Whether only the place of the largest value is kept of outputs that are vectors.
        labels: The names of the places. They are not hashed: a dict has no hash, and the step does not depend on names.
        logits: Whether logits are kept beside probabilities, where the framework's own losses are computed from them.
    """

    outputs: tuple[str, ...] = ()
    top_k: int | None = None
    argmax: bool = False
    labels: ClassNames = field(default=(), hash=False)
    logits: bool = False

    @property
    def ranks(self) -> bool:
        return self.argmax or self.top_k is not None


TopK = Callable[[Any, int], tuple[Any, Any]]
"""How a framework ranks the last axis of a tensor: from a tensor and k to the k largest values in falling order, and
their places as int32. Of equal values the first one comes first."""


def numpy_top_k(tensor: Array, k: int) -> tuple[Array, Array]:
    """The ranking of runtimes whose outputs are on the host."""
    if k == 1:
        best: Array = np.argmax(tensor, axis=-1, keepdims=True)
        return np.take_along_axis(tensor, best, axis=-1), best.astype(np.int32)
    candidates = _at_least_as_large_as_the_kth(tensor, k)
    values = np.take_along_axis(tensor, candidates, axis=-1)
    order = _falling(values)[..., :k]
    places = np.take_along_axis(candidates, order, axis=-1)
    return np.take_along_axis(tensor, places, axis=-1), places.astype(np.int32)


def _falling(values: Array) -> Array:
    """The places of values in falling order; of equal ones the first comes first. (Negation wraps unsigned ones.)"""
    rising = np.argsort(values[..., ::-1], axis=-1, kind="stable")
    falling: Array = values.shape[-1] - 1 - rising[..., ::-1]
    return falling


def _at_least_as_large_as_the_kth(tensor: Array, k: int) -> Array:
    """The places of k values in every row that none of the others exceeds, in rising order.

    Sorting all of 1,000 values for the best 5 would take four times as long.
    """
    length = tensor.shape[-1]
    everything = np.broadcast_to(np.arange(length), tensor.shape)
    if 4 * k >= length or (tensor.dtype.kind == "f" and np.isnan(tensor).any()):
        return everything
    smallest = np.partition(tensor, length - k, axis=-1)[..., length - k : length - k + 1]
    is_larger, is_equal = tensor > smallest, tensor == smallest
    room = k - is_larger.sum(axis=-1, keepdims=True)
    is_chosen = is_larger | (is_equal & (np.cumsum(is_equal, axis=-1) <= room))
    return np.nonzero(is_chosen)[-1].reshape(*tensor.shape[:-1], k)


def keep(answers: Answers | None, outputs: Mapping[str, Any], top_k: TopK) -> dict[str, Any]:
    """What is kept of `outputs`, tensors of any framework with rows first. Runs while a step is traced.

    Raises:
        UsageError: There is no such output, none that could be ranked, or not one label for each class.
    """
    if answers is None:
        return dict(outputs)
    unknown = [name for name in answers.outputs if name not in outputs]
    if unknown:
        raise UsageError("the model has no such output", received=f"--outputs {unknown[0]}", allowed=", ".join(outputs))
    chosen = {name: outputs[name] for name in answers.outputs or outputs}
    if not answers.ranks:
        return chosen
    check_named(answers.labels, outputs)
    is_alone = len(chosen) == 1
    if not any(_is_ranked(tensor, is_alone) for tensor in chosen.values()):
        raise UsageError(
            "no output has one value for each class",
            received=", ".join(
                f"{name} {tuple(getattr(tensor, 'shape', ('lists',)))}" for name, tensor in chosen.items()
            ),
            hint="without --top-k and --argmax the outputs are written as they are",
        )
    kept: dict[str, Any] = {}
    for name, tensor in chosen.items():
        kept |= _ranked(answers, name, tensor, top_k) if _is_ranked(tensor, is_alone) else {name: tensor}
    _refuse_two_of_one_name(kept, chosen, answers)
    return kept


def _refuse_two_of_one_name(kept: Mapping[str, Any], chosen: Mapping[str, Any], answers: Answers) -> None:
    names = [shown(key) for key in kept]
    names += [shown(label) for key in kept if (label := label_key(key, answers.labels)) is not None]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UsageError(
            "two columns would have one name",
            received=f"{twice[0]}: an output of the model, and what ranking makes of another",
            hint="--outputs leaves one of them out: " + ", ".join(chosen),
        )


def _is_ranked(tensor: Any, is_alone: bool) -> bool:
    """Whether a row has a value for each of several classes. Whole numbers beside other outputs are ids or counts."""
    if not hasattr(tensor, "shape"):
        return False  # lists of different lengths
    shape, kind = tensor.shape, str(tensor.dtype).lower()
    return len(shape) == 2 and shape[-1] != 1 and ("float" in kind or (is_alone and "int" in kind))


def _ranked(answers: Answers, name: str, tensor: Any, top_k: TopK) -> dict[str, Any]:
    classes = tensor.shape[-1]
    labels = names_of(answers.labels, name)
    if labels and classes is not None and len(labels) != classes:
        raise UsageError(
            "there is not one label for each class",
            received=f"{len(labels)} labels",
            allowed=f"{classes}, as the output {name!r} has",
            hint="--outputs says which outputs are meant",
        )
    if answers.top_k is None:
        return {CLASSES + name: top_k(tensor, 1)[1][..., 0]}
    if classes is not None and answers.top_k > classes:
        raise UsageError(
            "there are fewer classes",
            received=f"--top-k {answers.top_k}",
            allowed=f"at most {classes}, as {name!r} has",
        )
    values, places = top_k(tensor, answers.top_k)
    return {CLASSES + name: places, SCORES + name: values}


def label_key(key: str, labels: ClassNames) -> str | None:
    """The key of the names of classes beside a column of a Result; None where there are no names for it."""
    output = key.removeprefix(CLASSES)
    return LABELS + output if output != key and names_of(labels, output) else None


def with_labels(columns: Mapping[str, Column], labels: ClassNames) -> dict[str, Column]:
    """Columns, and after each column of classes one of their names. Only numbers travel; names are added at the end.

    Raises:
        UsageError: A class has no name: the model did not say how many there are.
    """
    if not labels:
        return dict(columns)
    labelled: dict[str, Column] = {}
    for key, column in columns.items():
        labelled[key] = column
        if (label := label_key(key, labels)) is not None:
            labelled[label] = _named(np.asarray(column), names_of(labels, key.removeprefix(CLASSES)))
    return labelled


def squeezed(column: Column) -> Column:
    """Vectors of one value as plain values; any other column as it is."""
    if isinstance(column, np.ndarray):
        return column[:, 0] if column.ndim == 2 and column.shape[1] == 1 else column
    is_single = pa.types.is_fixed_size_list(column.type) and column.type.list_size == 1 and not column.null_count
    return column.flatten() if is_single else column


def _named(places: Array, names: Sequence[str]) -> pa.Array:
    if places.size and int(places.max()) >= len(names):
        raise UsageError(
            "there is not one label for each class",
            received=f"{len(names)} labels, and class {int(places.max())}",
            allowed="a label for every class",
        )
    labels = pa.array(names, pa.large_string()).take(pa.array(places.reshape(-1)))
    return pa.FixedSizeListArray.from_arrays(labels, places.shape[1]) if places.ndim == 2 else labels
