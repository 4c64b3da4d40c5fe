"""How many loaders read an input for training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.sources.catalog import open_files
from penstock.training import file_data
from penstock.training.file_data import choose_loaders


@pytest.mark.parametrize(
    ("cores", "has_gpu", "loaders", "of_python"),
    [(1, False, 0, 1), (2, False, 2, 2), (2, True, 0, 1), (16, True, 4, 15)],
)
def test_a_few_processes_decode_a_large_input_and_a_thread_reads_a_small_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, has_gpu: bool, loaders: int, of_python: int
) -> None:
    pq.write_table(pa.table({"y": np.arange(100)}), tmp_path / "t.parquet")
    source = open_files([str(tmp_path / "t.parquet")])
    size = (tmp_path / "t.parquet").stat().st_size
    monkeypatch.setattr(file_data, "_WORTH_PROCESSES", 5 * size)
    assert choose_loaders(source, 4, cores, is_python=False, has_gpu=has_gpu) == 0
    assert choose_loaders(source, 5, cores, is_python=False, has_gpu=has_gpu) == loaders
    assert choose_loaders(source, 1, cores, is_python=True, has_gpu=has_gpu) == of_python


def test_rows_that_are_read_at_random_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", np.zeros((100, 4)))
    monkeypatch.setattr(file_data, "_WORTH_PROCESSES", 1)
    source = open_files([str(tmp_path / "x.npy")])
    assert choose_loaders(source, 5, 16, is_python=False, has_gpu=True) == 0
