"""Photos decoded on the engine of a GPU: the same pixels as the loaders', the same bits again after a kill, and every
bad photo named. They run where a GPU has such an engine, with CuPy and nvImageCodec."""

from __future__ import annotations

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

from penstock.core.records import Array
from penstock.options.records import INTERPOLATIONS, RESIZES
from penstock.pool.devices.inventory import gpu_devices
from penstock.sources.images import engine
from penstock.sources.images.encoded import EncodedImages
from penstock.sources.images.engine import EngineDecoder
from penstock.sources.images.resizing import Rendition
from tests.conftest import ENVIRONMENT, Penstock, journal_length, penstock_command, read_rows
from tests.support.photos import damage

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not gpu_devices(), reason="there is no GPU here"),
    pytest.mark.skipif(not engine.is_installed(), reason="nvImageCodec or CuPy is not installed"),
]


def jpeg(number: int, sampling: str = "420") -> bytes:
    rng = np.random.default_rng(number)
    coarse = rng.integers(0, 256, (13, 17, 3), dtype=np.uint8)
    size = (int(rng.integers(200, 500)), int(rng.integers(200, 500)))
    smooth = np.asarray(Image.fromarray(coarse).resize(size), np.int16)
    pixels = np.clip(smooth + rng.integers(-6, 7, smooth.shape), 0, 255).astype(np.uint8)
    return bytes(simplejpeg.encode_jpeg(pixels, quality=90, colorsubsampling=sampling))


def decoded(photos: list[bytes], rendition: Rendition) -> tuple[Array, Array]:
    rows = np.zeros((len(photos), 224, 224, 3), np.uint8)
    bad = EncodedImages(pa.array(photos, pa.large_binary()), rendition).fill(rows, lambda position: None)
    sizes = np.zeros(len(photos), np.int64)
    for place, size in bad.encoded.items():
        sizes[place] = size
    return rows, sizes


def test_pixels_are_those_of_the_loaders_within_1_in_every_mode() -> None:
    photos = [jpeg(number, sampling) for number in range(8) for sampling in ("420", "422", "444")]
    for resize in RESIZES:
        for interpolation in INTERPOLATIONS:
            rendition = Rendition(resize, interpolation, engine_share=1.0)
            rows, sizes = decoded(photos, rendition)
            assert sizes.all()
            assert not EngineDecoder(rendition).open().decode(rows, sizes)
            expected, _ = decoded(photos, replace(rendition, engine_share=1e-12))
            assert np.abs(rows.astype(int) - expected).max() <= 1, (resize, interpolation)


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


def arguments(model: Path, folder: Path, output: Path, decoder: str) -> tuple[object, ...]:
    return (
        "predict", model, folder, "--output", output, "--runtime", "jax", "--devices", "gpu", "--batch-size", 64,
        "--part-rows", 500, "--plan", "off", "--decoder", decoder,
    )  # fmt: skip


def test_a_killed_and_resumed_job_with_the_mixed_decoder_is_byte_identical(
    model: Path, folder: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    for name, decoder in (("cpu", "cpu"), ("whole", "gpu:0.5")):
        ran = penstock_run(*arguments(model, folder, tmp_path / name, decoder))
        assert ran.returncode == 3, ran.stderr
    killed = tmp_path / "killed"
    process = subprocess.Popen(penstock_command(*arguments(model, folder, killed, "gpu:0.5")), env=ENVIRONMENT)
    while journal_length(killed) < 3 and process.poll() is None:
        time.sleep(0.002)
    for each in (*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)):
        each.kill()
    process.wait()
    resumed = penstock_run("resume", killed)
    assert resumed.returncode == 3, resumed.stderr
    names = sorted(path.name for path in (tmp_path / "whole").glob("part-*"))
    assert names
    assert all((killed / name).read_bytes() == (tmp_path / "whole" / name).read_bytes() for name in names)
    failures = [(tmp_path / name / "_penstock" / "failures.jsonl").read_text() for name in ("cpu", "whole", "killed")]
    assert len(failures[0].splitlines()) == 20
    assert failures[0] == failures[1] == failures[2]
    cpu, whole = (read_rows(tmp_path / name) for name in ("cpu", "whole"))
    assert cpu.column("row").equals(whole.column("row"))


def test_a_resume_without_the_gpu_is_refused(model: Path, folder: Path, penstock_run: Penstock, tmp_path: Path) -> None:
    output = tmp_path / "out"
    ran = penstock_run(*arguments(model, folder, output, "gpu"))
    assert ran.returncode == 3, ran.stderr
    next(output.glob("part-*")).unlink()
    refused = penstock_run("resume", output, "--devices", "cpu")
    assert refused.returncode == 8, refused.stderr
