"""Losses of a piece of a batch (the shard of a device, or a part that is accumulated), weighted by its share of rows.

Keras divides mean losses and regularisation losses by the number of replicas and adds up the gradients. That is exact
for pieces of one size only. Here the divisor is replaced by the share of the piece: a mean over 3 rows of a batch of 7
counts by 3/7, as does a loss that is one number for all rows; a sum stays a sum, and a regularisation loss counts once
in all. This is decided for every loss by itself.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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
    """Whether Keras has computed a mean loss. A step that computes its loss by hand has not."""
    is_summed: bool = False
    """Whether Keras has computed a loss that adds up rows."""
    values: list[tuple[Any, Any]] = field(default_factory=list)
    """The loss objects that were called, and their values."""
    is_in_loss: bool = False
    """Whether a loss object is being called: those that it calls itself are weighted with it, once."""


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
        return value if piece.is_in_loss else _scaled(value, piece)

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
    losses.Loss.__call__ = _weighted_call(losses.Loss.__call__)


def _weighted_call(call: Callable[..., Any]) -> Callable[..., Any]:
    """A call of a loss object, weighted as its reduction says: Keras scales no loss that is one number already."""

    @functools.wraps(call)
    def weighted(loss: Any, *arguments: Any, **keywords: Any) -> Any:
        piece = current_piece()
        if piece is None or piece.is_in_loss:
            return call(loss, *arguments, **keywords)
        piece.is_in_loss = True
        try:
            value = call(loss, *arguments, **keywords)
        finally:
            piece.is_in_loss = False
        piece.values.append((loss, value))
        if loss.reduction in (None, "none"):
            return value
        return _summed(value, piece) if loss.reduction == "sum" else _scaled(value, piece)

    return weighted


def _scaled(value: Any, piece: Piece) -> Any:
    """A mean, which counts by the share."""
    piece.is_scaled = True
    return value * keras.ops.cast(piece.share, value.dtype) if piece.is_weighted else value


def _summed(value: Any, piece: Piece) -> Any:
    """A sum, which counts as it is; a device that only repeats a row has a share of nothing."""
    piece.is_summed = True
    return value * keras.ops.cast(piece.share > 0, value.dtype) if piece.is_weighted else value
