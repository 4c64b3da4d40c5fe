"""How many rows a batch has, where a size was asked for and files are small."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.records import Binding, Signature, TensorSpec
from penstock.jobs.batch_size import choose_batch_size, size_with_state
from penstock.options.records import PredictOptions
from penstock.sources.tables.csv import CsvFiles

SIGNATURE = Signature((TensorSpec("x", "float32", ()),), (TensorSpec("y", "float32", ()),))
BINDINGS = (Binding("x", ("a",), "float32", ()),)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([20], 32),
        ([500], 64),
        ([1, 1, 500], 64),  # the first files do not speak for all
        ([4] * 40, 64),  # small files share a span, and so a batch
        ([4] * 5, 32),
    ],
)
def test_size_that_was_asked_for_is_no_larger_than_files_need(tmp_path: Path, rows: list[int], expected: int) -> None:
    for number, count in enumerate(rows):
        (tmp_path / f"{number:02}.csv").write_text("a\n" + "1.5\n" * count, encoding="utf-8")
    source = CsvFiles(sorted(map(str, tmp_path.glob("*.csv"))))
    options = PredictOptions(batch_size=64)
    assert choose_batch_size(SIGNATURE, BINDINGS, source, options, "cpu") == expected
    assert size_with_state(SIGNATURE, BINDINGS, options, expected, is_chosen=True) == 64


def test_model_with_state_has_the_batches_of_model_predict_where_none_are_asked_for() -> None:
    assert size_with_state(SIGNATURE, BINDINGS, PredictOptions(), 4096, is_chosen=False) == 32
    fixed = Signature(SIGNATURE.inputs, SIGNATURE.outputs, fixed_batch=4)
    assert size_with_state(fixed, BINDINGS, PredictOptions(batch_size=4), 4, is_chosen=True) == 4
