"""What image libraries themselves make of photos, and how far penstock is from it.

`python -m tests.support.image_libraries FOLDER` prints a table: the largest difference for every library and mode, over
all photos in the folder. `… FOLDER --of keras --to OUT.npz` writes what one library makes of them.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[Any]
Size = tuple[int, int]

MODES = ("stretch", "crop", "pad")
SIZES: tuple[Size, ...] = ((224, 224), (96, 160), (300, 200), (450, 600))
EXACT = ("pillow", "opencv") if platform.machine() == "x86_64" else ("pillow",)
"""Of these, our own sums give the same bytes. On Arm, OpenCV rounds otherwise, or resizes by Arm's own code."""
SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp")


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)


def by_keras(folder: Path, size: Size, mode: str, color: str) -> Iterator[tuple[str, Pixels]]:
    """Keras's own loader, on TensorFlow."""
    os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
    import keras

    found = keras.utils.image_dataset_from_directory(
        folder,
        labels=None,
        shuffle=False,
        batch_size=1,
        image_size=size,
        color_mode=color,
        crop_to_aspect_ratio=mode == "crop",
        pad_to_aspect_ratio=mode == "pad",
        verbose=False,
    )
    for path, batch in zip(found.file_paths, found, strict=True):
        yield Path(path).name, batch.numpy()[0]


def by_pillow(name: str) -> Callable[..., Iterator[tuple[str, Pixels]]]:
    def made(folder: Path, size: Size, mode: str, color: str) -> Iterator[tuple[str, Pixels]]:
        from PIL import Image, ImageOps

        how = getattr(Image.Resampling, name)
        wanted = (size[1], size[0])
        for path in files_of(folder):
            with Image.open(path) as opened:
                image = opened.convert({"rgb": "RGB", "grayscale": "L", "rgba": "RGBA"}[color])
            if mode == "crop":
                image = ImageOps.fit(image, wanted, how)
            elif mode == "pad":
                image = ImageOps.pad(image, wanted, how)
            else:
                image = image.resize(wanted, how)
            yield path.name, np.asarray(image).reshape(*size, -1)

    return made


def by_opencv(name: str) -> Callable[..., Iterator[tuple[str, Pixels]]]:
    """OpenCV crops and pads nothing: the middle of the image, and a border around it, in the usual words."""

    def made(folder: Path, size: Size, mode: str, color: str) -> Iterator[tuple[str, Pixels]]:
        import cv2

        for path in files_of(folder):
            pixels: Any = cv2.imread(str(path), cv2.IMREAD_COLOR_RGB if color == "rgb" else cv2.IMREAD_GRAYSCALE)
            rows, columns = pixels.shape[:2]
            wanted = (size[1], size[0])
            if mode == "crop":
                shrink = min(rows / size[0], columns / size[1])
                height, width = round(size[0] * shrink), round(size[1] * shrink)
                top, left = (rows - height) // 2, (columns - width) // 2
                pixels = pixels[top : top + height, left : left + width]
            elif mode == "pad":
                shrink = max(rows / size[0], columns / size[1])
                wanted = (round(columns / shrink), round(rows / shrink))
            pixels = cv2.resize(pixels, wanted, interpolation=getattr(cv2, name))
            above, before = (size[0] - wanted[1]) // 2, (size[1] - wanted[0]) // 2
            pixels = cv2.copyMakeBorder(
                pixels,
                above,
                size[0] - wanted[1] - above,
                before,
                size[1] - wanted[0] - before,
                cv2.BORDER_CONSTANT,
            )
            yield path.name, pixels.reshape(*size, -1)

    return made


def by_torchvision(folder: Path, size: Size, mode: str, color: str) -> Iterator[tuple[str, Pixels]]:
    """torchvision's transforms of tensors; where only torch is there, what they call.

    Its own words for a crop are `Resize(side)` and `CenterCrop`, for square places.
    """
    import torch
    from PIL import Image

    for path in files_of(folder):
        with Image.open(path) as opened:
            pixels = np.asarray(opened.convert({"rgb": "RGB", "grayscale": "L"}[color]))
        tensor = torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1).transpose(2, 0, 1).copy())
        made = (_by_transforms if _has_torchvision() else _by_torch)(tensor, size, mode)
        yield path.name, made.numpy().transpose(1, 2, 0)


def _has_torchvision() -> bool:
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError):  # the latter from a build for another torch
        return False
    return True


