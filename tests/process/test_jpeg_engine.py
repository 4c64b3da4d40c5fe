"""Photos that a GPU decodes, as far as that can be tried without one: the kernel that resizes them, compiled for this
machine; what becomes of photos that the engine refuses; and jobs that ask for it where it cannot run."""

from __future__ import annotations

import ctypes
import io
import json
import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import simplejpeg
from PIL import Image

from penstock.core.decoding import OnDevice, Undecoded
from penstock.core.job import Job
from penstock.core.messages import Asked
from penstock.core.queues import drained
from penstock.core.records import Array, Binding
from penstock.core.stillness import Timeouts
from penstock.options.records import INTERPOLATIONS, RESIZES, ReadOptions
from penstock.pool.decoding import BatchDecoder
from penstock.pool.loading import load_batches
from penstock.sources.images.coefficients import NOT_AS_SUMS
from penstock.sources.images.encoded import EncodedImages
from penstock.sources.images.engine import EngineDecoder
from penstock.sources.images.files import ImageFiles
from penstock.sources.images.nvjpeg import NvJpegError
from penstock.sources.images.resizing import Rendition
from penstock.sources.images.routing import goes_to_engine, has_same_pixels
from penstock.storage.seal import sealed
from tests.conftest import Penstock
from tests.support.arithmetic_run import engine_of, replica_of_this_process
from tests.support.host_engine import Codec, Colours, HostDecoder, Pixels, host_engine
from tests.support.photos import draw_folder

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no compiler here")
REPOSITORY = Path(__file__).parents[2]
BINDING = Binding("x", ("image",), "uint8", (32, 40, 3))


def jpegs(count: int) -> list[bytes]:
    made = []
    for number in range(count):
        coarse = np.random.default_rng(number).integers(0, 256, (9, 7, 3), dtype=np.uint8)
        size = (30 + 23 * number, 150 - 22 * number)  # of the rooms below, smaller in either direction, and larger
        made.append(bytes(simplejpeg.encode_jpeg(np.asarray(Image.fromarray(coarse).resize(size)))))
    return made


def by_loader(photos: list[bytes], rendition: Rendition, room: tuple[int, int]) -> Array:
    out = np.empty((len(photos), *room, 3), np.uint8)
    exact = replace(rendition, engine_share=1e-12)
    assert not EncodedImages(pa.array(photos, pa.large_binary()), exact).fill(out, lambda position: None)
    return out


def stowed(photos: list[bytes], room: tuple[int, int]) -> tuple[Array, Array]:
    rows = np.zeros((len(photos), *room, 3), np.uint8)
    for row, photo in zip(rows, photos, strict=True):
        row.reshape(-1)[: len(photo)] = np.frombuffer(photo, np.uint8)
    return rows, np.array([len(photo) for photo in photos])


@needs_compiler
def test_photos_are_resized_as_loaders_do_it_in_all_modes(tmp_path: Path) -> None:
    photos, room = jpegs(6), (64, 48)
    for resize in RESIZES:
        for interpolation in set(INTERPOLATIONS) - set(NOT_AS_SUMS):
            rendition = Rendition(resize, interpolation, engine_share=1.0)
            rows, bad = host_engine(tmp_path, rendition, Codec()).decode(*stowed(photos, room), len(photos))
            assert not bad
            most = 0 if has_same_pixels(rendition) else 1
            far = np.abs(rows.on_host().astype(int) - by_loader(photos, rendition, room))
            assert far.max() <= most, (resize, interpolation)


