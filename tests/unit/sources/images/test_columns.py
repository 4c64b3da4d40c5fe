"""Finding the column of images in a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.protocols import Source
from penstock.core.records import STRING, Column, Shape, Signature, TensorSpec
from penstock.options.records import ReadOptions
from penstock.sources.images.columns import ImageColumns, find_images
from penstock.sources.python.memory import InMemory

JPEG, PNG, GIF = b"\xff\xd8\xff\xe0rest", b"\x89PNG\r\n\x1a\nrest", b"GIF89a rest"
WEBP, BMP, TIFF, WAV = b"RIFF\x00\x00\x00\x00WEBPrest", b"BM rest", b"II*\x00rest", b"RIFF\x00\x00\x00\x00WAVErest"


def model(*inputs: tuple[str, str, Shape | None]) -> Signature:
    return Signature(tuple(TensorSpec(*each) for each in inputs), ())


IMAGES = model(("image", "float32", (32, 32, 3)))


def found(
    columns: Mapping[str, Column],
    signature: Signature = IMAGES,
    inputs: Mapping[str, Sequence[str]] | None = None,
) -> list[str]:
    """The columns that are taken for images."""
    source = InMemory(columns)
    searched: Source = find_images(source, signature, inputs or {}, ReadOptions())
    if searched is source:
        return []
    assert isinstance(searched, ImageColumns)
    return [name for name, spec in searched.schema().items() if spec.encoding == "image"]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([JPEG, PNG, GIF]),
        pa.array([WEBP, BMP, TIFF]),
        pa.array([JPEG, JPEG, b"broken"]),
        pa.array([None, PNG, None]),
        pa.array(["a.jpg", "folder/b.JPEG", "http://host/c.png"]),
        pa.array(["a.webp", "b.tif", "c.gif"]),
        np.array(["a.jpg", "b.png", "c.bmp"], dtype=object),
        pa.array([{"bytes": JPEG, "path": None}] * 3),
        pa.array([{"bytes": None, "path": "a.png"}] * 3, pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
    ],
    ids=[
        "bytes",
        "more bytes",
        "one is broken",
        "some are null",
        "paths",
        "more paths",
        "array",
        "struct",
        "struct path",
    ],
)
def test_column_of_images_is_found(values: Column) -> None:
    assert found({"id": np.arange(3), "picture": values, "label": pa.array(["cat", "dog", "cow"])}) == ["picture"]


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["cat", "dog", "cow"]),
        pa.array([b"\x00\x01", b"", b"x"]),
        pa.array([WAV, WAV, WAV]),
        pa.array(["a.txt", "b.csv", "c.jpg"]),
        pa.array([None, None, None], pa.binary()),
        pa.array(["", "", ""]),
        np.zeros((3, 5)),
        pa.array([["a.jpg"], ["b.jpg"], ["c.jpg"]]),
        pa.array([{"a": 1}] * 3),
    ],
    ids=["words", "bytes", "audio", "mostly others", "nulls", "empty", "numbers", "lists", "another struct"],
)
def test_what_is_no_image_is_left_alone(values: Column) -> None:
    assert found({"id": np.arange(3), "what": values}) == []


@pytest.mark.parametrize(
    "signature",
    [
        model(("x", "float32", (5,))),
        model(("x", STRING, ())),
        model(("x", "float32", None)),
        model(("x", STRING, (2, 2, 2))),
    ],
    ids=["vectors", "strings", "anything", "strings in three dimensions"],
)
def test_nothing_is_searched_where_the_model_wants_no_images(signature: Signature) -> None:
    assert found({"picture": pa.array([JPEG] * 3)}, signature) == []


def test_nothing_is_searched_where_a_column_fits_already() -> None:
    columns: dict[str, Column] = {"pixels": np.zeros((3, 32, 32, 3), np.uint8), "picture": pa.array([JPEG] * 3)}
    assert found(columns) == []


def test_model_that_takes_more_than_images_finds_its_images() -> None:
    signature = model(("age", "float32", (1,)), ("photo", "float32", (None, None, 3)))
    assert found({"age": np.zeros((3, 1)), "file": pa.array(["a.jpg"] * 3)}, signature) == ["file"]


def test_two_columns_of_images_are_not_guessed_between() -> None:
    assert found({"left": pa.array([JPEG] * 3), "right": pa.array([PNG] * 3)}) == []


def test_column_that_was_asked_for_is_taken_among_several() -> None:
    columns = {"left": pa.array([JPEG] * 3), "right": pa.array([PNG] * 3)}
    assert found(columns, inputs={"image": ["right"]}) == ["right"]


def test_two_columns_that_were_asked_for_are_both_taken() -> None:
    signature = model(("a", "float32", (8, 8, 3)), ("b", "float32", (8, 8, 3)))
    columns = {"left": pa.array([JPEG] * 3), "right": pa.array([PNG] * 3), "third": pa.array([PNG] * 3)}
    assert found(columns, signature, {"a": ["left"], "b": ["right"]}) == ["left", "right"]


def test_input_without_rows_is_left_alone() -> None:
    assert found({"picture": pa.array([], pa.binary())}) == []


def test_images_are_decoded_as_the_options_say() -> None:
    source = find_images(
        InMemory({"picture": pa.array([JPEG] * 3)}), IMAGES, {}, ReadOptions(image_size=(8, 9), color="grayscale")
    )
    assert source.schema()["picture"].shape == (8, 9, 1)