def _by_transforms(tensor: Any, size: Size, mode: str) -> Any:
    v2: Any = importlib.import_module("torchvision.transforms.v2")
    if mode == "stretch":
        return v2.Resize(size, antialias=True)(tensor)
    if mode == "crop":
        return v2.CenterCrop(size)(v2.Resize(size[0], antialias=True)(tensor))
    return v2.CenterCrop(size)(v2.Resize(None, max_size=size[0], antialias=True)(tensor))


def _by_torch(tensor: Any, size: Size, mode: str) -> Any:
    import torch

    rows, columns = tensor.shape[1:]
    short, long = sorted((rows, columns))
    wanted = size
    if mode == "crop":
        wanted = (size[0] * rows // short, size[0] * columns // short)
    elif mode == "pad":
        wanted = (size[0] * rows // long, size[0] * columns // long)
    made = torch.nn.functional.interpolate(tensor[None], wanted, mode="bilinear", antialias=True)[0]
    if mode == "crop":
        top, left = round((wanted[0] - size[0]) / 2), round((wanted[1] - size[1]) / 2)
        return made[:, top : top + size[0], left : left + size[1]]
    above, before = (size[0] - wanted[0]) // 2, (size[1] - wanted[1]) // 2
    spare = (before, size[1] - wanted[1] - before, above, size[0] - wanted[0] - above)
    return torch.nn.functional.pad(made, spare)


LIBRARIES: dict[str, Callable[..., Iterator[tuple[str, Pixels]]]] = {
    "keras": by_keras,
    "pillow-bilinear": by_pillow("BILINEAR"),
    "pillow-bicubic": by_pillow("BICUBIC"),
    "pillow-lanczos": by_pillow("LANCZOS"),
    "torchvision": by_torchvision,
    "opencv-linear": by_opencv("INTER_LINEAR"),
    "opencv-area": by_opencv("INTER_AREA"),
}


def cases_of(library: str, sizes: tuple[Size, ...] = SIZES) -> Iterator[tuple[Size, str]]:
    for mode in MODES:
        for size in sizes:
            if library != "torchvision" or mode == "stretch" or size[0] == size[1]:
                yield size, mode


def write_references(folder: Path, library: str, place: Path, color: str = "rgb") -> None:
    made: dict[str, Any] = {
        f"{size[0]}x{size[1]} {mode} {name}": pixels
        for size, mode in cases_of(library)
        for name, pixels in LIBRARIES[library](folder, size, mode, color)
    }
    np.savez(place, **made)


def references_by_a_process(folder: Path, library: str, color: str = "rgb", python: str = sys.executable) -> Any:
    """What a library makes of photos, in a process of its own: name of the case to pixels."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "made.npz"
        command = [python, "-m", "tests.support.image_libraries", str(folder), "--of", library, "--to", str(place)]
        subprocess.run([*command, "--color", color], check=True, capture_output=True)
        with np.load(place) as made:
            return {name: made[name] for name in made.files}


def ours(data: bytes, size: Size, mode: str, library: str, color: str = "rgb") -> Pixels:
    from penstock.sources.images.decoding import decode_into
    from penstock.sources.images.resizing import Rendition

    out = np.full((*size, {"rgb": 3, "grayscale": 1}[color]), 99, np.uint8)
    decode_into(data, out, Rendition(mode, library))
    return out


def differences(folder: Path, library: str, references: Any, color: str = "rgb") -> dict[str, float]:
    """The largest difference of 255 for every case."""
    found = {}
    for case, expected in references.items():
        size, mode, name = case.split(" ", 2)
        rows, columns = map(int, size.split("x"))
        made = ours((folder / name).read_bytes(), (rows, columns), mode, library, color)
        found[case] = float(np.abs(made - expected.astype(np.float64)).max())
    return found


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--of", choices=LIBRARIES, help="write what this library makes of the photos")
    parser.add_argument("--to", type=Path, help="where it is written")
    parser.add_argument("--color", default="rgb")
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter that has torch or torchvision")
    options = parser.parse_args(arguments)
    if options.of:
        write_references(options.folder, options.of, options.to, options.color)
        return
    print(f"{len(files_of(options.folder))} photos, to {', '.join(f'{rows}×{columns}' for rows, columns in SIZES)}")
    for library in LIBRARIES:
        python = options.torch if library == "torchvision" else sys.executable
        if python is None:
            continue
        found = differences(
            options.folder, library, references_by_a_process(options.folder, library, options.color, python)
        )
        for mode in MODES:
            worst = max((value, case) for case, value in found.items() if case.split(" ")[1] == mode)
            print(f"{library:16} {mode:8} {worst[0]:.3f}   {worst[1]}")


if __name__ == "__main__":
    main(sys.argv[1:])
