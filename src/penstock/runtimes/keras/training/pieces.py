"""Losses of a piece of a batch (the shard of a device, or a part that is accumulated), weighted by its share of rows.

Keras divides mean losses and regularisation losses by the number of replicas and adds up the gradients. That is exact
for pieces of one size only. Here the divisor is replaced by the share of the piece: a mean over 3 rows of a batch of 7
counts by 3/7, a sum stays a sum, and a regularisation loss counts once in all.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penstock.runtimes.frameworks import keras

_LOSSES = "keras.src.losses.loss"
_current = threading.local()


@dataclass
class Piece:
    """One piece of a batch while its step runs or is traced."""

    share: Any
    """Its part of the batch's rows: a number, or a tensor of the framework."""
    rows: Any = None
    """How many rows it has."""
    is_last: bool = True
    """Whether the weights change after it; the gradients of earlier pieces are only added up."""
    is_weighted: bool = True
    """Whether Keras's losses are weighted by the share. If not, the gradients are: a step of the model's own sees the
    losses that it would see on one device."""
    is_scaled: bool = False
    """Whether Keras has scaled a loss by the share. A step that computes its loss by hand has not."""


def current_piece() -> Piece | None:
    """The piece that this thread works on."""
    return getattr(_current, "piece", None)


@contextmanager
def working_on(piece: Piece) -> Iterator[Piece]:
    """Weight the losses that Keras computes in this thread by the piece's share."""
    _install()
    before = current_piece()
    _current.piece = piece
    try:
        yield piece
    finally:
        _current.piece = before


def _install() -> None:
    """Put our scaling before Keras's; it does nothing in threads that work on no piece."""
    losses: Any = importlib.import_module(_LOSSES)
    if getattr(losses.scale_loss_for_distribution, "is_by_share", False):
        return
    scale, unscale = losses.scale_loss_for_distribution, losses.unscale_loss_for_distribution

    def scale_by_share(value: Any) -> Any:
        piece = current_piece()
        if piece is None:
            return scale(value)
        if not piece.is_weighted:
            return value
        piece.is_scaled = True
        return value * keras.ops.cast(piece.share, value.dtype)

    def unscale_by_share(value: Any) -> Any:
        piece = current_piece()
        if piece is None:
            return unscale(value)
        if not piece.is_weighted:
            return value
        return keras.ops.divide_no_nan(value, keras.ops.cast(piece.share, value.dtype))

    scale_by_share.is_by_share = True  # type: ignore[attr-defined]
    losses.scale_loss_for_distribution = scale_by_share
    losses.unscale_loss_for_distribution = unscale_by_share
