"""Folders of photos through the real command: every good one is predicted, every bad one is named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.conftest import Penstock, read_rows, summary_of
from tests.support.photos import TOLERANCE, assert_colours, colour_of, damage, draw, draw_folder, number_of


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    draw_folder(folder, 300)
    return folder


def failures_in(output: Path) -> list[dict[str, object]]:
    lines = (output / "_penstock" / "failures.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_20_corrupt_among_1000_photos_leave_980_rows_in_order(
    light_models: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    paths = draw_folder(tmp_path / "photos", 1000)
    broken = sorted(np.random.default_rng(8).choice(1000, 20, replace=False).tolist())
    for way, number in enumerate(broken):
        damage(paths[number], way)
    output = tmp_path / "out"
    ran = penstock_run("predict", light_models / "colour.onnx", tmp_path / "photos", "--output", output, "--json")
    assert ran.returncode == 3, ran.stderr
    summary = summary_of(ran)
    assert (summary["rows"], summary["failed"]) == (980, 20)
    table = read_rows(output)
    good = [number for number in range(1000) if number not in broken]
    assert table.column("row").to_pylist() == good
    assert [number_of(path) for path in table.column("path").to_pylist()] == good
    assert_colours(table)
    failures = failures_in(output)
    assert [failure["row"] for failure in failures] == broken
    assert [Path(str(failure["origin"])).name for failure in failures] == [f"{number:05d}.jpg" for number in broken]
    assert all(failure["stage"] == "load" and failure["reason"] for failure in failures)


def test_every_format_is_decoded_by_its_content(light_models: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    (folder / "deeper").mkdir(parents=True)
    for number, suffix in enumerate([".jpg", ".png", ".webp", ".bmp", ".tiff"]):
        draw(folder / f"{number}{suffix}", number)
    draw(folder / "deeper" / "5.png", 5)
    Image.new("RGB", (40, 40), colour_of(6)).quantize(8).save(folder / "6.gif")
    (folder / "6.gif").rename(folder / "6.jpg")  # a GIF that calls itself a JPEG
    Image.new("CMYK", (40, 40), (0, 0, 0, 255)).save(folder / "7.jpg")
    Image.fromarray(np.full((40, 40), 256 * 100, np.uint16)).save(folder / "8.png")
    sideways = np.zeros((20, 60, 3), np.uint8)
    sideways[:, :30] = 200
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(sideways).save(folder / "9.jpg", exif=exif, quality=95)
    output = tmp_path / "out"
    ran = penstock_run("predict", light_models / "colour.onnx", folder, "--output", output)
    assert ran.returncode == 0, ran.stderr
    found = {number_of(row["path"]): row["colour"] for row in read_rows(output).to_pylist()}
    for number in (0, 1, 2, 3, 4, 5, 6):
        assert np.abs(np.array(found[number]) - colour_of(number)).max() < 8, number
    assert max(found[7]) < 16
    assert np.allclose(found[8], 100, atol=2)
    assert np.allclose(found[9], 100, atol=4)


def test_images_in_tables_are_found_decoded_and_their_columns_kept(
    light_models: Path, photos: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    paths = sorted(photos.iterdir())[:60]
    encoded = pa.array([path.read_bytes() for path in paths], pa.binary())
    names = [str(path) for path in paths]
    pq.write_table(pa.table({"name": names, "jpeg": encoded}), tmp_path / "bytes.parquet", row_group_size=20)
    structs = [{"bytes": path.read_bytes(), "path": path.name} for path in paths]
    pq.write_table(pa.table({"name": names, "picture": structs}), tmp_path / "structs.parquet")
    (tmp_path / "table.csv").write_text("file,name\n" + "".join(f"{name},{name}\n" for name in names))
    os.symlink(photos, tmp_path / "photos")
    (tmp_path / "near.csv").write_text("file,name\n" + "".join(f"photos/{p.name},{p}\n" for p in paths))
    for position, (table, more) in enumerate(
        [
            ("bytes.parquet", []),
            ("structs.parquet", []),
            ("table.csv", ["--image", "file"]),
            ("near.csv", ["--image", "file", "--input", "photo=file"]),
        ]
    ):
        output = tmp_path / f"out{position}"
        options = ["--output", output, "--keep", "name", *more]
        ran = penstock_run("predict", light_models / "colour.onnx", tmp_path / table, *options)
        assert ran.returncode == 0, (table, ran.stderr)
        rows = read_rows(output)
        assert rows.column("name").to_pylist() == names
        assert_colours(rows, "name")
        if table.endswith(".csv"):
            expected = names if table == "table.csv" else [f"photos/{path.name}" for path in paths]
            assert rows.column("file").to_pylist() == expected, "the paths are kept, as the table has them"


def test_scaling_runs_on_the_device_as_its_formula_says(
    models: Path, photos: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    options = ["--output", output, "--preset", "imagenet-caffe", "--limit", 40]
    ran = penstock_run("predict", models / "colour.keras", photos, *options)
    assert ran.returncode == 0, ran.stderr
    table = read_rows(output)
    colours = np.array([colour_of(number_of(path)) for path in table.column("path").to_pylist()])
    expected = colours[:, ::-1] - np.array([103.939, 116.779, 123.68])
    assert np.abs(np.array(table.column("colour").to_pylist()) - expected).max() < TOLERANCE


def test_photos_of_any_size_are_padded_in_buckets_and_come_out_in_order(
    models: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    folder = tmp_path / "sizes"
    folder.mkdir()
    random = np.random.default_rng(4)
    for number in range(90):
        height, width = random.integers(20, 200, 2).tolist()
        Image.new("RGB", (width, height), colour_of(number)).save(folder / f"{number:05d}.png")
    output = tmp_path / "out"
    options = ["--output", output, "--batch-size", 8, "--runtime", "jax", "--json"]
    ran = penstock_run("predict", models / "any_size.keras", folder, *options)
    summary = summary_of(ran)
    assert summary["failed"] == 0
    assert len(summary["recipe"]["buckets"]["photo"]) == 2
    assert 0 < summary["padding"] < 0.9
    table = read_rows(output)
    assert [number_of(path) for path in table.column("path").to_pylist()] == list(range(90))
    assert table.column("brightest").to_pylist() == [[float(c) for c in colour_of(n)] for n in range(90)]


def test_limit_skip_and_sample_keep_the_numbers_of_the_whole_input(
    light_models: Path, photos: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    cases = [
        (["--limit", 30], list(range(30))),
        (["--skip", 250], list(range(250, 300))),
        (["--skip", 100, "--limit", 5], list(range(100, 105))),
    ]
    for position, (options, expected) in enumerate(cases):
        output = tmp_path / f"out{position}"
        ran = penstock_run("predict", light_models / "colour.onnx", photos, "--output", output, *options)
        assert ran.returncode == 0, ran.stderr
        rows = read_rows(output)
        assert rows.column("row").to_pylist() == expected
        assert [number_of(path) for path in rows.column("path").to_pylist()] == expected
    output = tmp_path / "sampled"
    sampled = ["--output", output, "--sample", 50, "--seed", 3]
    assert penstock_run("predict", light_models / "colour.onnx", photos, *sampled).returncode == 0
    rows = read_rows(output)
    assert rows.num_rows == 50
    assert [number_of(path) for path in rows.column("path").to_pylist()] == rows.column("row").to_pylist()
    assert_colours(rows)
