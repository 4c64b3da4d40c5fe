"""The file of the rows that are held back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock.core.shuffling import split_rows
from penstock.training import held_back


@pytest.mark.parametrize("rows_at_once", [7, 1000])
def test_numbers_of_rows_are_in_the_file_once_each(
    rows_at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_back, "_ROWS_AT_ONCE", rows_at_once)
    trained, held = split_rows(100, 0.2, seed=1)
    held_back.write_held_back(str(tmp_path), held)
    header, *lines = (tmp_path / held_back.VALIDATION_ROWS).read_text(encoding="utf-8").splitlines()
    numbers = [int(line) for line in lines]
    assert header == "row"
    assert sorted([*numbers, *trained.numbers(np.arange(80)).tolist()]) == list(range(100))
    assert (numbers == sorted(numbers)) == (rows_at_once > held.count)
    assert [path.name for path in tmp_path.iterdir()] == [held_back.VALIDATION_ROWS]
