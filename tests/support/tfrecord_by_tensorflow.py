"""Run as a process: writes TFRecord files with TensorFlow, and what TensorFlow itself reads in them as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from penstock.core.records import ModelFile
from penstock.runtimes.environment import lean_imports

os.environ.update(CUDA_VISIBLE_DEVICES="", TF_CPP_MIN_LOG_LEVEL="3")
ROWS = 300


def make_examples(tf: Any) -> list[bytes]:
    chance = np.random.default_rng(5)
    train = tf.train

    def one(row: int) -> bytes:
        number = int(chance.integers(-(1 << 62), 1 << 62)) >> row % 60
        feature = {
            "floats": train.Feature(float_list=train.FloatList(value=chance.normal(size=5))),
            "number": train.Feature(int64_list=train.Int64List(value=[number])),
            "numbers": train.Feature(int64_list=train.Int64List(value=chance.integers(-9, 9, row % 4))),
            "word": train.Feature(bytes_list=train.BytesList(value=[b"w" * (row % 200)])),
            "words": train.Feature(bytes_list=train.BytesList(value=[b"%d" % n for n in range(row % 3)])),
            "pixels": train.Feature(bytes_list=train.BytesList(value=[chance.bytes(12)])),
        }
        names = list(feature)
        chance.shuffle(names)
        features = train.Features(feature={name: feature[name] for name in names})
        return bytes(train.Example(features=features).SerializeToString())

    return [one(row) for row in range(ROWS)]


def read_examples(tf: Any, records: list[bytes]) -> dict[str, Any]:
    parsed = tf.io.parse_example(
        records,
        {
            "floats": tf.io.FixedLenFeature([5], tf.float32),
            "number": tf.io.FixedLenFeature([], tf.int64),
            "numbers": tf.io.RaggedFeature(tf.int64),
            "word": tf.io.FixedLenFeature([], tf.string),
            "words": tf.io.RaggedFeature(tf.string),
            "pixels": tf.io.FixedLenFeature([], tf.string),
        },
    )
    parsed["pixels"] = tf.reshape(tf.io.decode_raw(parsed["pixels"], tf.uint8), (-1, 3, 4))
    return {name: as_lists(tf, tensor) for name, tensor in parsed.items()}


def make_sequences(tf: Any) -> list[bytes]:
    train = tf.train

    def one(row: int) -> bytes:
        frames = [train.Feature(float_list=train.FloatList(value=[row, number])) for number in range(row % 5)]
        tokens = [train.Feature(int64_list=train.Int64List(value=range(n))) for n in range(row % 4)]
        lists = {"frames": train.FeatureList(feature=frames), "tokens": train.FeatureList(feature=tokens)}
        context = {"label": train.Feature(int64_list=train.Int64List(value=[row]))}
        message = train.SequenceExample(
            context=train.Features(feature=context), feature_lists=train.FeatureLists(feature_list=lists)
        )
        return bytes(message.SerializeToString())

    return [one(row) for row in range(ROWS)]


def read_sequences(tf: Any, records: list[bytes]) -> dict[str, Any]:
    columns: dict[str, list[Any]] = {"label": [], "frames": [], "tokens": []}
    for record in records:
        context, lists = tf.io.parse_single_sequence_example(
            record,
            {"label": tf.io.FixedLenFeature([], tf.int64)},
            {"frames": tf.io.FixedLenSequenceFeature([2], tf.float32), "tokens": tf.io.RaggedFeature(tf.int64)},
        )
        for name, tensor in {**context, **lists}.items():
            columns[name].append(as_lists(tf, tensor))
    return columns


def as_lists(tf: Any, tensor: Any) -> Any:
    values = tensor.to_list() if isinstance(tensor, tf.RaggedTensor) else tensor.numpy().tolist()
    return json.loads(json.dumps(values, default=lambda raw: raw.decode("latin-1")))


def main(folder: Path) -> None:
    with lean_imports(ModelFile("saved_model", "", "", ()), "tensorflow"):
        import tensorflow as tf

    examples, sequences = make_examples(tf), make_sequences(tf)
    files = {
        "plain": (examples, ""),
        "gzip": (examples, "GZIP"),
        "zlib": (examples, "ZLIB"),
        "sequences": (sequences, ""),
    }
    for name, (records, compression) in files.items():
        with tf.io.TFRecordWriter(str(folder / name), compression) as writer:
            for record in records:
                writer.write(record)
    told = {"examples": read_examples(tf, examples), "sequences": read_sequences(tf, sequences)}
    (folder / "told.json").write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
