"""Writes what Keras itself answers, row by row and unpadded: `python answer_one_by_one.py FOLDER MODEL…`.

The rows for `words.keras` are in `FOLDER/words.rows.json`, and its answers go to `FOLDER/words.answers.json`. A row
is a dict of lists, one for each input.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from penstock.core.records import ModelFile
from penstock.runtimes.environment import lean_imports


def main(folder: Path, models: list[Path]) -> None:
    for model in models:
        rows = json.loads((folder / f"{model.stem}.rows.json").read_text())
        (folder / f"{model.stem}.answers.json").write_text(json.dumps(answers_of(model, rows)))


def answers_of(path: Path, rows: list[Any]) -> list[Any]:
    import numpy as np

    with lean_imports(ModelFile("keras", "", "", ()), "tensorflow"):
        import keras
    model = keras.saving.load_model(path)
    answers = []
    for row in rows:
        inputs = {name: np.array([values]) for name, values in row.items()}
        given = model(inputs if len(inputs) > 1 else next(iter(inputs.values())))
        flat = list(given.values()) if isinstance(given, dict) else [given]
        answers.append([np.asarray(output)[0].tolist() for output in flat])
    return answers


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(model) for model in sys.argv[2:]])
