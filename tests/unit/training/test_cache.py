"""Decoded rows that are kept, in memory and on disk."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from penstock.core.records import Binding, RowFailure
from penstock.errors import OutputError, UsageError
from penstock.training import cache
from penstock.training.data import from_columns
from penstock.training.row_stream import RowStream
from tests.support.training_arrays import from_arrays

BINDINGS = (Binding("input:x", ("x",), "float32", (2,)), Binding("target:", ("y",), "int64", ()))
BAD = RowFailure(3, "somewhere", "load", "Broken", "it is")


def reader(seen: list[int]) -> Callable[[], RowStream]:
    def read() -> RowStream:
        seen.append(1)
        x = np.arange(20, dtype=np.float32).reshape(10, 2)
        return from_arrays({"x": x}, {"": np.arange(10)}, batch_size=4, seed=None, failures=[BAD])

    return read


def test_rows_of_a_cache_are_shuffled_all_together() -> None:
    held = cache.in_memory(BINDINGS, 10, reader([]))
    data = from_columns(held.columns, batch_size=4, seed=1, failures=held.failures)
    batches = list(data.batches(0))
    assert sorted(np.concatenate([batch.numbers for batch in batches])) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert all(np.array_equal(batch.targets[""], batch.numbers) for batch in batches)
    assert all(np.array_equal(batch.inputs["x"][:, 0], batch.numbers * 2) for batch in batches)
    assert held.remark() == "cache: 10 rows, 0.00 GB in memory"


def test_a_cache_on_disk_is_read_once_and_used_again(tmp_path: Path) -> None:
    seen: list[int] = []
    first = cache.on_disk(BINDINGS, 10, tmp_path / "cache", "key", reader(seen))
    again = cache.on_disk(BINDINGS, 10, tmp_path / "cache", "key", reader(seen))
    assert len(seen) == 1
    assert again.failures == first.failures == (BAD,)
    assert np.array_equal(again.columns["input:x"][4], [8, 9])
    assert "in disk" in again.remark()


def test_a_cache_of_another_input_or_one_that_is_not_whole_is_made_anew(tmp_path: Path) -> None:
    seen: list[int] = []
    cache.on_disk(BINDINGS, 10, tmp_path, "key", reader(seen))
    cache.on_disk(BINDINGS, 10, tmp_path, "another", reader(seen))
    (tmp_path / "cache.json").write_text("{")
    cache.on_disk(BINDINGS, 10, tmp_path, "another", reader(seen))
    assert len(seen) == 3


def test_a_cache_that_was_being_filled_is_not_used(tmp_path: Path) -> None:
    def fails() -> RowStream:
        raise RuntimeError

    seen: list[int] = []
    cache.on_disk(BINDINGS, 10, tmp_path, "key", reader(seen))
    with pytest.raises(RuntimeError):
        cache.on_disk(BINDINGS, 10, tmp_path, "another", fails)
    cache.on_disk(BINDINGS, 10, tmp_path, "key", reader(seen))
    assert len(seen) == 2


def test_too_little_memory_is_said_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "available_bytes", lambda: 100)
    seen: list[int] = []
    with pytest.raises(UsageError, match="--cache disk"):
        cache.in_memory(BINDINGS, 10, reader(seen))
    assert not seen


def test_a_disk_without_room_is_an_error_before_anything_is_read(tmp_path: Path) -> None:
    seen: list[int] = []
    with pytest.raises(OutputError, match="no room for the cache"):
        cache.on_disk(BINDINGS, 1 << 50, tmp_path, "key", reader(seen))
    assert not seen
    assert not list(tmp_path.glob("column-*"))


@pytest.mark.parametrize(
    "binding", [Binding("input:t", ("t",), "string", ()), Binding("input:t", ("t",), "int64", (None,))]
)
def test_text_and_rows_of_different_sizes_are_not_cached(binding: Binding) -> None:
    with pytest.raises(UsageError, match="cannot be cached"):
        cache.in_memory([binding], 10, reader([]))