@needs_compiler
@pytest.mark.parametrize("sampling", ["444", "422", "420"])
def test_pixels_made_of_planes_are_those_of_libjpeg_to_the_bit(tmp_path: Path, sampling: str) -> None:
    """Where nothing is resized they are seen as they are. The first sizes are too small for colours between two."""
    rng, engine = np.random.default_rng(0), host_engine(tmp_path, Rendition("stretch", "pillow-bilinear"), Codec())
    for room in ((1, 1), (2, 3), (3, 4), (5, 5), (7, 18), (33, 47), (64, 48)):
        grain = rng.integers(0, 256, (*room, 3), dtype=np.uint8)
        smooth = np.asarray(Image.fromarray(grain[:4, :4]).resize(room[::-1]))
        for pixels in (grain, smooth):
            photo = bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality=95, colorsubsampling=sampling))
            rows = np.zeros((1, *room, 3), np.uint8)
            held = np.zeros((1, len(photo)), np.uint8)
            held[0] = np.frombuffer(photo, np.uint8)
            with engine.line() as line:
                given = held.view(Pixels)
                photos = engine.put_and_look(line, held, given, np.array([0]), np.array([len(photo)]))
                assert len(photos) == 1
                planes, table = line.decode(photos, given)
                engine._run("colour", room[::-1], 1, planes)
                ctypes.memmove(rows.ctypes.data, int(table[0, 0]), rows.nbytes)
            assert (rows[0] == simplejpeg.decode_jpeg(photo)).all(), room


@needs_compiler
@pytest.mark.parametrize("status", [2, 3, 4, 6, 8])
def test_a_photo_that_the_engine_refuses_costs_no_other_and_is_decoded_all_the_same(
    tmp_path: Path, status: int
) -> None:
    photos, room = jpegs(6), (64, 48)
    rendition, codec = Rendition("stretch", "pillow-bilinear", engine_share=1.0), Codec(photos[2], status=status)
    expected = by_loader(photos, rendition, room)
    given, sizes = stowed(photos, room)
    sizes[5] = 0  # decoded before
    given[5] = expected[5] = 7
    before = given.copy()
    rows, bad = host_engine(tmp_path, rendition, codec).decode(given, sizes, 6)
    assert not bad
    assert (rows.on_host() == expected).all()
    assert (given == before).all()  # other replicas may get the same first batch
    assert codec.calls == [5, 2, 3, 1, 2]  # all at once, and then by halves


@needs_compiler
def test_an_engine_that_takes_no_photo_at_all_is_told_and_photos_that_it_does_not_take_are_not(tmp_path: Path) -> None:
    photos, room = jpegs(1) * 4, (64, 48)
    rendition = Rendition("stretch", "pillow-bilinear", engine_share=1.0)
    with pytest.raises(NvJpegError, match="returned 6"):
        host_engine(tmp_path, rendition, Codec(photos[0], status=6)).decode(*stowed(photos, room), 4)
    rows, _ = host_engine(tmp_path, rendition, Codec(photos[0], status=4)).decode(*stowed(photos, room), 4)
    assert (rows.on_host() == by_loader(photos, rendition, room)).all()


@needs_compiler
def test_each_of_several_threads_has_what_it_decodes_with_before_the_model_runs(tmp_path: Path) -> None:
    engine = host_engine(tmp_path, Rendition(engine_share=1.0), Codec())
    engine.reserve((4, 32, 40, 3), batches=3, at_once=2)
    lines = drained(engine._idle)
    assert len(lines) == 2
    with engine.line() as other:
        assert other not in lines


@needs_compiler
def test_what_the_engine_took_is_given_back_also_by_who_has_it_now(tmp_path: Path) -> None:
    codecs = [Codec() for _ in range(3)]
    engine = host_engine(tmp_path, Rendition(engine_share=1.0), *codecs)
    engine.reserve((4, 32, 40, 3), batches=3, at_once=2)
    with engine.line():
        engine.close()
        assert sum(codec.closed for codec in codecs) == 1
    assert [codec.closed for codec in codecs] == [1, 1, 0]


