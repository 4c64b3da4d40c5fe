"""Rows of different lengths through models of many kinds: what penstock answers, beside what the model answers to each.

Usage: python rows_alone.py EXAMPLES KIND…; prints rows, the largest difference and the spread of every kind.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pyarrow as pa
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from keras import layers

import penstock

FEATURES, WORDS = 3, 40


def series(*stack: Any) -> keras.Model:
    """A model of series of numbers."""
    tensor = given_ = keras.Input((None, FEATURES), name="x")
    for layer in stack:
        tensor = layer(tensor)
    return keras.Model(given_, tensor)


def text(*stack: Any, has_mask: bool) -> keras.Model:
    """A model of series of word numbers."""
    given_ = keras.Input((None,), dtype="int32", name="x")
    tensor = layers.Embedding(WORDS, 6, mask_zero=has_mask)(given_)
    for layer in stack:
        tensor = layer(tensor)
    return keras.Model(given_, tensor)


def attending(*, has_mask: bool) -> keras.Model:
    given_ = keras.Input((None,), dtype="int32", name="x")
    words = layers.Embedding(WORDS, 8, mask_zero=has_mask)(given_)
    seen = layers.MultiHeadAttention(2, 4)(words, words)
    return keras.Model(given_, layers.Dense(2)(layers.GlobalAveragePooling1D()(seen)))


def seldom() -> keras.Model:
    """Padding is seen only in the few rows of which every value is below a bound: most rows hide it."""
    bias = keras.initializers.Constant(-2.5)
    return series(layers.Dense(4, "relu", bias_initializer=bias), layers.Conv1D(4, 3, padding="same"), *maximum())


def maximum() -> list[Any]:
    return [layers.GlobalMaxPooling1D(), layers.Dense(2)]


KINDS: dict[str, Callable[[], keras.Model]] = {
    "lstm": lambda: series(layers.LSTM(5), layers.Dense(2)),
    "gru": lambda: series(layers.GRU(5)),
    "rnn": lambda: series(layers.SimpleRNN(5)),
    "bidirectional": lambda: series(layers.Bidirectional(layers.LSTM(4)), layers.Dense(2)),
    "lstm of every step": lambda: series(layers.LSTM(4, return_sequences=True)),
    "bidirectional of every step": lambda: series(layers.Bidirectional(layers.GRU(3, return_sequences=True))),
    "dense of every step": lambda: series(layers.Dense(4, "relu"), layers.Dense(2)),
    "convolution, mean": lambda: series(layers.Conv1D(5, 3, padding="same"), layers.GlobalAveragePooling1D()),
    "convolution, maximum": lambda: series(layers.Conv1D(5, 3, padding="same", activation="relu"), *maximum()),
    "convolution in strides": lambda: series(layers.Conv1D(5, 3, strides=2, padding="same"), *maximum()),
    "pooling of every step": lambda: series(layers.MaxPooling1D(2, padding="same"), layers.Dense(2)),
    "step in front of every row": lambda: series(layers.ZeroPadding1D((1, 0)), layers.Dense(2)),
    "every step twice": lambda: series(layers.UpSampling1D(2), layers.Dense(2)),
    "causal convolution of every step": lambda: series(layers.Conv1D(3, 3, padding="causal")),
    "pooling": lambda: series(layers.MaxPooling1D(2, padding="same"), *maximum()),
    "norm over time": lambda: series(layers.LayerNormalization(axis=[1, 2], scale=False, center=False), *maximum()),
    "seldom": seldom,
    "masked lstm": lambda: series(layers.Masking(), layers.LSTM(5), layers.Dense(2)),
    "words, mean": lambda: text(layers.GlobalAveragePooling1D(), layers.Dense(2), has_mask=False),
    "words, masked mean": lambda: text(layers.GlobalAveragePooling1D(), layers.Dense(2), has_mask=True),
    "words, masked lstm": lambda: text(layers.LSTM(5), has_mask=True),
    "words, masked bidirectional": lambda: text(layers.Bidirectional(layers.GRU(4)), has_mask=True),
    "attention": lambda: attending(has_mask=False),
    "masked attention": lambda: attending(has_mask=True),
}
MOST_LENGTH = 12


def rows_of(model: keras.Model, lengths: list[int], random: np.random.Generator) -> list[np.ndarray[Any, Any]]:
    if model.input_shape == (None, None):
        return [random.integers(1, WORDS, length).astype(np.int32) for length in lengths]
    return [random.normal(size=(length, FEATURES)).astype(np.float32) for length in lengths]


def compared(model: keras.Model, rows: list[np.ndarray[Any, Any]]) -> tuple[float, float]:
    """The largest difference between penstock's answers and those to each row alone; and the spread of these."""
    kind = pa.int32() if rows[0].ndim == 1 else pa.list_(pa.float32(), FEATURES)
    table = pa.table({"x": pa.array([row.tolist() for row in rows], pa.list_(kind))})
    ours = penstock.predict(model, table)
    worst, values = 0.0, []
    for mine, row in zip(ours, rows, strict=True):
        alone = keras.ops.convert_to_numpy(model(row[None]))[0]
        mine = np.stack(mine) if mine.dtype == object else mine
        assert mine.shape == alone.shape, (mine.shape, alone.shape)
        worst = max(worst, float(np.abs(mine - alone).max()))
        values.append(alone.reshape(-1))
    return worst, float(np.ptp(np.concatenate(values)))


def try_kind(make: Callable[[], keras.Model], examples: int) -> dict[str, float]:
    keras.utils.set_random_seed(5)
    model = make()
    found = {"rows": 0, "worst": 0.0, "spread": 0.0}

    @seed(11)
    @settings(max_examples=examples, deadline=None, database=None)
    @given(st.lists(st.integers(1, MOST_LENGTH), min_size=8, max_size=24), st.integers(0, 2**31))
    def holds(lengths: list[int], chance: int) -> None:
        rows = rows_of(model, lengths, np.random.default_rng(chance))
        worst, spread = compared(model, rows)
        found["rows"] += len(rows)
        found["worst"], found["spread"] = max(found["worst"], worst), max(found["spread"], spread)

    holds()
    return found


if __name__ == "__main__":
    examples, *kinds = sys.argv[1:]
    print(json.dumps({kind: try_kind(KINDS[kind], int(examples)) for kind in kinds or KINDS}))
