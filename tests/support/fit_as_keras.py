"""What `model.fit` makes of a model and rows: `python -m tests.support.fit_as_keras MODEL ARRAYS`; prints the history.

ARRAYS is an npz file with `x`, `y`, `held_x`, `held_y` and `weights`, the weight of every class.
"""

import json
import sys

import keras
import numpy as np


def main(path: str, arrays: str) -> None:
    model, given = keras.models.load_model(path), np.load(arrays)
    history = model.fit(
        given["x"],
        given["y"],
        epochs=2,
        batch_size=16,
        shuffle=False,
        class_weight=dict(enumerate(given["weights"].tolist())),
        validation_data=(given["held_x"], given["held_y"]),
        verbose=0,
    )
    print(json.dumps(history.history))


if __name__ == "__main__":
    main(*sys.argv[1:])
