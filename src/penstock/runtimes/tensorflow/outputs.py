"""TensorFlow's answers: ranked on the device, and as arrays on the host."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.columns import to_arrow
from penstock.core.output_selection import LOGITS, Answers, keep
from penstock.core.records import Column
from penstock.errors import ModelError
from penstock.runtimes.frameworks import tf


def _top_k(tensor: Any, k: int) -> tuple[Any, Any]:
    """See `output_selection.TopK`. (`tf.argmax` is not used: it takes another place where a value is NaN.)"""
    values, places = tf.math.top_k(tensor, k)
    return values, tf.cast(places, tf.int32)


@dataclass(frozen=True)
class _Unranked:
    """A tensor that can be kept but not ranked: its rows may not be vectors of one length."""

    tensor: Any
    shape: tuple[int, ...] = ()
    dtype: str = "unranked"


def kept(answers: Answers | None, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs that are kept, in the form asked for; sparse ones become dense or ragged. This runs in tracing."""
    dense = {name: _without_gaps(each) if isinstance(each, tf.SparseTensor) else each for name, each in outputs.items()}
    if answers is None:
        return dense
    shown = {name: each if _is_rankable(each) else _Unranked(each) for name, each in dense.items()}
    chosen = keep(answers, shown, _top_k)
    found = {name: each.tensor if isinstance(each, _Unranked) else each for name, each in chosen.items()}
    if answers.logits:
        found |= {LOGITS + name: logits for name in chosen if (logits := _logits_of(outputs[name])) is not None}
    return found


def _logits_of(output: Any) -> Any:
    """The logits from which Keras computes a cross-entropy instead of this output; its activations leave them on it.

    Keras does not find them where a loss casts the output. For a bfloat16 output this could not be seen any more, since
    it travels as float32: so its logits are not given.
    """
    return getattr(output, "_keras_logits", None) if output.dtype != tf.bfloat16 else None


def _without_gaps(sparse: Any) -> Any:
    """A sparse tensor as a dense one. Where its width is open, as lists that end with the last value of each row.

    As a dense tensor it would have the width of its batch, which depends on the other rows of the batch.
    """
    dense = tf.sparse.to_dense(sparse)
    if sparse.shape.rank != 2 or sparse.shape[1] is not None:
        return dense
    rows, columns = sparse.indices[:, 0], sparse.indices[:, 1]
    lengths = tf.math.unsorted_segment_max(columns + 1, rows, sparse.dense_shape[0])
    return tf.RaggedTensor.from_tensor(dense, tf.maximum(lengths, 0))


def _is_rankable(tensor: Any) -> bool:
    return not isinstance(tensor, tf.RaggedTensor) and tensor.shape.rank is not None


def to_host(name: str, tensor: Any) -> Column:
    """An output as an array of rows; a ragged one as a list for each row.

    Raises:
        ModelError: The output is neither of them, and cannot be made one.
    """
    if hasattr(tensor, "row_splits"):
        return _lists(name, tensor)
    if not hasattr(tensor, "numpy") or tensor.dtype.name in ("variant", "resource"):
        raise ModelError(
            "an output of the model cannot be written",
            received=f"{name}: {type(tensor).__name__} of {getattr(tensor, 'dtype', 'no dtype')}",
            allowed="dense, sparse and ragged tensors with one row for each row of the input",
        )
    array = np.asarray(tensor.numpy())
    if array.dtype.kind == "c":
        # Tables have no complex numbers: the real part, then the imaginary one.
        return np.stack([array.real, array.imag], axis=-1)
    return array if array.dtype.kind != "V" else array.astype(_plain_dtype(tensor.dtype))


def _plain_dtype(dtype: Any) -> Any:
    """The numpy dtype that holds the values of one that numpy does not have: bfloat16, and floats of 8 bits."""
    return np.float32 if dtype.is_floating else np.int32


def _lists(name: str, tensor: Any) -> pa.Array:
    """A ragged tensor as nested lists."""
    values = tensor.values
    flat = _lists(name, values) if hasattr(values, "row_splits") else to_arrow(to_host(name, values))
    flat = flat.storage if isinstance(flat, pa.ExtensionArray) else flat
    offsets = to_arrow(np.asarray(tensor.row_splits.numpy(), dtype=np.int64))
    return pa.LargeListArray.from_arrays(offsets, flat)
