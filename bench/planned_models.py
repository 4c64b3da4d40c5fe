"""M's models that no other workload has: an LSTM, a transformer encoder, a wide-and-deep network with strings."""

from typing import Any

import keras

from bench.planned_data import CITIES, DEVICES, HOURS, NUMBERS, SEQUENCE, TOKENS, VOCABULARY

WIDTH = 128
HEADS = 4
ENCODER_LAYERS = 2


def recurrent_network() -> Any:
    """Sequences of 64 steps with 32 features, LSTM(128), Dense(10)."""
    steps = keras.Input(SEQUENCE, name="steps")
    state = keras.layers.LSTM(WIDTH)(steps)
    return keras.Model(steps, keras.layers.Dense(10, name="scores")(state))


def encoder() -> Any:
    """64 tokens, embedded, two layers of attention and feed-forward, the mean of all tokens to 8 scores."""
    tokens = keras.Input((TOKENS,), dtype="int32", name="tokens")
    # Rows of tokens must not all look the same to the mean: embeddings are as wide apart as trained ones.
    hidden = keras.layers.Embedding(VOCABULARY, WIDTH, embeddings_initializer=keras.initializers.RandomNormal(0, 1))(
        tokens
    )
    for _ in range(ENCODER_LAYERS):
        attended = keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(hidden, hidden)
        hidden = keras.layers.LayerNormalization()(hidden + attended)
        wider = keras.layers.Dense(4 * WIDTH, activation="gelu")(hidden)
        hidden = keras.layers.LayerNormalization()(hidden + keras.layers.Dense(WIDTH)(wider))
    pooled = keras.layers.GlobalAveragePooling1D()(hidden)
    return keras.Model(tokens, keras.layers.Dense(8, name="scores")(pooled))


def wide_and_deep() -> Any:
    """Two columns of strings, one of whole numbers and thirteen of floats, looked up inside the model."""
    city = keras.Input((1,), dtype="string", name="city")
    device = keras.Input((1,), dtype="string", name="device")
    hour = keras.Input((1,), dtype="int64", name="hour")
    numbers = keras.Input((NUMBERS,), name="numbers")
    city_index = keras.layers.StringLookup(vocabulary=list(CITIES))(city)
    device_index = keras.layers.StringLookup(vocabulary=list(DEVICES))(device)
    hour_index = keras.layers.IntegerLookup(vocabulary=list(HOURS))(hour)
    wide = keras.layers.Concatenate()([_one_hot(device_index, len(DEVICES) + 1), _one_hot(hour_index, len(HOURS) + 1)])
    deep = keras.layers.Concatenate()(
        [_embedded(city_index, len(CITIES) + 1), _embedded(device_index, len(DEVICES) + 1), numbers]
    )
    for units in (256, 128, 64):
        deep = keras.layers.Dense(units, activation="relu")(deep)
    both = keras.layers.Concatenate()([wide, deep])
    chance = keras.layers.Dense(1, activation="sigmoid", name="chance")(both)
    return keras.Model([city, device, hour, numbers], chance)


def _one_hot(index: Any, count: int) -> Any:
    return keras.layers.CategoryEncoding(num_tokens=count, output_mode="multi_hot")(index)


def _embedded(index: Any, count: int) -> Any:
    wide_apart = keras.initializers.RandomNormal(0, 1)
    return keras.layers.Flatten()(keras.layers.Embedding(count, 16, embeddings_initializer=wide_apart)(index))
