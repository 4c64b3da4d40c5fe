"""Datasets of Python for the contract of sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from penstock.core.protocols import Source
from penstock.sources.datasets import open_object

from .promises import Opened

ROWS = 300
PIXELS = np.random.default_rng(3).integers(0, 256, (ROWS, 3, 4), dtype=np.uint8)
WORDS = [f"w{i} ü" for i in range(ROWS)]


class Pairs:
    """As most datasets of PyTorch: an array and a label."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return PIXELS[index], index % 10


class Records(Pairs):
    """Dicts, and several at a time."""

    def __getitem__(self, index: int) -> Any:
        return {"pixels": PIXELS[index], "word": WORDS[index], "half": index / 2}

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Singles(Pairs):
    def __getitem__(self, index: int) -> Any:
        return PIXELS[index].astype(np.float32)


def opened(data: Any) -> Source:
    source = open_object(data)
    assert source is not None
    return source


def hugging_face(folder: Path, *, is_on_disk: bool, is_shuffled: bool = False) -> Source:
    import datasets  # type: ignore[import-untyped]

    kinds = {
        "id": datasets.Value("int32"),
        "pixels": datasets.Array2D((3, 4), "uint8"),
        "word": datasets.Value("string"),
    }
    rows = {"id": list(range(ROWS)), "pixels": PIXELS.tolist(), "word": WORDS}
    dataset = datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))
    if is_on_disk:
        place = folder / "dataset"
        if not place.exists():
            dataset.save_to_disk(str(place))
        dataset = datasets.load_from_disk(str(place))
    return opened(dataset.select(range(ROWS - 1, -1, -1)) if is_shuffled else dataset)


TABLE = {"id": list(range(ROWS)), "pixels": PIXELS.tolist(), "word": WORDS}
CASES = [
    Opened("pairs", lambda _: opened(Pairs()), {"x0": PIXELS.tolist(), "x1": [i % 10 for i in range(ROWS)]}),
    Opened(
        "records",
        lambda _: opened(Records()),
        {"pixels": PIXELS.tolist(), "word": WORDS, "half": [i / 2 for i in range(ROWS)]},
    ),
    Opened("singles", lambda _: opened(Singles()), {"x0": PIXELS.tolist()}),
    Opened("hugging face in memory", lambda folder: hugging_face(folder, is_on_disk=False), TABLE),
    Opened("hugging face on disk", lambda folder: hugging_face(folder, is_on_disk=True), TABLE),
    Opened(
        "hugging face with indices",
        lambda folder: hugging_face(folder, is_on_disk=True, is_shuffled=True),
        {name: values[::-1] for name, values in TABLE.items()},
    ),
]
