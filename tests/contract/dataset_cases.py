"""Datasets of Python for the contract of sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.core.protocols import Source
from penstock.sources.python.datasets import open_object
from penstock.sources.python.streaming import Rows

from .case import Bad, Case, write_nothing

ROWS = 300
BAD_ROW = 271
PIXELS = np.random.default_rng(3).integers(0, 256, (ROWS, 3, 4), dtype=np.uint8)
WORDS = [f"w{i} ü" for i in range(ROWS)]


class Pairs:
    """As most datasets of PyTorch: an array and a label."""

    def __init__(self, bad_row: int | None = None, shift: int = 0) -> None:
        self.bad_row = bad_row
        self.shift = shift

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        if index == self.bad_row:
            raise OSError("a bad sector")
        return self.item(index)

    def item(self, index: int) -> Any:
        return PIXELS[index], index % 10


class Records(Pairs):
    """Dicts, and several at a time."""

    def item(self, index: int) -> Any:
        return {"pixels": PIXELS[index], "word": WORDS[index], "half": index / 2}

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Singles(Pairs):
    def item(self, index: int) -> Any:
        return PIXELS[index].astype(np.float32)


def opened(data: Any) -> Source:
    source = open_object(data)
    assert source is not None
    return source


def made_dataset(words: Sequence[str] = WORDS) -> Any:
    import datasets  # type: ignore[import-untyped]

    datasets.disable_progress_bars()
    kinds = {
        "id": datasets.Value("int32"),
        "pixels": datasets.Array2D((3, 4), "uint8"),
        "word": datasets.Value("string"),
    }
    rows = {"id": list(range(ROWS)), "pixels": PIXELS.tolist(), "word": list(words)}
    return datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))


def save_dataset(folder: Path) -> list[str]:
    place = str(folder / "dataset")
    made_dataset().save_to_disk(place)
    return [place]


def load_dataset(paths: list[str], *, is_reversed: bool = False) -> Source:
    import datasets

    dataset = datasets.load_from_disk(paths[0])
    return opened(dataset.select(range(ROWS - 1, -1, -1)) if is_reversed else dataset)


def files_of_dataset(paths: list[str]) -> list[str]:
    return sorted(str(path) for path in Path(paths[0]).glob("*.arrow"))


def map_case(kind: type[Pairs], expected: dict[str, list[Any]], left: dict[str, Any]) -> Case:
    return Case(
        f"map dataset of {kind.__name__.lower()}",
        write_nothing,
        lambda _: opened(kind()),
        expected,
        lambda _, row: f"{kind.__name__}, item {row}",
        spoil=lambda _: Bad(BAD_ROW, f"{kind.__name__}, item {BAD_ROW}", "a bad sector", left),
        open_spoiled=lambda _: opened(kind(BAD_ROW)),
        others=lambda: [opened(kind(shift=1)), opened(kind(0))],
    )


def streamed_rows(bad_row: int | None = None) -> Iterator[Any]:
    for row in range(ROWS):
        yield {"pixels": PIXELS[row] if row != bad_row else PIXELS[row, :2], "word": WORDS[row], "half": row / 2}


def streamed_batches(bad_row: int | None = None) -> Iterator[Any]:
    """Of 7 rows; a bad row is a text that is none."""
    words = np.array(WORDS, object)
    if bad_row is not None:
        words[bad_row] = 7.5
    for start in range(0, ROWS, 7):
        rows = slice(start, start + 7)
        yield {"pixels": PIXELS[rows], "word": words[rows], "half": np.arange(ROWS)[rows] / 2}


def stream_case(name: str, called: str, make: Callable[[int | None], Any], bad: Bad | None) -> Case:
    return Case(
        name,
        write_nothing,
        lambda _: opened(make(None)),
        RECORDS,
        lambda _, row: f"{called}, row {row}",
        spoil=None if bad is None else lambda _: bad,
        open_spoiled=None if bad is None else lambda _: opened(make(BAD_ROW)),
        unspoilable="" if bad is not None else "a batch is as it is: what a value is worth is seen when it is fed",
        is_stream=True,
    )


ZEROS = np.zeros((3, 4), np.uint8).tolist()
TABLE: dict[str, list[Any]] = {"id": list(range(ROWS)), "pixels": PIXELS.tolist(), "word": WORDS}
RECORDS: dict[str, list[Any]] = {"pixels": PIXELS.tolist(), "word": WORDS, "half": [i / 2 for i in range(ROWS)]}
STREAM = stream_case(
    "stream of rows",
    "Rows",
    lambda bad_row: Rows(streamed_rows(bad_row)),
    Bad(BAD_ROW, f"Rows, row {BAD_ROW}", "'pixels' has the shape (2, 4)", {"pixels": ZEROS, "word": "", "half": 0.0}),
)
HUGGING_FACE = Case(
    "hugging face on disk",
    save_dataset,
    load_dataset,
    TABLE,
    lambda _, row: f"datasets.Dataset, item {row}",
    unspoilable="tables of Arrow are whole or refused",
    unseen=files_of_dataset,
)
CASES = [
    map_case(Pairs, {"x0": PIXELS.tolist(), "x1": [i % 10 for i in range(ROWS)]}, {"x0": ZEROS, "x1": 0}),
    map_case(Records, RECORDS, {"pixels": ZEROS, "word": "", "half": 0.0}),
    map_case(Singles, {"x0": PIXELS.tolist()}, {"x0": ZEROS}),
    Case(
        "hugging face in memory",
        write_nothing,
        lambda _: opened(made_dataset()),
        TABLE,
        lambda _, row: "memory",
        unspoilable="held",
        others=lambda: [opened(made_dataset(["other", *WORDS[1:]]))],
    ),
    HUGGING_FACE,
    Case(
        "hugging face with indices",
        save_dataset,
        lambda paths: load_dataset(paths, is_reversed=True),
        {name: values[::-1] for name, values in TABLE.items()},
        HUGGING_FACE.origin,
        unspoilable=HUGGING_FACE.unspoilable,
        unseen=files_of_dataset,
    ),
    STREAM,
    stream_case("stream of batches", "generator", streamed_batches, None),
]
