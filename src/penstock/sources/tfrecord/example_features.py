"""The features of a TFRecord: as the user gives them, or as they are found in the first records."""

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.core.records import STRING, Shape, TensorSpec
from penstock.errors import InputError, UsageError
from penstock.sources.tfrecord.examples import BYTES, FLOAT, INT64, KIND_NAMES, FeatureValues, Message

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64")
DTYPES = ("bool", *_INTEGERS, *_FLOATS)
_OWN_DTYPE = {BYTES: STRING, FLOAT: "float32", INT64: "int64"}
_TEXT = re.compile(r"(\w+)\s*(?:\[([^\]]*)\])?")


@dataclass(frozen=True)
class FeatureSpec:
    """One column: the kind of list that it lies in, and what its rows become.

    Numbers in a bytes_list are raw: the bytes of one value are the numbers. `is_list` is set for the feature lists of
    a SequenceExample, whose first dimension is their length.
    """

    name: str
    kind: int
    dtype: str
    shape: Shape
    is_list: bool = False

    @property
    def key(self) -> bytes:
        return self.name.encode()

    @property
    def is_raw(self) -> bool:
        return self.kind == BYTES and self.dtype != STRING

    @property
    def inner(self) -> Shape:
        """The shape inside one feature: without the length of a feature list."""
        return self.shape[1:] if self.is_list else self.shape

    @property
    def varies(self) -> bool:
        return None in self.inner

    @property
    def per_feature(self) -> int:
        """How many values one feature has; if that varies, the number that it is a multiple of."""
        return math.prod(length for length in self.inner if length is not None)

    def tensor_spec(self) -> TensorSpec:
        return TensorSpec(self.name, self.dtype, self.shape)

    def __str__(self) -> str:
        where = "feature list" if self.is_list else KIND_NAMES[self.kind]
        return f"{self.name}: {self.tensor_spec()} ({where}{', raw bytes' if self.is_raw else ''})"


def parse_feature(name: str, text: str) -> tuple[str, Shape]:
    """Read `float32[784]`, `int64`, `uint8[28,28]`, `string` or `float32[?]`.

    >>> parse_feature("image", "uint8[28,28]")
    ('uint8', (28, 28))

    Raises:
        UsageError: It is none of these.
    """
    match = _TEXT.fullmatch(text.strip())
    if match is None or match[1] not in (*DTYPES, STRING):
        raise _not_understood(name, text, f"a dtype of {', '.join((STRING, *DTYPES))}, and a shape: float32[784]")
    lengths: list[int | None] = []
    for part in (match[2] or "").split(",") if (match[2] or "").strip() else ():
        part = part.strip()
        if part in ("?", "None"):
            lengths.append(None)
        elif part.isascii() and part.isdigit() and int(part) > 0:
            lengths.append(int(part))
        else:
            raise _not_understood(name, text, "lengths in brackets: whole numbers from 1 on, or ? for one that varies")
    if None in lengths[2:] or (None in lengths[1:] and lengths[0] is not None):
        raise _not_understood(name, text, "a ? in the first place only: float32[?,4] (in feature lists also [?,?])")
    if math.prod(length or 1 for length in lengths) > 1 << 31:
        raise _not_understood(name, text, "at most 2,147,483,648 values in a row")
    return match[1], tuple(lengths)


def _not_understood(name: str, text: str, allowed: str) -> UsageError:
    return UsageError(
        "--feature is not understood",
        received=f"--feature {name}={text}",
        allowed=allowed,
        hint="for example float32[784], int64, string, uint8[28,28], float32[?]",
    )


def choose_features(sample: Sequence[Message], wanted: Mapping[str, str]) -> list[FeatureSpec]:
    """The columns of a file: what the user said, and for all other features what the first records show.

    Raises:
        UsageError: What the user said cannot be read, or cannot be made from such a feature.
        InputError: No record of the sample has a feature that the user named.
    """
    said = {name: parse_feature(name, text) for name, text in wanted.items()}
    shown = {spec.name: spec for spec in _inferred(sample)}
    for name, (dtype, shape) in said.items():
        if name not in shown:
            raise _not_there(name, list(shown))
        shown[name] = _as_said(shown[name], dtype, shape)
    return [shown[name] for name in [*said, *(name for name in shown if name not in said)]]