@needs_compiler
@pytest.mark.parametrize("interpolation", ["pillow-bilinear", "keras"])
def test_an_engine_that_makes_other_pixels_than_libjpeg_is_not_taken(tmp_path: Path, interpolation: str) -> None:
    rendition = Rendition("stretch", interpolation, engine_share=1.0)
    host_engine(tmp_path, rendition, Codec()).try_out()
    with pytest.raises(RuntimeError, match="from those of libjpeg"):
        host_engine(tmp_path, rendition, Codec(off_by=2)).try_out()


def test_without_its_device_a_replica_decodes_what_loaders_left_as_they_would_have_done() -> None:
    photos, room = jpegs(6), (64, 48)
    rendition = Rendition("crop", "torchvision", engine_share=1.0)
    expected = by_loader(photos, rendition, room)
    given, sizes = stowed(photos, room)
    given[1].reshape(-1)[: sizes[1]] = 0
    sizes[2] = 0  # decoded before
    given[2] = expected[2] = 7
    expected[1], expected[4:] = 0, expected[3]
    rows, bad = EngineDecoder(rendition).on_host().open().decode(given, sizes, 4)
    assert list(bad) == [1]
    assert (rows.on_host() == expected).all()
    assert not np.may_share_memory(rows.on_host(), given)


@needs_compiler
def test_a_damaged_photo_fails_as_ever_and_never_reaches_the_engine(tmp_path: Path) -> None:
    photos, room = jpegs(6), (64, 48)
    rendition, codec = Rendition("stretch", "pillow-bilinear", engine_share=1.0), Codec()
    expected = by_loader(photos, rendition, room)
    expected[2] = 0
    photos[2] = photos[2][:-40] + photos[2][-2:]
    rows, bad = host_engine(tmp_path, rendition, codec).decode(*stowed(photos, room), 6)
    assert list(bad) == [2]
    assert bad.errors == {2: "ValueError"}
    assert "Corrupt JPEG" in bad[2]
    assert (rows.on_host() == expected).all()
    assert codec.calls == [5]


@needs_compiler
def test_all_damage_that_libjpeg_sees_is_seen_on_the_gpu_before(tmp_path: Path) -> None:
    engine = host_engine(tmp_path, Rendition(engine_share=1.0), Codec())
    room, rng = (100, 100), random.Random(0)
    whole = [*varied_jpegs(6)]
    damaged = [damage_of(rng.choice(whole), rng) for _ in range(1200)]
    damaged = [photo for photo in damaged if goes_to_engine(photo, 30_000, Rendition(engine_share=1.0))]
    is_whole = []
    for photos in (whole, damaged):
        rows, sizes = stowed(photos, room)
        pixels = np.empty_like(rows).view(Pixels)
        with engine.line() as line:
            found = engine.put_and_look(line, rows, pixels, np.arange(len(photos)), sizes)
            is_whole.append(np.isin(np.arange(len(photos)), found.places))
    assert is_whole[0].all()
    failed = np.array([not is_read(photo) for photo in damaged])
    assert failed.sum() > 300
    assert not is_whole[1][failed].any()
    assert is_whole[1].sum() > 300  # libjpeg takes them, too


def varied_jpegs(count: int) -> Iterator[bytes]:
    """In all samplings that the engine gets, with restarts and without; smooth ones, and one with many codes."""
    grain = np.random.default_rng(0).integers(0, 256, (88, 96, 3), dtype=np.uint8)
    for pixels in (*map(simplejpeg.decode_jpeg, jpegs(count)), grain):
        for sampling in ("444", "422", "420"):
            yield bytes(simplejpeg.encode_jpeg(pixels, quality=90, colorsubsampling=sampling))
        for blocks in (1, 5):
            stream = io.BytesIO()
            Image.fromarray(pixels).save(stream, "JPEG", quality=80, restart_marker_blocks=blocks)
            yield stream.getvalue()


