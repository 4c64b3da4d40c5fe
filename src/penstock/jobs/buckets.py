"""Buckets: the sizes that rows of different sizes are padded to, chosen from the job's own data."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from penstock.core.bucketing import choose_boundaries
from penstock.core.job import Job
from penstock.core.preprocessing import Preprocess
from penstock.core.protocols import Source
from penstock.core.records import Array, Binding, Span
from penstock.errors import InputError
from penstock.pool.loading import read_pieces

Buckets = dict[str, list[list[int]]]

_SAMPLE_ROWS = 256
_SAMPLE_SPANS = 8
_SPANS_SEEN = 4096
_WITHOUT_DATA = tuple(1 << power for power in range(4, 15))


def choose_buckets(
    source: Source, bindings: Sequence[Binding], preprocess: Preprocess | None, given: Sequence[int] | None
) -> Buckets:
    """The sizes that each varying dimension of an input is padded to, by input name. Empty where nothing varies.

    Raises:
        InputError: Sizes were given, and nothing varies.
    """
    varying = [binding for binding in bindings if None in binding.shape]
    if not varying:
        if given is not None:
            raise InputError(
                "no input of the model has rows of different lengths",
                received=f"--buckets {','.join(map(str, given))}",
                hint="leave it out",
            )
        return {}
    if given is not None:
        return {binding.input: [list(given)] * binding.shape.count(None) for binding in varying}
    if preprocess is not None:
        # What the user's function gives is not known here: it runs in loaders only.
        return {binding.input: [list(_WITHOUT_DATA)] * binding.shape.count(None) for binding in varying}
    sizes = _sizes(source, bindings, [binding.input for binding in varying if binding.mask_of is None])
    chosen = {name: [list(choose_boundaries(column)) for column in rows.T] for name, rows in sizes.items()}
    return chosen | {binding.input: chosen[binding.mask_of] for binding in varying if binding.mask_of is not None}


def sized(bindings: Iterable[Binding], buckets: Mapping[str, Sequence[Sequence[int]]]) -> tuple[Binding, ...]:
    """Bindings in their largest size: dimensions that vary have their largest bucket."""
    return tuple(
        replace(
            binding,
            shape=tuple(
                next(sizes)[-1] if length is None else length
                for sizes in [iter(buckets.get(binding.input, ()))]
                for length in binding.shape
            ),
        )
        for binding in bindings
    )


def _sizes(source: Source, bindings: Sequence[Binding], names: Sequence[str]) -> dict[str, Array]:
    """The sizes of rows from all over the input; of a stream, from its beginning."""
    job = Job(source, tuple(bindings), (), 1)
    sizes: dict[str, list[Array]] = {name: [] for name in names}
    for span in _spans_to_look_at(source):
        for piece in read_pieces(job, span):
            for name in names:
                sizes[name].append(piece.feeds[name].sizes())
    return {name: np.concatenate(pieces) for name, pieces in sizes.items()}


def _spans_to_look_at(source: Source) -> list[Span]:
    if not source.traits.is_resumable:
        return list(itertools.islice(source.divide(_SAMPLE_ROWS), 1))
    spans = list(itertools.islice(source.divide(_SAMPLE_ROWS), _SPANS_SEEN))
    numbers = np.unique(np.linspace(0, len(spans) - 1, _SAMPLE_SPANS, dtype=int)).tolist()
    return [spans[number] for number in numbers]
