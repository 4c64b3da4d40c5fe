"""The numbers of the rows that are held back for validation, as a file for people."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
from pyarrow import csv

from penstock.core.shuffling import RowSet
from penstock.storage.disk import fsync_folder, regular

VALIDATION_ROWS = "validation_rows.csv"
"""A file with a column `row`: the numbers of the rows in the whole input, from 0 on, as in predictions."""
_ROWS_AT_ONCE = 1 << 22
"""How many numbers are sorted and written at once, so that memory does not grow with the input."""


def write_held_back(folder: str, rows: RowSet) -> None:
    """Write the numbers of rows, unless the file is there: a resumed job holds back the same rows."""
    path = os.path.join(folder, VALIDATION_ROWS)
    if os.path.exists(path):
        return
    temporary = path + ".tmp"
    with open(temporary, "wb", opener=regular) as file:
        file.write(b"row\n")
        for first in range(0, rows.count, _ROWS_AT_ONCE):
            numbers = np.sort(rows.numbers(np.arange(first, min(first + _ROWS_AT_ONCE, rows.count))))
            csv.write_csv(pa.table({"row": numbers}), file, csv.WriteOptions(include_header=False))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    fsync_folder(folder)
