"""Writes what Keras itself answers, row by row and unpadded: `python answer_one_by_one.py MODEL ROWS.json OUT.json`.

A row is a dict of lists, one for each input.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(model_path: str, rows_path: str, out_path: str) -> None:
    import keras
    import numpy as np

    model = keras.saving.load_model(model_path)
    answers = []
    for row in json.loads(Path(rows_path).read_text()):
        inputs = {name: np.array([values]) for name, values in row.items()}
        given = model(inputs if len(inputs) > 1 else next(iter(inputs.values())))
        flat = list(given.values()) if isinstance(given, dict) else [given]
        answers.append([np.asarray(output)[0].tolist() for output in flat])
    Path(out_path).write_text(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
