"""Records that are built from columns, read by TensorFlow itself: `main` raises where it finds something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given, settings

from penstock.core.example_encoding import encode
from penstock.core.records import STRING
from tests.unit.core.test_example_encoding import ARROW, columns

_DTYPES = {"int64": "int64", "float32": "float32", STRING: "string"}


def main(folder: Path) -> None:
    import tensorflow as tf

    @settings(max_examples=60, deadline=None, database=None)
    @given(columns())
    def holds(case: Any) -> None:
        values, features = case
        arrays = [pa.array(some, pa.list_(ARROW[one.dtype])) for some, one in zip(values, features, strict=True)]
        records, _ = encode(arrays, features)
        wanted = {one.name: tf.io.RaggedFeature(_DTYPES[one.dtype]) for one in features}
        parsed = tf.io.parse_example(tf.constant(records), wanted)
        for one, some in zip(features, values, strict=True):
            expected = [row if row is not None else [] for row in some]
            assert parsed[one.name].to_list() == expected, (one, expected)
            for row, record in zip(some, records, strict=True):
                message = tf.train.Example.FromString(record).features.feature
                assert (one.name in message) == (row is not None)

    holds()
    (folder / "records_were_read").touch()