def damage_of(photo: bytes, rng: random.Random) -> bytes:
    raw = bytearray(photo)
    at = rng.randrange(2, len(raw) - 2)
    way = rng.randrange(4)
    if way == 0:
        raw[at] ^= 1 << rng.randrange(8)
    elif way == 1:
        raw[at : at + 8] = rng.randbytes(8)
    elif way == 2:
        del raw[at : at + rng.randrange(1, 20)]
    else:
        raw[at:at] = rng.randbytes(rng.randrange(1, 9))
    return bytes(raw)


def is_read(photo: bytes) -> bool:
    try:
        simplejpeg.decode_jpeg(photo)
    except ValueError:
        return False
    return True


@needs_compiler
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_batches_with_encoded_rows_become_what_loaders_make_of_them(tmp_path: Path, share: float) -> None:
    draw_folder(tmp_path / "photos", 11)
    (tmp_path / "photos" / "00004.jpg").write_bytes(b"no photo")
    paths = [str(path) for path in sorted((tmp_path / "photos").iterdir())]
    decoder = HostDecoder(Rendition(engine_share=share), folder=str(tmp_path))
    job = Job(ImageFiles(paths), (BINDING,), (), 4, decoder=decoder)
    run, span = BatchDecoder(decoder, stays_on_device=True), next(iter(job.source.divide(11)))
    never = HostDecoder(Rendition(engine_share=1e-12))
    plain = list(load_batches(replace(job, decoder=never), span))
    batches = list(load_batches(job, span))
    routed = sum(np.count_nonzero(batch.encoded["x"]) for batch in batches if batch.encoded)
    assert routed == 10 if share == 1.0 else 0 < routed < 10
    for batch, expected in zip(batches, plain, strict=True):
        assert run(batch, span.start) == ()
        assert not batch.encoded
        # The last batch is filled up with its last row, decoded.
        assert isinstance(batch.arrays["x"], OnDevice)
        np.testing.assert_allclose(np.asarray(batch.arrays["x"], int), expected.arrays["x"], atol=1)
        assert [failure.row for failure in batch.failures] == [failure.row for failure in expected.failures]


@needs_compiler
def test_replicas_decode_ahead_to_the_same_bits_whoever_reads_runs_and_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY), prepend=os.pathsep)
    draw_folder(tmp_path / "photos", 90)
    (tmp_path / "photos" / "00040.jpg").write_bytes(b"no photo")
    photo = (tmp_path / "photos" / "00041.jpg").read_bytes()
    (tmp_path / "photos" / "00041.jpg").write_bytes(photo[:-30] + photo[-2:])
    paths = [str(path) for path in sorted((tmp_path / "photos").iterdir())]
    host_engine(tmp_path, Rendition(), Codec())  # compiled once
    found = {}
    for share, takes_over, is_killed, placement in (
        (1e-12, True, False, {}),
        (0.5, True, False, {}),
        (0.5, False, False, {"lanes": 1}),
        (0.5, True, True, {"has_loader_processes": True, "most_loaders": 1}),
    ):
        decoder = HostDecoder(Rendition("stretch", "pillow-bilinear", engine_share=share), folder=str(tmp_path))
        job = Job(ImageFiles(paths, ReadOptions(interpolation="pillow-bilinear")), (BINDING,), (), 4, decoder=decoder)
        with engine_of(Colours(takes_over), Timeouts(), [], **placement) as (engine, _):
            engine.load()
            engine.prepare(job, engine._placement, next(iter(job.source.divide(4))))
            results = []
            for result in engine.run(list(job.source.divide(10))):
                results.append(result)
                if is_killed and len(results) == 2:
                    replica_of_this_process().kill()
        answers = np.concatenate([np.asarray(result.columns["y"]) for result in results])
        failures = [(failure.row, failure.error, failure.reason) for result in results for failure in result.failures]
        found[share, takes_over, is_killed] = (answers.tobytes(), failures)
    assert [row for row, _, _ in failures] == [40, 41]
    # Pillow's pixels are the same to the bit whoever resizes them, and here libjpeg decodes on both sides.
    assert len(set(map(str, found.values()))) == 1


