"""Photos decoded on the engine of a GPU: the same pixels as the loaders', the same bits again after a kill, and every
bad photo named. They run where a GPU has such an engine, with CuPy and nvJPEG."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest
import simplejpeg
from PIL import Image

from penstock.core.deferred import BadRows
from penstock.core.records import Array
from penstock.jobs.device_decoding import LEAST_ROWS
from penstock.options.records import INTERPOLATIONS, RESIZES
from penstock.pool.devices.inventory import gpu_devices
from penstock.sources.images import engine
from penstock.sources.images.coefficients import NOT_AS_SUMS
from penstock.sources.images.encoded import EncodedImages
from penstock.sources.images.engine import EngineDecoder
from penstock.sources.images.resizing import Rendition
from penstock.sources.images.routing import goes_to_engine, has_same_pixels
from tests.conftest import ENVIRONMENT, Penstock, journal_length, penstock_command, read_rows
from tests.support.photos import damage

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not gpu_devices(), reason="there is no GPU here"),
    pytest.mark.skipif(not engine.is_installed(), reason="nvJPEG or CuPy is not installed"),
]


PILLOW = ("--interpolation", "pillow-bilinear")


def jpeg(number: int, sampling: str = "420", size: tuple[int, int] | None = None) -> bytes:
    rng = np.random.default_rng(number)
    coarse = rng.integers(0, 256, (13, 17, 3), dtype=np.uint8)
    size = size or (int(rng.integers(200, 500)), int(rng.integers(200, 500)))
    smooth = np.asarray(Image.fromarray(coarse).resize(size), np.int16)
    pixels = np.clip(smooth + rng.integers(-6, 7, smooth.shape), 0, 255).astype(np.uint8)
    return bytes(simplejpeg.encode_jpeg(pixels, quality=90, colorsubsampling=sampling))


def loaded(photos: list[bytes], rendition: Rendition, side: int = 224) -> tuple[Array, Array, BadRows]:
    """What a loader makes of photos: rows, how many bytes of each are left to the engine, and those that are bad."""
    rows = np.zeros((len(photos), side, side, 3), np.uint8)
    bad = EncodedImages(pa.array(photos, pa.large_binary()), rendition).fill(rows, lambda position: None)
    sizes = np.zeros(len(photos), np.int64)
    for place, size in bad.encoded.items():
        sizes[place] = size
    return rows, sizes, bad


def both(photos: list[bytes], rendition: Rendition, side: int = 224) -> tuple[Array, BadRows, Array, BadRows]:
    """Pixels and bad rows by the engine, and by a loader with the same transform."""
    rows, sizes, _ = loaded(photos, replace(rendition, engine_share=1.0), side)
    assert sizes.all()
    found, bad = EngineDecoder(replace(rendition, engine_share=1.0)).open().decode(rows, sizes, len(rows))
    expected, _, bad_here = loaded(photos, replace(rendition, engine_share=1e-12), side)
    return found.on_host(), bad, expected, bad_here


@pytest.mark.parametrize("sampling", ["420", "422", "444"])
def test_pixels_that_are_not_resized_are_those_of_the_loaders_to_the_bit(sampling: str) -> None:
    photos = [jpeg(number, sampling, (224, 224)) for number in range(40)]
    found, bad, expected, _ = both(photos, Rendition("stretch", "pillow-bilinear"))
    assert not bad
    assert (found == expected).all(), np.abs(found.astype(int) - expected).max()


def test_photos_in_places_at_odd_addresses_with_restarts_and_of_all_sizes_are_those_of_the_loaders() -> None:
    """A row of 299 x 299 pixels has an odd number of bytes."""
    photos = [jpeg(number, "420", (1 + 7 * number, 300 - 6 * number)) for number in range(40)]
    photos += [jpeg(number, sampling, (number, 8 - number)) for number in range(1, 8) for sampling in ("422", "444")]
    for blocks in (1, 5, 40):
        stream = io.BytesIO()
        Image.open(io.BytesIO(jpeg(blocks))).save(stream, "JPEG", quality=80, restart_marker_blocks=blocks)
        photos.append(stream.getvalue())
    found, bad, expected, _ = both(photos, Rendition("stretch", "pillow-bilinear"), 299)
    assert not bad
    assert (found == expected).all(), np.abs(found.astype(int) - expected).max(axis=(1, 2, 3))


@pytest.mark.parametrize("interpolation", [each for each in INTERPOLATIONS if each not in NOT_AS_SUMS])
@pytest.mark.parametrize("resize", RESIZES)
def test_pixels_are_those_of_the_loaders_within_1_in_every_mode(resize: str, interpolation: str) -> None:
    """Those of Pillow and torch are the same to the bit, of photos that shrink and of others that grow."""
    photos = [jpeg(number, sampling) for number in range(16) for sampling in ("420", "422", "444")]
    found, bad, expected, _ = both(photos, Rendition(resize, interpolation))
    assert not bad
    far = np.abs(found.astype(int) - expected)
    most = 0 if has_same_pixels(Rendition(resize, interpolation)) else 1
    assert far.max() <= most, f"{np.count_nonzero(far > most)} of {far.size} values, at most {far.max()}"


def test_a_photo_with_damage_inside_fails_as_it_does_in_a_loader_and_costs_no_other() -> None:
    rendition, rng = Rendition("stretch", "pillow-bilinear", engine_share=1.0), random.Random(0)
    drawn = [jpeg(number) for number in range(30)]
    photos = [drawn[number % 30] for number in range(400)]
    for place in range(0, 400, 2):
        raw = bytearray(photos[place])
        at = rng.randrange(800, len(raw) - 20)
        raw[at : at + 8] = (rng.randrange(255) for _ in range(8))
        photos[place] = bytes(raw)
    photos = [photo for photo in photos if goes_to_engine(photo, 224 * 224 * 3, rendition)]
    found, bad, expected, bad_here = both(photos, rendition)
    assert len(bad) > 50
    assert (dict(bad), bad.errors) == (dict(bad_here), bad_here.errors)
    whole = [place for place, photo in enumerate(photos) if photo in drawn]
    assert len(whole) >= 200
    assert np.abs(found[whole].astype(int) - expected[whole]).max() <= 1
    assert not found[list(bad)].any()


def test_a_batch_is_filled_up_with_its_last_row_and_decoded_again_to_the_same_bits() -> None:
    engine = EngineDecoder(Rendition(engine_share=1.0)).open()
    photos = [jpeg(number) for number in range(600)]
    rows, sizes, _ = loaded(photos, Rendition(engine_share=0.5))
    assert 200 < np.count_nonzero(sizes) < 400
    given = rows.copy()
    first = engine.decode(rows, sizes, 550)[0].on_host()
    assert (rows == given).all()
    assert (first[550:] == first[549]).all()
    alone = [engine.decode(rows[i : i + 1], sizes[i : i + 1], 1)[0].on_host()[0] for i in range(0, 550, 50)]
    assert (first[:550:50] == alone).all()
    assert (engine.decode(rows, sizes, 600)[0].on_host()[:550] == first[:550]).all()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """6,000 photos, of which 20 are broken and some are progressive or no JPEGs."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(6000):
        path = folder / f"{number:05d}.jpg"
        if number < 300:
            path.write_bytes(jpeg(number))
        else:
            path.hardlink_to(folder / f"{number % 300:05d}.jpg")
    for way, number in enumerate(range(100, 6000, 300)):
        whole = (folder / f"{number:05d}.jpg").read_bytes()
        (folder / f"{number:05d}.jpg").unlink()
        (folder / f"{number:05d}.jpg").write_bytes(whole)
        damage(folder / f"{number:05d}.jpg", way)
    for number, options in ((7, {"format": "JPEG", "progressive": True}), (8, {"format": "PNG"})):
        path = folder / f"{number:05d}.jpg"
        picture = Image.open(path).convert("RGB")
        path.unlink()
        picture.save(path, **options)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "convolution.keras"
    code = (
        "import keras; keras.utils.set_random_seed(1); L = keras.layers; keras.Sequential([keras.Input((224, 224, 3)), "
        "L.Rescaling(1 / 255), L.Conv2D(16, 7, strides=4, activation='relu'), L.Conv2D(32, 3, activation='relu'), "
        f"L.GlobalAveragePooling2D(), L.Dense(10)]).save({str(path)!r})"
    )
    environment = ENVIRONMENT | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    return path