def _inferred(sample: Sequence[Message]) -> Iterable[FeatureSpec]:
    features: dict[bytes, list[FeatureValues]] = {}
    lists: dict[bytes, list[FeatureValues]] = {}
    for message in sample:
        for key, feature in message.features.items():
            features.setdefault(key, []).append(feature)
        for key, some in message.lists.items():
            lists.setdefault(key, []).extend(some)
    names = set()
    for is_list, by_key in ((False, features), (True, lists)):
        # Sorted by name: writers put the entries of a map in any order.
        for key in sorted(by_key):
            spec = _infer(key, by_key[key], is_list)
            if spec is not None and spec.name not in names:
                names.add(spec.name)
                yield spec


def _infer(key: bytes, features: Sequence[FeatureValues], is_list: bool) -> FeatureSpec | None:
    """The spec of a feature from its values in the sample; None if it never has one, or its name is not UTF-8."""
    kinds = [feature.kind for feature in features if feature.kind]
    try:
        name = key.decode()
    except UnicodeDecodeError:
        return None
    if not kinds or not name:
        return None
    kind = max(set(kinds), key=lambda kind: (kinds.count(kind), kind))
    counts = {feature.count for feature in features if feature.kind == kind}
    inner: Shape = (None,) if len(counts) > 1 or counts == {0} else () if counts == {1} else (counts.pop(),)
    return FeatureSpec(name, kind, _OWN_DTYPE[kind], (None, *inner) if is_list else inner, is_list)


def _as_said(shown: FeatureSpec, dtype: str, shape: Shape) -> FeatureSpec:
    """A feature with the dtype and shape that the user gave, if it can be converted to them."""
    is_possible = {
        BYTES: True,
        INT64: dtype != STRING,
        FLOAT: dtype in _FLOATS,
    }[shown.kind]
    if not is_possible:
        raise UsageError(
            f"a {KIND_NAMES[shown.kind]} cannot be read as {dtype}",
            received=f"--feature {shown.name}={TensorSpec('', dtype, shape)}",
            allowed=f"as the records have it: {shown.tensor_spec()}",
        )
    if shown.is_list and (not shape or shape[0] is not None):
        raise UsageError(
            "a feature list varies in its length",
            received=f"--feature {shown.name}={TensorSpec('', dtype, shape)}",
            allowed=f"a ? in the first place: {shown.tensor_spec()}",
        )
    if not shown.is_list and None in shape[1:]:
        raise _not_understood(
            shown.name, str(TensorSpec("", dtype, shape)), "a ? in the first place only: float32[?,4]"
        )
    return replace(shown, dtype=dtype, shape=shape)


def _not_there(name: str, names: list[str]) -> InputError:
    close = difflib.get_close_matches(name, names, n=1)
    return InputError(
        "the first records have no such feature",
        received=f"--feature {name}=…",
        allowed=", ".join(names[:12]) + (f", … ({len(names)} in all)" if len(names) > 12 else ""),
        hint=f"did you mean {close[0]!r}?" if close else None,
    )


def raw_for_input(shown: FeatureSpec, sample: Sequence[Message], wanted: TensorSpec) -> FeatureSpec | None:
    """A bytes feature as the numbers that a model's input of the same name takes, if every value has the right size.

    As many bytes as numbers are taken for uint8, whatever the input's dtype: raw pictures are stored in this way.
    """
    if shown.kind != BYTES or shown.dtype != STRING or shown.shape != () or not wanted.shape or None in wanted.shape:
        return None
    features = [message.features[shown.key] for message in sample if shown.key in message.features]
    sizes = {len(value) for feature in features for value in feature.values}
    values = math.prod(length or 1 for length in wanted.shape)
    if wanted.dtype not in DTYPES or len(sizes) != 1 or any(feature.count != 1 for feature in features):
        return None
    nbytes = sizes.pop()
    if nbytes == values * np.dtype(wanted.dtype).itemsize:
        return replace(shown, dtype=wanted.dtype, shape=wanted.shape)
    return replace(shown, dtype="uint8", shape=wanted.shape) if nbytes == values else None