@needs_compiler
@pytest.mark.parametrize("most", [0, 2])
def test_where_there_is_no_memory_for_the_decoder_the_engine_says_so_and_runs_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY), prepend=os.pathsep)
    draw_folder(tmp_path / "photos", 12)
    host_engine(tmp_path, Rendition(), Codec())  # compiled once
    source = ImageFiles([str(path) for path in sorted((tmp_path / "photos").iterdir())])
    decoder = HostDecoder(Rendition(engine_share=1.0), folder=str(tmp_path), most=most)
    job = Job(source, (BINDING,), (), 4, decoder=decoder)
    sample = next(iter(source.divide(12)))
    with engine_of(Colours(True), Timeouts(), []) as (engine, _):
        engine.load()
        with pytest.raises(Undecoded, match="does not decode JPEGs beside the model"):
            engine.prepare(job, engine._placement, sample, Asked(answers_rows=12))
        engine.prepare(replace(job, decoder=None), engine._placement, sample)
        (result,) = engine.run([sample])
    assert len(np.asarray(result.columns["y"])) == 12


def test_a_job_that_began_without_an_engine_goes_on_without_it(
    light_models: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    draw_folder(tmp_path / "photos", 60)
    output = tmp_path / "out"
    command = ("predict", light_models / "colour.onnx", tmp_path / "photos", "--output", output, "--devices", "cpu")
    assert penstock_run(*command, "--part-rows", 20, "--batch-size", 4).returncode == 0
    next(output.glob("part-*")).unlink()
    resumed = penstock_run(*command, "--part-rows", 20, "--batch-size", 4, "--decoder", "gpu")
    assert resumed.returncode == 0, resumed.stderr
    assert "loaders decode all photos, as they have done in this job from its beginning" in resumed.stderr


def test_a_decoder_on_a_gpu_is_refused_where_there_is_none(
    light_models: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    draw_folder(tmp_path / "photos", 20)
    command = ("predict", light_models / "colour.onnx", tmp_path / "photos", "--output", tmp_path / "out")
    refused = penstock_run(*command, "--decoder", "gpu", "--devices", "cpu")
    assert refused.returncode == 8, refused.stderr
    assert "--decoder gpu: the model runs on cpu:0" in refused.stderr
    assert not (tmp_path / "out").exists()
    misspelt = penstock_run(*command, "--decoder", "gpu:2")
    assert misspelt.returncode == 2
    assert "gpu:SHARE" in misspelt.stderr


def test_a_job_that_began_with_an_engine_goes_on_with_one_alone(
    light_models: Path, penstock_run: Penstock, tmp_path: Path
) -> None:
    draw_folder(tmp_path / "photos", 60)
    output = tmp_path / "out"
    command = ("predict", light_models / "colour.onnx", tmp_path / "photos", "--output", output, "--devices", "cpu")
    assert penstock_run(*command, "--part-rows", 20, "--batch-size", 4, "--decoder", "cpu").returncode == 0
    path = output / "_penstock" / "manifest.json"
    manifest = {name: value for name, value in json.loads(path.read_text()).items() if name != "checksum"}
    assert manifest["recipe"]["engine_share"] == 0
    for kind in (manifest, *manifest["kinds"].values()):
        kind["recipe"]["engine_share"] = 0.5
    path.write_bytes(sealed(manifest))
    next(output.glob("part-*")).unlink()
    for more in ((), ("--decoder", "gpu:0.5")):
        refused = penstock_run(*command, "--part-rows", 20, "--batch-size", 4, *more)
        assert refused.returncode == 8, refused.stderr
        assert "begun with a GPU that decodes its JPEGs" in refused.stderr
    other = penstock_run(*command, "--part-rows", 20, "--batch-size", 4, "--decoder", "cpu")
    assert other.returncode == 7, other.stderr
    assert "begun with another decoder" in other.stderr
