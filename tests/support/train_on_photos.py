"""Write digits as photos, a folder for each class, train a small network with Keras's own loader, note its answers.

`python -m … FOLDER` leaves `model.keras`, `photos/CLASS/*.jpg` that it was not trained on, and `answers.json`: the top
class of every photo by `model.predict` on Keras's loader, and its margin before the second.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import keras
import numpy as np
from PIL import Image, ImageFilter

from tests.support.digits import load_digits

SIDE = 28
TRAINED, PREDICTED = 900, 400


def write_photos(folder: Path) -> None:
    """Digits on a grainy ground, of sizes and proportions as they come, in JPEG files."""
    digits, labels = load_digits()
    rng = np.random.default_rng(4)
    for number, (pixels, label) in enumerate(zip(digits.reshape(-1, 8, 8), labels, strict=True)):
        if number >= TRAINED + PREDICTED:
            break
        width, height = (int(side) for side in rng.integers(70, 190, 2))
        ink = Image.fromarray((pixels * 15.9).astype(np.uint8)).resize((width, height), Image.Resampling.BICUBIC)
        ground = rng.integers(20, 110, 3) + rng.normal(0, 18, (height, width, 3))
        strength = np.asarray(ink.filter(ImageFilter.GaussianBlur(1)), np.float64)[:, :, None] / 255
        colour = rng.integers(140, 256, 3)
        photo = Image.fromarray(np.clip(ground * (1 - strength) + colour * strength, 0, 255).astype(np.uint8))
        place = folder / ("train" if number < TRAINED else "photos") / f"digit-{label}"
        place.mkdir(parents=True, exist_ok=True)
        photo.save(place / f"{number:05d}.jpg", quality=int(rng.integers(70, 96)))


def train(folder: Path) -> keras.Model:
    keras.utils.set_random_seed(0)
    photos = keras.utils.image_dataset_from_directory(
        folder / "train", image_size=(SIDE, SIDE), batch_size=50, seed=0, verbose=False
    ).cache()
    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 3)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax", name="digit"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(photos, epochs=12, verbose=0)
    return model


def main(folder: Path) -> None:
    write_photos(folder)
    model = train(folder)
    model.save(folder / "model.keras")
    photos = keras.utils.image_dataset_from_directory(
        folder / "photos", labels=None, image_size=(SIDE, SIDE), shuffle=False, verbose=False
    )
    scores = model.predict(photos, verbose=0)
    best = np.sort(scores, axis=1)
    answers = {
        str(path): {"top": int(np.argmax(row)), "margin": float(top[-1] - top[-2]), "scores": row.tolist()}
        for path, row, top in zip(photos.file_paths, scores, best, strict=True)
    }
    (folder / "answers.json").write_text(json.dumps(answers), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
