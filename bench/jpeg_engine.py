"""V: the JPEG engine of a GPU against the loaders: the same pixels, and how many more of them.

`python -m bench.jpeg_engine pixels|damage|speed|job --photos FOLDER`. It needs a GPU with an engine, CuPy and
nvImageCodec, and for `job` Keras with JAX.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import simplejpeg

from penstock.core.deferred import BadRows
from penstock.options.records import INTERPOLATIONS, RESIZES
from penstock.sources.images import engine as engine_module
from penstock.sources.images.encoded import EncodedImages
from penstock.sources.images.engine import EngineDecoder, JpegEngine
from penstock.sources.images.resizing import Rendition

ROOM = (224, 224)
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
    return out, sizes, engine.decode(out, sizes)


def opened(rendition: Rendition) -> JpegEngine:
    return EngineDecoder(replace(rendition, engine_share=1.0)).open()


def decoded(engine: JpegEngine, data: list[bytes]) -> list[Any]:
    """Pixels before resizing; None where the engine gives none."""
    images = engine._decode([engine._codec.CodeStream(np.frombuffer(each, np.uint8)) for each in data])
    engine._stream.synchronize()
    return [None if image is None else engine._cupy.asarray(image).get() for image in images]


def show_pixels(data: list[bytes]) -> None:
    """The largest differences, before resizing and after it."""
    began = time.perf_counter()
    engine = opened(Rendition())
    print(f"engine open after {time.perf_counter() - began:.1f} s, nvImageCodec {engine._codec.__version__}")
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
    """What the engine and libjpeg say to photos with damage inside, one at a time and beside whole ones."""
    rendition = Rendition("stretch", "pillow-bilinear")
    engine = opened(rendition)
    rng = random.Random(0)
    for kind, bytes_hit in (("1 bit", 0), ("1 byte", 1), ("16 bytes", 16), ("a hole of 1 KB", 1024)):
        count: Counter[str] = Counter()
        worst = 0
        for number in range(60):
            whole = [each for each in data if len(each) < 100_000][:40]
            hit = rng.randrange(len(whole))
            whole[hit] = damaged(whole[hit], bytes_hit, rng)
            _, sizes = stowed(whole, rendition)
            if not sizes[hit]:
                count["kept by the loader"] += 1
                continue
            alone = decoded(engine, [whole[hit]])[0]
            _, failures = by_loader(whole[hit : hit + 1], rendition)
            count[
                f"engine {'refuses' if alone is None else 'decodes'}, libjpeg {'fails' if failures else 'decodes'}"
            ] += 1
            if number < 5:
                out, _, _ = by_engine(engine, whole, rendition)
                expected, _ = by_loader(whole, rendition)
                others = np.delete(np.abs(out.astype(int) - expected), hit, axis=0)
                worst = max(worst, int(others.max()))
        print(f"  {kind:16} {dict(count)}; others beside it differ by at most {worst}")


def damaged(data: bytes, bytes_hit: int, rng: random.Random) -> bytes:
    """With damage in its second half, which is pixels."""
    raw = bytearray(data)
    place = rng.randrange(len(raw) // 2, len(raw) - 1100)
    if bytes_hit == 0:
        raw[place] ^= 1 << rng.randrange(8)
    for at in range(place, place + bytes_hit):
        raw[at] = rng.randrange(255)  # never 0xFF, which would be seen at once
    return bytes(raw)


def show_speed(data: list[bytes], seconds: float) -> None:
    """Images a second of decoding and resizing alone, and where the time goes."""
    small = [each for each in data if len(each) <= 150_000]
    for cpu_threads, at_once, lanes in ((1, 256, 1), (1, 256, 2), (4, 256, 2), (1, 128, 2), (1, 256, 3)):
        engine_module.CPU_THREADS, engine_module.AT_ONCE = cpu_threads, at_once
        engine = opened(Rendition())
        template, sizes = stowed([small[i % len(small)] for i in range(at_once)], Rendition())
        rate = rate_of(engine, template, sizes, lanes, seconds)
        parts = ", ".join(f"{name} {each * 1e3:.1f}" for name, each in parts_of(engine, template, sizes).items())
        print(
            f"  {cpu_threads} CPU threads, {at_once} at once, {lanes} lanes: {rate:,.0f} images/s; ms: {parts}",
            flush=True,
        )


def rate_of(engine: JpegEngine, template: Any, sizes: Any, lanes: int, seconds: float) -> float:
    """Images a second into their places on the host, from the first second on."""
    done = [0] * lanes
    from_s = time.perf_counter() + 1

    def run(lane: int) -> None:
        rows = template.copy()
        while (now := time.perf_counter()) < from_s + seconds:
            for place, size in enumerate(sizes):  # as a loader leaves it
                rows[place].reshape(-1)[:size] = template[place].reshape(-1)[:size]
            engine.decode(rows, sizes)
            done[lane] += len(rows) if now > from_s else 0

    threads = [threading.Thread(target=run, args=(lane,)) for lane in range(lanes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - from_s)


def parts_of(engine: JpegEngine, template: Any, sizes: Any) -> dict[str, float]:
    views = [row.reshape(-1)[:size] for row, size in zip(template, sizes, strict=True)]
    stream_s, streams = timed(lambda: [engine._codec.CodeStream(each) for each in views])
    decode_s, images = timed(lambda: engine._decode(streams))
    resize_s, pixels = timed(lambda: engine._resized(images, ROOM))
    places, rows = np.arange(len(template)), template.copy()
    copy_s, _ = timed(lambda: rows.__setitem__(places, pixels))
    return {"streams": stream_s, "decode": decode_s, "resize, to host": resize_s, "to places": copy_s}


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """The seconds of a call, as a mean, and what it gave."""
    call()
    began = time.perf_counter()
    for _ in range(5):
        made = call()
    return (time.perf_counter() - began) / 5, made


def show_job(photos: Path, num_images: int, decoders: list[str], runtime: str, more: list[str]) -> None:
    """Whole jobs: photos to the best five classes in Parquet."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        folder = root / "photos"
        folder.mkdir()
        paths = sorted(photos.glob("*.jpg"))
        copies = [folder / f"{i:06}.jpg" for i in range(len(paths))]
        for path, copy in zip(paths, copies, strict=True):
            copy.write_bytes(path.read_bytes())
        for i in range(len(paths), num_images):
            os.link(copies[i % len(paths)], folder / f"{i:06}.jpg")
        model = root / "model.keras"
        hidden = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"}
        command = [sys.executable, "-m", "bench.gpu_child", "save-varied", "--model", str(model)]
        subprocess.run([*command, "--dtype-policy", "float32"], env=os.environ | hidden, check=True, stdout=sys.stderr)
        first: Any = None
        for decoder in decoders:
            output = root / decoder.replace(":", "-")
            command = [
                sys.executable, "-m", "penstock", "predict", str(model), str(folder), "--output", str(output),
                "--devices", "gpu", "--runtime", runtime, "--batch-size", "512", "--top-k", "5", "--plan", "off",
                "--decoder", decoder, "--json", *more,
            ]  # fmt: skip
            began = time.perf_counter()
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            took = time.perf_counter() - began
            if ran.returncode:
                print(f"  {decoder}: exit {ran.returncode}: {ran.stdout[-300:]} {ran.stderr[-1500:]}")
                continue
            summary = json.loads(ran.stdout)
            print(
                f"  {decoder:9} {summary['rows_per_s']:,.0f} images/s, ready after {summary['start_seconds']:.1f} s, "
                f"{took:.1f} s in all; loaders {summary['loaders']}; {summary['bottleneck']}; {summary.get('where')}",
                flush=True,
            )
            table = pq.read_table(sorted(output.glob("*.parquet")))
            best = {name: table[name] for name in table.column_names if name not in ("row", "path")}
            first = first or (decoder, best)
            compare(first[1], best, f"{decoder} against {first[0]}")


def compare(one: dict[str, Any], other: dict[str, Any], what: str) -> None:
    for name in one:
        a, b = (np.stack(each[name].to_numpy()) for each in (one, other))
        a, b = a.reshape(len(a), -1), b.reshape(len(b), -1)
        unequal = np.count_nonzero(a[:, 0] != b[:, 0])
        far = np.abs(a.astype(float) - b).max()
        print(f"    {what}: {name}: the first differs in {unequal:,} of {len(a):,} rows, at most {far:.3g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["pixels", "damage", "speed", "job"])
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--decoders", default="cpu,gpu,gpu:0.4,gpu:0.6")
    parser.add_argument("--runtime", default="jax")
    given, more = parser.parse_known_args()
    print(f"{given.what}:", flush=True)
    if given.what == "job":
        show_job(given.photos, given.images, given.decoders.split(","), given.runtime, more)
        return
    data = photos_in(given.photos)
    if given.what == "pixels":
        show_pixels(data)
    elif given.what == "damage":
        show_damage(data)
    else:
        show_speed(data, given.seconds)


if __name__ == "__main__":
    main()
