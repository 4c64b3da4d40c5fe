"""Loader processes feed the stream of training rows: the same batches as without them, whatever happens to them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from penstock.core.preprocessing import Preprocess
from penstock.core.protocols import Source
from penstock.core.records import Array, Binding
from penstock.core.training import TrainBatch
from penstock.errors import UsageError
from penstock.options.records import ReadOptions
from penstock.sources.catalog import open_files
from penstock.sources.derived.shuffled import SEED
from penstock.training import data as training_data
from penstock.training.data import Loading, RowFormat, from_source, learn
from penstock.training.roles import CodedLabels, scan_classes, target_binding, with_folders
from penstock.training.row_stream import RowStream
from tests.support.photos import colour_of, damage, draw_folder

ROWS = 203


def numbers_table(rows: int = ROWS, width: int = 4) -> pa.Table:
    values = np.arange(rows * width, dtype=np.float32)
    return pa.table(
        {
            "x": pa.FixedSizeListArray.from_arrays(pa.array(values), width),
            "y": pa.array(np.arange(rows, dtype=np.int64)),
            "name": pa.array([f"c{row % 3}" for row in range(rows)]),
        }
    )


def write(folder: Path, kind: str) -> tuple[Source, RowFormat]:
    """An input, and the bindings of an input `x` and, where there is one, a target."""
    x = Binding("input:x", ("x",), "float32", (4,))
    if kind == "npy":
        np.save(folder / "x.npy", np.arange(ROWS * 4, dtype=np.float32).reshape(ROWS, 4))
        return open_files([str(folder / "x.npy")]), RowFormat((Binding("input:x", ("data",), "float32", (4,)),))
    if kind == "parquet":
        pq.write_table(numbers_table(), folder / "t.parquet", row_group_size=16)
        source = open_files([str(folder / "t.parquet")])
        coded = CodedLabels(source, "name", scan_classes(source, ["name"])["name"].vocabulary or ())
        return coded, RowFormat((x, target_binding(coded, "name")))
    if kind == "csv":
        pa.csv.write_csv(numbers_table().select(["y", "name"]), folder / "t.csv")
        source = open_files([str(folder / "t.csv")])
        return source, RowFormat((Binding("input:x", ("y",), "float32", ()), target_binding(source, "y")))
    return photos(folder, 40)


def photos(folder: Path, count: int) -> tuple[Source, RowFormat]:
    draw_folder(folder / "cats", count // 2)
    draw_folder(folder / "dogs", count - count // 2)
    source = with_folders(open_files([str(folder)], ReadOptions(image_size=(24, 24), color="rgb")), ["@folder"])
    coded = CodedLabels(source, "@folder", scan_classes(source, ["@folder"])["@folder"].vocabulary or ())
    image = Binding("input:x", ("image",), "uint8", (24, 24, 3))
    return coded, RowFormat((image, target_binding(coded, "@folder")))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "log.txt", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


def taken(batch: TrainBatch) -> list[Array]:
    """A copy of a batch, which is given back."""
    columns = [*batch.inputs.values(), *batch.targets.values(), *batch.weights.values()]
    copies = [array.copy() for array in (batch.numbers, *columns)]
    batch.release()
    return copies


def epoch_of(stream: RowStream, epoch: int, skip: int = 0) -> list[list[Array]]:
    return [taken(batch) for batch in stream.batches(epoch, skip)]


def assert_same(found: list[list[Array]], expected: list[list[Array]]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def loader_processes() -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it ended while we looked
            found += [child] if "penstock.pool.processes.loader" in child.cmdline() else []
    return found


@pytest.mark.parametrize("kind", ["photos", "parquet", "npy", "csv"])
def test_loaders_give_the_batches_that_one_process_reads(
    tmp_path: Path, log: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_data, "WINDOW_BYTES", 1000)
    source, row_format = write(tmp_path, kind)
    with (
        closing(from_source(source, row_format, Loading(0, log), batch_size=8, seed=1)) as here,
        closing(from_source(source, row_format, Loading(2, log), batch_size=8, seed=1)) as there,
    ):
        expected = [epoch_of(here, epoch) for epoch in range(2)]
        for epoch in range(2):
            assert_same(epoch_of(there, epoch), expected[epoch])
        assert sorted(np.concatenate([batch[0] for batch in expected[1]])) == list(range(here.rows or 0))
        # Rows in the middle of an epoch, and a jump back.
        assert_same(epoch_of(there, 1, skip=24), expected[1][3:])
        assert_same(epoch_of(there, 0), expected[0])
        if kind == "photos":
            numbers, images, labels = expected[0][0]
            assert np.array_equal(labels, numbers >= 20)
            means = images.reshape(8, -1, 3).mean(1)
            assert np.abs(means - [colour_of(number % 20) for number in numbers.tolist()]).max() < 4
    assert not loader_processes()


def test_killed_loaders_change_no_batch(tmp_path: Path, log: int) -> None:
    source, row_format = photos(tmp_path, 60)
    with (
        closing(from_source(source, row_format, Loading(0, log), batch_size=4, seed=2)) as here,
        closing(from_source(source, row_format, Loading(2, log), batch_size=4, seed=2)) as there,
    ):
        expected = epoch_of(here, 0)
        found: list[list[Array]] = []
        for step, batch in enumerate(there.batches(0)):
            found.append(taken(batch))
            if step in (2, 7):
                for process in loader_processes():
                    process.send_signal(signal.SIGKILL)
        assert_same(found, expected)
        assert not there.failures


def test_a_corrupt_photo_is_recorded_once_and_gone_in_the_next_epoch(tmp_path: Path, log: int) -> None:
    source, row_format = photos(tmp_path, 20)
    damage(tmp_path / "cats" / "00003.jpg", 1)
    with closing(from_source(source, row_format, Loading(2, log), batch_size=4, seed=3)) as data:
        epochs = [epoch_of(data, epoch) for epoch in range(2)]
        assert [[len(batch[0]) for batch in epoch] for epoch in epochs] == [[4, 4, 4, 4, 3]] * 2
        (failure,) = data.failures.values()
        assert (failure.row, failure.stage) == (3, "load")
        assert failure.origin.endswith("cats/00003.jpg")
        assert data.rows == 19
    # Who goes on after the first epoch knows of it, and need not meet it again.
    with closing(from_source(source, row_format, Loading(1, log), batch_size=4, seed=3, failures=[failure])) as again:
        assert_same(epoch_of(again, 1, skip=8), epochs[1][2:])


def dies_at_five(columns: dict[str, Array]) -> dict[str, Array]:
    if 5 in columns["y"]:
        os._exit(3)
    return {"x": columns["y"] * 2.0, "noise": columns[SEED] % 1000}


def test_a_row_that_kills_loaders_is_left_out_and_labels_pass_by_the_function(tmp_path: Path, log: int) -> None:
    pq.write_table(pa.table({"y": np.arange(30)}), tmp_path / "t.parquet")
    source = open_files([str(tmp_path / "t.parquet")])
    function = replace(Preprocess.of(dies_at_five), takes=source.schema())
    learnt = learn(source, function, Loading(1, log))
    bound = (Binding("input:x", ("x",), "float32", ()), Binding("input:noise", ("noise",), "int64", ()))
    row_format = RowFormat((*bound, target_binding(source, "y")), learnt)
    with closing(from_source(source, row_format, Loading(2, log), batch_size=8, seed=1)) as data:
        batches = [batch for epoch in range(2) for batch in epoch_of(data, epoch)]
        assert list(data.failures) == [5]
    for numbers, x, _, labels in batches:
        assert np.array_equal(labels, numbers)
        assert np.array_equal(x, numbers * 2)
    assert sum(len(batch[0]) for batch in batches) == 58
    assert not np.array_equal(batches[0][2], batches[4][2])


def test_a_row_that_kills_loaders_is_the_only_one_that_is_left_out_in_every_epoch(tmp_path: Path, log: int) -> None:
    """When an epoch is begun anew without the bad row, another row is at its place."""
    source, _ = write(tmp_path, "parquet")
    function = replace(Preprocess.of(dies_at_five), takes=source.schema())
    rows = RowFormat((Binding("input:x", ("x",), "float32", ()),), learn(source, function, Loading(1, log)))
    with closing(from_source(source, rows, Loading(2, log, epochs=3), batch_size=16, seed=3)) as stream:
        with closing(stream.batches(0)) as begun:  # type: ignore[type-var]
            next(begun).release()
        for epoch in range(3):
            numbers = np.concatenate([batch.numbers.copy() for batch in stream.batches(epoch)])
            assert sorted(numbers.tolist()) == [row for row in range(ROWS) if row != 5]
        assert list(stream.failures) == [5]


def dies_at_once(columns: dict[str, Array]) -> dict[str, Array]:
    os._exit(3)


def test_a_function_that_kills_at_every_row_is_told_after_a_few_of_them(tmp_path: Path, log: int) -> None:
    source, _ = write(tmp_path, "parquet")
    function = Preprocess.of(dies_at_once)
    with pytest.raises(UsageError, match="row 0: the process that loaded this row ended with exit code 3"):
        learn(source, replace(function, takes=source.schema()), Loading(1, log))
    # Rows 0, 8, 12, 14 and 15, each of them twice.
    assert os.pread(log, 1 << 20, 0).count(b"are loaded again") == 10


def notes_its_rows(columns: dict[str, Array]) -> dict[str, Array]:
    with open(os.environ["NOTED_ROWS"], "ab", buffering=0) as file:
        file.write(columns["y"].astype(np.int64).tobytes())
    return {"x": columns["y"] * 2.0}


def test_loaders_read_no_row_beyond_the_last_epoch(tmp_path: Path, log: int, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = tmp_path / "noted"
    monkeypatch.setenv("NOTED_ROWS", str(noted))
    pq.write_table(pa.table({"y": np.arange(40)}), tmp_path / "t.parquet", row_group_size=8)
    source = open_files([str(tmp_path / "t.parquet")])
    learnt = learn(source, replace(Preprocess.of(notes_its_rows), takes=source.schema()), Loading(1, log))
    noted.unlink()
    row_format = RowFormat((Binding("input:x", ("x",), "float32", ()),), learnt)
    with closing(from_source(source, row_format, Loading(2, log, epochs=2), batch_size=8, seed=None)) as data:
        epochs = [epoch_of(data, epoch) for epoch in range(2)]
        assert_same(epoch_of(data, 1), epochs[1])  # validation reads the last epoch again and again
    assert sorted(np.fromfile(noted, np.int64).tolist()) == sorted([*range(40)] * 3)


def anonymous_bytes(process: psutil.Process) -> int:
    with open(f"/proc/{process.pid}/status", encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file)
    return sum(int(lines[name].split()[0]) << 10 for name in ("RssAnon", "RssShmem"))


def test_ten_times_the_rows_take_no_more_memory(tmp_path: Path, log: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_data, "WINDOW_BYTES", 1 << 21)
    row_format = RowFormat((Binding("input:x", ("x",), "float32", (128,)),))
    peaks: list[int] = []
    # As many steps in both: loaders take memory from the system only while they work.
    for rows, epochs in ((20_000, 10), (200_000, 1)):
        path = tmp_path / f"{rows}.parquet"
        pq.write_table(numbers_table(rows, 128).select(["x"]), path, row_group_size=4000)
        with closing(from_source(open_files([str(path)]), row_format, Loading(2, log), batch_size=64, seed=1)) as data:
            peak = total = 0
            for step, batch in enumerate(each for epoch in range(epochs) for each in data.batches(epoch)):
                total += batch.rows
                batch.release()
                if step % 50 == 0:
                    peak = max(peak, *(anonymous_bytes(process) for process in loader_processes()))
            assert total == 200_000
            peaks.append(peak)
    assert peaks[1] < 1.1 * peaks[0] + (4 << 20)


def test_batches_that_nobody_gives_back_stop_the_reading_and_nothing_else(tmp_path: Path, log: int) -> None:
    source, row_format = write(tmp_path, "npy")
    with closing(from_source(source, row_format, Loading(1, log), batch_size=8, seed=1)) as data:
        batches = data.batches(0)
        held = [next(batches) for _ in range(4)]
        copies = [batch.inputs["x"].copy() for batch in held]
        rest = [batch.rows for batch in batches]
        assert sum(rest) == ROWS - 32
        assert all(np.array_equal(batch.inputs["x"], copy) for batch, copy in zip(held, copies, strict=True))
