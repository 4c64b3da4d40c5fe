"""How columns reach the model, in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.records import Binding
from penstock.jobs.feeding import describe_feeding
from penstock.options.records import make_options
from penstock.sources.catalog import open_files
from tests.support.photos import draw_folder

PIXELS = "pixels are fed as 0 to 255; --preset or --scale changes that on the device"


@pytest.mark.parametrize(
    ("given", "has_function", "is_told"), [({}, False, True), ({}, True, False), ({"scale": "0.5"}, False, False)]
)
def test_photos_are_told_with_how_they_are_resized_and_pixels_where_nothing_changes_them(
    tmp_path: Path, given: dict[str, str], has_function: bool, is_told: bool
) -> None:
    draw_folder(tmp_path, 2)
    bindings = [Binding("x", ("image",), "uint8", (8, 8, 3))]
    source = open_files([str(tmp_path)])
    assert describe_feeding(source, bindings, make_options(given), has_function=has_function) == [
        "input: x ← image, uint8[8, 8, 3]",
        "images are decoded and resized as by keras (stretch); see --interpolation",
        *([PIXELS] if is_told else []),
    ]
