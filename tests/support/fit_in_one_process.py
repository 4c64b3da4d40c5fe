"""Runs `penstock fit` on many inputs and models in one process, the trainer in it: `python -m … FOLDER`.

What it says of every case goes to FOLDER/told.json. A start of TensorFlow for each case would take minutes.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock import fit as penstock_fit
from penstock.cli.commands import main as penstock
from penstock.core.messages import Failed
from penstock.errors import PenstockError
from penstock.pool.processes.board import Board
from penstock.storage.turns import take_turn
from penstock.training import file_training
from penstock.training.fit_job import EndReport, Report
from penstock.training.stages import StageClock
from penstock.training.trainer_hold import TrainerHold
from tests.support.fit_models import build, rows

layers = keras.layers
HELD_BACK = ("--validation-split", 0.1)


def train_here(hold: TrainerHold, hear: Callable[[Report], None]) -> EndReport:
    """What the process that trains does, in this one; its errors arrive as they would from there."""
    ended: list[EndReport] = []

    def send(report: Any) -> None:
        if isinstance(report, EndReport):
            ended.append(report)
        else:
            hear(report)

    try:
        job = replace(hold.job, staging=take_turn(hold.job.folder))
        file_training.FileTraining(job, send, lambda: False, StageClock(Board.create())).run()
    except BaseException as error:
        known = error if isinstance(error, PenstockError) else None
        failed = Failed(known, type(error).__name__, "".join(traceback.format_exception(error)))
        raise failed.as_error("the process that trains") from None
    return ended[0]


def run(*arguments: object) -> dict[str, Any]:
    """The exit code and the texts of one run of the command."""
    sys.argv = ["penstock", *map(str, arguments)]
    code: Any = 0
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            try:
                penstock()
            except SystemExit as ended:
                code = ended.code
        output.seek(0)
        errors.seek(0)
        return {"code": code, "output": output.read(), "errors": errors.read()}


def in_memory() -> dict[str, Any]:
    """What is said of labels that are text, of arrays."""
    x, y = rows()
    try:
        penstock_fit(build(), x, np.array(["ant", "bee", "cat"])[np.sort(y)], verbose=0)
    except PenstockError as error:
        return {"code": error.exit_code, "output": "", "errors": str(error)}
    return {"code": 0, "output": "", "errors": ""}


def raising() -> Any:
    """A model whose own step raises."""

    class Raising(keras.Model):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            raise RuntimeError("the step is broken")

    inputs = keras.Input((8,))
    model = Raising(inputs, layers.Dense(3, "softmax")(inputs))
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def write(folder: Path) -> None:
    """Models and rows."""
    model = build()
    x, y = rows()
    model.fit(x, y, verbose=0)
    model.save(folder / "trained.h5")
    model.trainable = False
    model.save(folder / "frozen.keras")
    build(is_compiled=False).save(folder / "plain.keras")
    inputs = keras.Input((8,), name="x")
    outputs = {"kind": layers.Dense(3, "softmax", name="kind")(inputs), "size": layers.Dense(1, name="size")(inputs)}
    keras.Model(inputs, outputs).save(folder / "two.keras")
    outputs = {"kind": layers.Dense(3, "softmax")(inputs), "sign": layers.Dense(2, "softmax")(inputs)}
    keras.Model(inputs, outputs).save(folder / "texts.keras")
    last = layers.Dense(3, "softmax")
    keras.Sequential([keras.Input((8,)), last]).save(folder / "unscaled.keras")
    keras.Sequential([keras.Input((8,)), layers.Rescaling(0.5, 1.0), last]).save(folder / "scaling.keras")
    column = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), x.shape[1])
    weights = [1.0] * len(x)
    columns: dict[str, Any] = {
        "x": column,
        "y": y,
        "size": x.sum(axis=1),
        "negative": [*weights[:-2], -0.5, 1.0],
        "infinite": [*weights[:-2], float("inf"), 1.0],
        "bytes": [(b"\xff", b"b", b"\xe9")[each] for each in y],
        "lines": [("", "b\n", "\u202ec")[each] for each in y],
        "name": [("ant", "bee", "cat")[each] for each in y],
        "sign": [("plus", "minus")[int(first < 0)] for first in x[:, 0]],
        "gaps": [None, *y[1:].astype(float)],
        "four": [f"class {number % 4}" for number in range(len(x))],
    }
    pq.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=50)
    others = {"x": column, "name": ["owl", *columns["name"][1:]]}
    pq.write_table(pa.table(others), folder / "others.parquet")
    pq.write_table(pa.table({"a": x[:, 0], "name": columns["name"]}), folder / "few.parquet")


def main(folder: Path) -> None:
    TrainerHold.train = train_here  # type: ignore[assignment, method-assign]
    vars(file_training)["prepare"] = lambda *arguments: None  # TensorFlow is up already
    warnings.simplefilter("ignore")
    write(folder)
    model, data = folder / "plain.keras", folder / "rows.parquet"
    texts = (folder / "texts.keras", data, "--label", "kind=name")
    cases = {
        "an HDF5 file": (folder / "trained.h5", data, "--label", "y"),
        "frozen": (folder / "frozen.keras", data, "--label", "y"),
        "no metric": (model, data, "--label", "y", "--metrics", "acuracy"),
        "a step that raises": ("tests.support.fit_in_one_process:raising", data, "--label", "y"),
        "a negative weight": (model, data, "--label", "y", "--weight", "negative"),
        "an infinite weight": (model, data, "--label", "y", "--weight", "infinite"),
        "bytes": (model, data, "--label", "bytes"),
        "unprintable": (model, data, "--label", "lines"),
        "another validation": (model, data, "--label", "name", "--validation", folder / "others.parquet"),
        "in pieces": (model, data, "--label", "y", "--accumulate", 3),
        "two outputs": (folder / "two.keras", data, "--label", "kind=y", "--label", "size=size"),
        "two of text": (*texts, "--label", "sign=sign", *HELD_BACK),
        "scaled": (folder / "unscaled.keras", data, "--label", "y", *HELD_BACK, "--scale", 0.5, "--offset", 1),
        "scaled by a layer": (folder / "scaling.keras", data, "--label", "y", *HELD_BACK),
        "too many channels": (folder / "unscaled.keras", data, "--label", "y", "--scale", "1,2,3"),
        "whole numbers with gaps": (model, data, "--label", "gaps", "--class-weights", "balanced"),
        "no column": (model, folder / "few.parquet", "--label", "name"),
        "fractions for a softmax": (model, data, "--label", "size"),
        "too many classes": (model, data, "--label", "four"),
        "too many of one": (*texts, "--label", "sign=four"),
        "two to divide": (
            *texts,
            "--label",
            "sign=sign",
            *HELD_BACK,
            "--stratify",
        ),
    }
    told = {name: run("fit", *case, "-o", folder / name) for name, case in cases.items()}
    told["text in memory"] = in_memory()
    (folder / "told.json").write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
