"""The JPEG engine of a GPU against the loaders: the same pixels, the same failed rows, and where its time goes.

`python -m bench.jpeg_engine pixels|damage|speed --photos FOLDER`. It needs a GPU with an engine, CuPy and
nvJPEG. Whole jobs: `python -m bench.gpu --photos FOLDER`.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import simplejpeg

from penstock.core.deferred import BadRows
from penstock.options.records import INTERPOLATIONS, RESIZES
from penstock.sources.images import engine as engine_module
from penstock.sources.images.encoded import EncodedImages
from penstock.sources.images.engine import EngineDecoder, JpegEngine
from penstock.sources.images.resizing import Rendition

ROOM = (224, 224)
BATCH = 512
NEVER = 1e-12
"""A share so small that loaders decode all, with the exact transform."""


def photos_in(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob("*.jpg"))]


def by_loader(data: list[bytes], rendition: Rendition) -> tuple[Any, BadRows]:
    out = np.empty((len(data), *ROOM, 3), np.uint8)
    column = EncodedImages(pa.array(data, pa.large_binary()), replace(rendition, engine_share=NEVER))
    return out, column.fill(out, lambda position: None)


def stowed(data: list[bytes], rendition: Rendition) -> tuple[Any, Any]:
    """What a loader leaves of photos for the engine: rows, and the bytes in each."""
    out = np.zeros((len(data), *ROOM, 3), np.uint8)
    bad = EncodedImages(pa.array(data, pa.large_binary()), rendition).routed(1.0).fill(out, lambda position: None)
    sizes = np.zeros(len(data), np.int64)
    for place, size in bad.encoded.items():
        sizes[place] = size
    return out, sizes


def by_engine(engine: JpegEngine, data: list[bytes], rendition: Rendition) -> tuple[Any, Any, BadRows]:
    out, sizes = stowed(data, rendition)
    rows, bad = engine.decode(out, sizes, len(out))
    return rows.on_host(), sizes, bad


def opened(rendition: Rendition) -> JpegEngine:
    return EngineDecoder(replace(rendition, engine_share=1.0)).open()


def decoded(engine: JpegEngine, data: list[bytes]) -> list[Any]:
    """Pixels before resizing; None where the engine gives none."""
    rows = np.zeros((len(data), max(map(len, data))), np.uint8)
    for row, each in zip(rows, data, strict=True):
        row[: len(each)] = np.frombuffer(each, np.uint8)
    pixels, sizes = engine._cupy.empty(rows.shape, np.uint8), np.array([len(each) for each in data])
    found: list[Any] = [None] * len(data)
    with engine.line() as line:
        for photos in engine.put_and_look(line, rows, pixels, np.arange(len(data)), sizes).divided():
            planes, table = line.decode(photos, pixels)
            with line.stream:
                engine._run("colour", (int(photos.widths.max()), int(photos.heights.max())), len(photos), planes)
            line.stream.synchronize()
            room, start = line.memory.get(), engine_module._address(line.memory)
            for place, size, (at, _) in zip(
                photos.places, zip(photos.heights, photos.widths, strict=True), table, strict=True
            ):
                found[place] = room[at - start :][: size[0] * size[1] * 3].reshape(*size, 3)
    return found


def show_pixels(data: list[bytes]) -> None:
    """The largest differences, before resizing and after it."""
    began = time.perf_counter()
    engine = opened(Rendition())
    print(f"engine open after {time.perf_counter() - began:.1f} s, nvJPEG {engine_module.version()}")
    for sampling in ("as they are", "420", "422", "444", "440", "Gray"):
        some = data if sampling == "as they are" else [reencoded(each, sampling) for each in data[:24]]
        found = decoded(engine, some)
        for name, is_fast in (("exact", False), ("fast", True)):
            pairs = [
                (a, simplejpeg.decode_jpeg(b, fastdct=is_fast))
                for a, b in zip(found, some, strict=True)
                if a is not None
            ]
            worst = max((int(np.abs(a.astype(int) - b).max()) for a, b in pairs), default=None)
            mean = np.mean([np.abs(a.astype(int) - b).mean() for a, b in pairs]) if pairs else None
            what = f"before resizing, {sampling:12}: {len(pairs)} of {len(some)} decoded"
            print(f"  {what}; to libjpeg's {name}: max {worst}, mean {mean}")
    odd = [
        simplejpeg.encode_jpeg(np.ascontiguousarray(picture(*size)))
        for size in ((1, 1), (8, 8), (17, 33), (63, 64), (1025, 3))
    ]
    print("  odd sizes decoded:", [None if each is None else each.shape for each in decoded(engine, odd)])
    for resize in RESIZES:
        for interpolation in INTERPOLATIONS:
            rendition = Rendition(resize, interpolation)
            engine._rendition = replace(rendition, engine_share=1.0)
            out, sizes, bad = by_engine(engine, data, rendition)
            expected, _ = by_loader(data, rendition)
            far = np.abs(out.astype(int) - expected)
            print(
                f"  {resize:8}{interpolation:16} {np.count_nonzero(sizes)} of {len(data)} by the engine, "
                f"{len(bad)} failed; max {far.max()}, unequal {np.count_nonzero(far) / far.size:.2e}"
            )


def picture(height: int, width: int) -> Any:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def reencoded(data: bytes, sampling: str) -> bytes:
    pixels = simplejpeg.decode_jpeg(data)
    if sampling == "Gray":
        return bytes(
            simplejpeg.encode_jpeg(np.ascontiguousarray(pixels[:, :, :1]), colorspace="GRAY", colorsubsampling="Gray")
        )
    return bytes(simplejpeg.encode_jpeg(pixels, quality=90, colorsubsampling=sampling))


def show_damage(data: list[bytes]) -> None:
    """Whether photos with damage inside fail on both paths, and what becomes of whole ones that come with them."""
    rendition = Rendition("stretch", "pillow-bilinear")
    engine = opened(rendition)
    rng = random.Random(0)
    whole = [each for each in data if len(each) < 100_000]
    for kind, bytes_hit in (
        ("1 bit", 0),
        ("1 byte", 1),
        ("16 bytes", 16),
        ("a hole of 1 KB", 1024),
        ("a byte before", -1),
    ):
        photos = [damaged(rng.choice(whole), bytes_hit, rng) if i % 2 else rng.choice(whole) for i in range(480)]
        found, sizes, failed = by_engine(engine, photos, rendition)
        expected, failed_here = by_loader(photos, rendition)
        routed = set(np.flatnonzero(sizes).tolist())
        far = np.abs(found.astype(int) - expected).reshape(len(photos), -1).max(axis=1)
        taken = [i for i in range(1, len(photos), 2) if i in routed and i not in failed_here]
        expected_failures = routed & failed_here.keys()
        print(
            f"  {kind:16} of 240 damaged {len(routed) - 240} go to the GPU: {len(failed)} fail there, and "
            f"{len(expected_failures)} of them by libjpeg (equal: {failed.keys() == expected_failures}); "
            f"differences of whole ones: {far[::2].max()}, of damaged ones that libjpeg takes: {max(far[taken])}"
        )


def damaged(data: bytes, bytes_hit: int, rng: random.Random) -> bytes:
    """With damage in its second half, which is pixels; or, below 0, in what stands before them."""
    raw = bytearray(data)
    place = rng.randrange(len(raw) // 2, len(raw) - 1100) if bytes_hit >= 0 else rng.randrange(20, 700)
    if bytes_hit == 0:
        raw[place] ^= 1 << rng.randrange(8)
    for at in range(place, place + abs(bytes_hit)):
        raw[at] = rng.randrange(255)  # never 0xFF, which would be seen at once
    return bytes(raw)


def show_speed(data: list[bytes], seconds: float) -> None:
    """Images a second of decoding and resizing alone, one batch after the other, and where the time goes."""
    small = [each for each in data if len(each) <= 150_000]
    for at_once in (128, 256, 512):
        engine_module.AT_ONCE = at_once
        engine = opened(Rendition())
        rows, sizes = stowed([small[i % len(small)] for i in range(BATCH)], Rendition())
        engine.decode(rows, sizes, len(rows))
        batches, began = 0, time.perf_counter()
        while time.perf_counter() < began + seconds:
            engine.decode(rows, sizes, len(rows))
            batches += 1
        rate = batches * len(rows) / (time.perf_counter() - began)
        parts = ", ".join(f"{name} {each * 1e3:.1f}" for name, each in parts_of(engine, rows, sizes, at_once).items())
        print(
            f"  {at_once} at once: {rate:,.0f} images/s; ms of {at_once}: {parts}",
            flush=True,
        )


def parts_of(engine: JpegEngine, rows: Any, sizes: Any, count: int) -> dict[str, float]:
    """Milliseconds of the steps of one call to the engine."""
    rows, sizes, places = rows[:count], sizes[:count], np.arange(count)
    pixels = engine._cupy.empty(rows.shape, np.uint8)
    with engine.line() as line:

        def finished(call: Callable[[], Any]) -> Any:
            made = call()
            line.stream.synchronize()
            return made

        upload_s, _ = timed(lambda: finished(lambda: pixels.set(rows, stream=line.stream)))
        check_s, photos = timed(lambda: engine.put_and_look(line, rows, pixels, places, sizes))
        decode_s, _ = timed(lambda: finished(lambda: line.decode(photos, pixels)))

        def show() -> None:
            pixels.set(rows, stream=line.stream)
            finished(lambda: engine.show(line, photos, pixels))

        show_s, _ = timed(show)
    return {
        "upload": upload_s,
        "upload and check": check_s,
        "decode": decode_s,
        "decode, colour and resize": show_s - upload_s,
    }


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """The seconds of a call, as a mean, and what it gave."""
    call()
    began = time.perf_counter()
    for _ in range(5):
        made = call()
    return (time.perf_counter() - began) / 5, made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["pixels", "damage", "speed"])
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    print(f"{given.what}:", flush=True)
    data = photos_in(given.photos)
    if given.what == "pixels":
        show_pixels(data)
    elif given.what == "damage":
        show_damage(data)
    else:
        show_speed(data, given.seconds)


if __name__ == "__main__":
    main()