def arguments(
    model: Path, folder: Path, output: Path, decoder: str, runtime: str = "jax", *more: object
) -> tuple[object, ...]:
    return (
        "predict", model, folder, "--output", output, "--runtime", runtime, "--devices", "gpu", "--batch-size", 64,
        "--part-rows", 500, "--plan", "off", "--decoder", decoder, *(more or PILLOW),
    )  # fmt: skip


@pytest.fixture(scope="module")
def whole(model: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same job by loaders alone, and with the engine, from beginning to end."""
    outputs = {decoder: tmp_path_factory.mktemp("whole") / "out" for decoder in ("cpu", "gpu:0.5")}
    for decoder, output in outputs.items():
        command = penstock_command(*arguments(model, folder, output, decoder))
        ran = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
        assert ran.returncode == 3, ran.stderr
    return outputs


def failures_in(output: Path) -> str:
    return (output / "_penstock" / "failures.jsonl").read_text()


def scores_in(output: Path) -> Array:
    table = read_rows(output)
    name = next(name for name in table.column_names if name not in ("row", "path"))
    return np.stack(table[name].to_numpy())


def check_same(found: Path, expected: Path) -> None:
    names = sorted(path.name for path in expected.glob("part-*"))
    assert names
    assert all((found / name).read_bytes() == (expected / name).read_bytes() for name in names)
    assert failures_in(found) == failures_in(expected)


def check_best(found: Array, expected: Array) -> None:
    """The best class of every row is the same, but for ties."""
    differs = np.flatnonzero(found.argmax(axis=1) != expected.argmax(axis=1))
    best = np.sort(expected[differs], axis=1)
    assert np.allclose(best[:, -1], best[:, -2], atol=2e-3 * np.ptp(expected)), f"{len(differs)} of {len(found)}"
    np.testing.assert_allclose(found, expected, atol=2e-3 * np.ptp(expected))


def test_answers_and_failures_are_those_of_the_loaders_to_the_bit(whole: dict[str, Path]) -> None:
    assert len(failures_in(whole["cpu"]).splitlines()) == 20
    check_same(whole["gpu:0.5"], whole["cpu"])


def test_the_engine_is_taken_unasked_in_a_long_job_where_it_makes_the_same_pixels(
    model: Path, folder: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    (tmp_path / "many").mkdir()
    for number in range(LEAST_ROWS):
        (tmp_path / "many" / f"{number:05d}.jpg").hardlink_to(folder / f"{number % 6000:05d}.jpg")
    for decoder, interpolation in (("auto", "pillow-bilinear"), ("cpu", "pillow-bilinear"), ("auto", "keras")):
        output = tmp_path / f"{decoder}-{interpolation}"
        more = ("--interpolation", interpolation)
        ran = penstock_run(*arguments(model, tmp_path / "many", output, decoder, "jax", *more))
        assert ran.returncode == 3, ran.stderr
        assert ("photos: the GPU decodes" in ran.stderr) == (output.name == "auto-pillow-bilinear")
    check_same(tmp_path / "auto-pillow-bilinear", tmp_path / "cpu-pillow-bilinear")


def test_tensorflow_takes_rows_from_the_gpu_too(
    model: Path, folder: Path, whole: dict[str, Path], penstock_run: Penstock, tmp_path: Path
) -> None:
    pytest.importorskip("tensorflow")
    trace = tmp_path / "trace.json"
    ran = penstock_run(*arguments(model, folder, tmp_path / "out", "gpu", "tensorflow", *PILLOW, "--trace", trace))
    assert ran.returncode == 3, ran.stderr
    assert failures_in(tmp_path / "out") == failures_in(whole["cpu"])
    check_best(scores_in(tmp_path / "out"), scores_in(whole["cpu"]))
    assert any(event.get("cat") == "decode" for event in json.loads(trace.read_text()))


@pytest.mark.parametrize("interpolation", ["pillow-bilinear", "keras"])
def test_a_killed_and_resumed_job_with_the_mixed_decoder_is_byte_identical(
    model: Path, folder: Path, penstock_run: Penstock, tmp_path: Path, interpolation: str
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    more = ("jax", "--interpolation", interpolation)
    ran = penstock_run(*arguments(model, folder, whole, "gpu:0.5", *more))
    assert ran.returncode == 3, ran.stderr
    process = subprocess.Popen(penstock_command(*arguments(model, folder, killed, "gpu:0.5", *more)), env=ENVIRONMENT)
    while journal_length(killed) < 3 and process.poll() is None:
        time.sleep(0.002)
    for each in (*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)):
        each.kill()
    process.wait()
    resumed = penstock_run("resume", killed)
    assert resumed.returncode == 3, resumed.stderr
    check_same(killed, whole)


def test_a_resume_without_the_gpu_is_refused_where_bits_depend_on_it(
    model: Path, folder: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    ran = penstock_run(*arguments(model, folder, output, "gpu", "jax", "--interpolation", "keras"))
    assert ran.returncode == 3, ran.stderr
    next(output.glob("part-*")).unlink()
    refused = penstock_run("resume", output, "--devices", "cpu")
    assert refused.returncode == 8, refused.stderr
