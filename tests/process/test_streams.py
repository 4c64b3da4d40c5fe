"""Generators and datasets in a script: each row once, in order, with the number it has in the whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import ENVIRONMENT, read_rows

SCRIPT = """
import sys
import numpy as np
import penstock

model, out, what = sys.argv[1:]
rows = np.random.default_rng(1).integers(0, 17, (600, 64), dtype=np.uint8)

def batches():
    for start in range(0, 600, 50):
        yield {"pixels": rows[start:start + 50], "id": np.arange(start, start + 50)}

def breaks():
    yield from (batch for batch, _ in zip(batches(), range(4)))
    raise RuntimeError("the line is cut")

class Items:
    def __len__(self):
        return 600
    def __getitem__(self, number):
        if number == 33:
            raise ValueError("thirty-three")
        return {"pixels": rows[number], "id": number}

options = dict(output=out, keep="id", batch_size=32, part_rows=128, progress=False)
match what:
    case "generator": penstock.predict(model, batches(), **options)
    case "skip": penstock.predict(model, batches(), skip=120, limit=300, **options)
    case "rows":
        single = ({"pixels": row, "id": number} for number, row in enumerate(rows))
        penstock.predict(model, penstock.Rows(single), **options)
    case "items": penstock.predict(model, Items(), **options)
    case "items skip": penstock.predict(model, Items(), skip=20, limit=100, **options)
    case "breaks":
        try:
            penstock.predict(model, breaks(), **options)
        except penstock.InputError as error:
            assert "the line is cut" in str(error), error
"""


def ran(light_models: Path, tmp_path: Path, what: str) -> list[int]:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", str(light_models / "digits.onnx"), str(tmp_path / "out"), what]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stderr
    table = read_rows(tmp_path / "out")
    rows: list[int] = table.column("row").to_pylist()
    assert table.column("id").to_pylist() == rows
    return rows


def test_generator_gives_every_row_once_and_in_order(light_models: Path, tmp_path: Path) -> None:
    assert ran(light_models, tmp_path, "generator") == list(range(600))


def test_skipped_rows_of_a_stream_keep_their_numbers(light_models: Path, tmp_path: Path) -> None:
    assert ran(light_models, tmp_path, "skip") == list(range(120, 420))


def test_single_rows_are_gathered(light_models: Path, tmp_path: Path) -> None:
    assert ran(light_models, tmp_path, "rows") == list(range(600))


def test_item_that_raises_is_a_failed_row(light_models: Path, tmp_path: Path) -> None:
    assert ran(light_models, tmp_path, "items") == [row for row in range(600) if row != 33]
    assert "thirty-three" in (tmp_path / "out" / "_penstock" / "failures.jsonl").read_text()


def test_items_of_a_piece_are_read_in_loaders_under_their_own_numbers(light_models: Path, tmp_path: Path) -> None:
    assert ran(light_models, tmp_path, "items skip") == [row for row in range(20, 120) if row != 33]


def test_what_came_before_a_stream_broke_is_kept(light_models: Path, tmp_path: Path) -> None:
    assert ran(light_models, tmp_path, "breaks") == list(range(200))
