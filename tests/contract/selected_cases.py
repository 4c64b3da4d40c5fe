"""Some rows of other sources (`--limit`, `--skip`, `--sample`) for the contract of sources."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from penstock.sources.derived.selection import sample, sample_by_class, sample_evenly, select

from . import dataset_cases, image_cases, table_cases, text_cases, tfrecord_cases
from .case import Case, some_rows

_BY_NAME = {
    case.name: case
    for case in (
        *table_cases.CASES,
        *image_cases.CASES,
        *text_cases.CASES,
        *tfrecord_cases.CASES,
        *dataset_cases.CASES,
    )
}


def _cut(name: str, skip: int, limit: int | None) -> Case:
    case = _BY_NAME[name]
    stop = case.num_rows if limit is None else skip + limit
    rows = range(skip, min(stop, case.num_rows))
    said = f"skip {skip} and limit {limit} of {name}"
    return some_rows(case, said, lambda source: select(source, skip=skip, limit=limit), list(rows))


def _sampled(name: str, wanted: int, seed: int) -> Case:
    """`seed` is one with which the row that can be damaged is in the sample."""
    case = _BY_NAME[name]
    rows = sample_evenly(case.num_rows, wanted, seed).tolist()
    return some_rows(case, f"sample of {name}", lambda source: sample(source, wanted, None, seed), rows)


def _sampled_by(name: str, column: str, wanted: int, seed: int) -> Case:
    case = _BY_NAME[name]
    classes = np.unique(np.array(case.expected[column]), return_inverse=True)[1]
    rows = sample_by_class(classes, wanted, seed).tolist()
    said = f"sample by {column} of {name}"
    chosen = some_rows(case, said, lambda source: sample(source, wanted, column, seed), rows)
    return replace(chosen, spoil=None, unspoilable="a row that is bad changes which rows are taken")


CASES = [
    _cut("parquet nested", 20, 130),
    _cut("parquet one row group", 120, 50),
    _cut("npz compressed", 0, 120),
    _cut("csv", 110, None),
    _cut("jsonl", 100, 80),
    _cut("tfrecord gzip", 103, 60),
    _cut("image files", 13, 31),
    _cut("tar", 13, 31),
    _cut("map dataset of records", 30, 250),
    _cut("hugging face with indices", 30, 100),
    _cut("memory arrays", 3, 150),
    _cut("stream of rows", 0, 280),
    _cut("stream of rows", 30, 250),
    _cut("stream of batches", 30, None),
    _sampled("parquet nested", 90, seed=2),
    _sampled("text", 90, seed=2),
    _sampled("tfrecord", 90, seed=2),
    _sampled_by("map dataset of pairs", "x1", 150, seed=2),
]
