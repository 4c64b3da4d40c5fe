"""The folders of JPEG files that F and G read: given photographs, repeated under other names, or drawn pictures."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.data import fresh_staging
from bench.shell import BenchError

Pixels = npt.NDArray[np.uint8]

DRAWN_PICTURES = 124
FILES_PER_FOLDER = 1000
JPEG_QUALITY = 88
# Height and width of what photo sites hand out: most images are between these, upright or lying.
SHORTEST_SIDE, LONGEST_SIDE = 300, 1024


def photo_folder(root: Path, num_photos: int, given: Path | None) -> Path:
    """Return a folder of exactly so many JPEG files, in subfolders; made once for every origin and number."""
    origin = f"of-{given.name}" if given else "drawn"
    folder = root / f"photos-{origin}-{num_photos}"
    if folder.exists():
        return folder
    originals = _given_photos(given) if given else _drawn_pictures(root / "pictures")
    staging = fresh_staging(folder)
    for index in range(num_photos):
        place = staging / f"{index // FILES_PER_FOLDER:03d}" / f"{index:06d}.jpg"
        place.parent.mkdir(exist_ok=True)
        # A copy, not a link: each file is read from pages of its own, as in a folder of different photographs.
        shutil.copyfile(originals[index % len(originals)], place)
    return staging.rename(folder)


def files_of(folder: Path) -> list[Path]:
    """Return the photos of a folder, in the order of their names."""
    return sorted(folder.rglob("*.jpg"))


def warm(folder: Path) -> None:
    """Read every photo once, so that no side pays for a cold page cache."""
    for path in files_of(folder):
        path.read_bytes()


def _given_photos(folder: Path) -> Sequence[Path]:
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not found:
        raise BenchError(f"no JPEG file in {folder}")
    return found


def _drawn_pictures(folder: Path) -> Sequence[Path]:
    """Draw pictures once: they are no photographs, but have edges, surfaces and grain, and sizes as photos have."""
    from PIL import Image

    if not folder.exists():
        staging = fresh_staging(folder)
        for index in range(DRAWN_PICTURES):
            rng = np.random.default_rng(index)
            height, width = rng.integers(SHORTEST_SIDE, LONGEST_SIDE, size=2)
            picture = Image.fromarray(draw(rng, height, width))
            picture.save(staging / f"{index:03d}.jpg", quality=JPEG_QUALITY)
        staging.rename(folder)
    return sorted(folder.iterdir())


def draw(rng: np.random.Generator, height: int, width: int) -> Pixels:
    """Return a picture of waves and discs with some grain."""
    y, x = np.meshgrid(np.linspace(0, 1, height), np.linspace(0, 1, width), indexing="ij")
    picture = np.empty((height, width, 3))
    for channel in range(3):
        waves = rng.uniform(1, 12, size=(4, 2))
        picture[..., channel] = sum(np.sin(a * y + b * x) for a, b in waves)
    for _ in range(12):
        top, left, radius = rng.uniform(0, 1), rng.uniform(0, 1), rng.uniform(0.02, 0.3)
        picture[(y - top) ** 2 + (x - left) ** 2 < radius**2] = rng.uniform(-4, 4, size=3)
    picture = 128 + 28 * picture + rng.normal(0, 5, size=(height, width, 1))
    return picture.clip(0, 255).astype(np.uint8)
