"""Losses of a piece of a batch, weighted by its share of the rows.

A piece is the shard of one device or, where gradients are accumulated, the rows that are worked on at one time.

Keras divides mean losses and regularisation losses by the number of replicas and adds up the gradients. This is exact
only for pieces of one size. Here the share of the piece takes the place of that divisor: a mean over 3 rows of a batch
of 7 counts by 3/7, as does a loss that is one number for all rows. A sum stays a sum, and a regularisation loss counts
once in all. This is decided for each loss separately.
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
    """Its share of the batch's rows: a number, or a tensor of the framework."""
    rows: Any = None
    """How many rows it has."""
    is_last: bool = True
    """Whether the weights change after it; the gradients of earlier pieces are only added up."""
    is_weighted: bool = True
    """Whether Keras's losses are weighted by the share. If not, the gradients are: the model's own step then sees the
    losses that it would see on one device."""
    is_scaled: bool = False
    """Whether Keras has computed a mean loss in this piece. It has not if the step computes its loss by hand."""
    is_summed: bool = False
    """Whether Keras has computed a loss that is a sum over rows."""
    values: list[tuple[Any, Any]] = field(default_factory=list)
    """The loss objects that were called, and their values."""
    is_in_loss: bool = False
    """Whether a loss object is being called. Loss objects that it calls are not weighted again."""


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
    """Replace Keras's scaling of losses by ours, which does the same as Keras in threads that work on no piece."""
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
    """A call of a loss object, weighted by its reduction: Keras does not scale a loss that is one number already."""

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
    """A mean over rows, weighted by the share of the piece."""
    piece.is_scaled = True
    return value * keras.ops.cast(piece.share, value.dtype) if piece.is_weighted else value


def _summed(value: Any, piece: Piece) -> Any:
    """A sum over rows, which is not weighted. It is 0 on a device that only repeats a row, whose share is 0."""
    piece.is_summed = True
    return value * keras.ops.cast(piece.share > 0, value.dtype) if piece.is_weighted else value
