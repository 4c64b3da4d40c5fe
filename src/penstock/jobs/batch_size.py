"""How many rows a batch has: what was asked for or a rule of thumb, as far as input, memory and outputs allow."""

import itertools
from collections.abc import Sequence

from penstock.core import batching
from penstock.core.protocols import Source
from penstock.core.records import STRING, Binding, Signature
from penstock.core.state import BATCH_SIZE
from penstock.errors import UsageError
from penstock.options.records import PredictOptions
from penstock.pool.devices.memory import available_bytes

_BATCHES_ON_THE_HOST = 8
"""About so many batches are in memory at the same time: being read, waiting, being copied."""


def choose_batch_size(
    signature: Signature, bindings: Sequence[Binding], source: Source, options: PredictOptions, device_kind: str
) -> int:
    """The rows of a batch of a model that keeps no state."""
    if signature.fixed_batch is not None:
        if options.batch_size not in (None, signature.fixed_batch):
            raise UsageError(
                "the model takes batches of one size only",
                received=f"--batch-size {options.batch_size}",
                allowed=str(signature.fixed_batch),
            )
        return signature.fixed_batch
    if options.batch_size is not None:
        return min(no_larger_than_input(source, options.batch_size), _most_on_the_host(bindings, options))
    row_bytes = sum(binding.row_bytes for binding in bindings)
    has_images = any(len(binding.shape) >= 3 for binding in bindings)
    limits = batching.IMAGES_ON_A_CPU if has_images and device_kind == "cpu" else ()
    most = batching.most_rows_of_outputs(_output_bytes(signature, options))
    size = min(most, batching.default_batch_size(row_bytes, None, *limits))
    rows = sum(span.rows for span in itertools.islice(source.divide(size), 2))
    return min(most, batching.default_batch_size(row_bytes, rows, *limits))


def size_with_state(
    signature: Signature, bindings: Sequence[Binding], options: PredictOptions, present: int, *, is_chosen: bool
) -> int:
    """The rows of a batch of a model that changes when it is called.

    Its answers depend on the size. So it is the size that the model requires, or that was asked for or chosen even if a
    file has fewer rows, or else the default of `model.predict`.
    """
    if signature.fixed_batch is not None:
        return present
    if options.batch_size is not None:
        present = min(options.batch_size, _most_on_the_host(bindings, options))
    return present if is_chosen else BATCH_SIZE


def no_larger_than_input(source: Source, size: int) -> int:
    """A size that was asked or planned for, made smaller for an input with few rows.

    No batch has rows of two spans, and a short one is padded: so a size is enough that holds the largest of the first
    spans. Two neighbours count as one span: where a source joins small files, they have more than `size` rows. A stream
    may have any number of rows.
    """
    if not source.traits.is_resumable:
        return size
    rows = before = seen = 0
    for span in source.divide(size):
        rows, before, seen = max(rows, before + span.rows), span.rows, seen + span.rows
        if seen >= size:
            break
    return min(size, 1 << max(0, rows - 1).bit_length())


def _most_on_the_host(bindings: Sequence[Binding], options: PredictOptions) -> int:
    """The most rows of a batch, if the memory of this machine is to hold all batches in flight."""
    row_bytes = sum(binding.row_bytes for binding in bindings)
    return max(1, int(options.memory_fraction * available_bytes()) // (_BATCHES_ON_THE_HOST * max(1, row_bytes)))


def _output_bytes(signature: Signature, options: PredictOptions) -> int:
    """The bytes of a row of the declared outputs. Outputs that are ranked count as nothing."""
    kept = [spec for spec in signature.outputs if not options.outputs or spec.name in options.outputs]
    if options.argmax or options.top_k is not None:
        kept = [spec for spec in kept if spec.shape is None or len(spec.shape) != 1 or spec.dtype == STRING]
    return sum(spec.row_bytes for spec in kept)
