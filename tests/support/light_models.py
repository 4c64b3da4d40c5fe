"""Models for ONNX Runtime, which starts in a second: for tests of everything but the frameworks.

| file | takes | gives |
|---|---|---|
| digits.onnx | pixels, 64 numbers from 0 to 16 | digit, ten shares |
| slow_digits.onnx | the same | the same; slow enough for a run to be hit in the middle |
| double.onnx | x, 4 numbers | doubled |
| colour.onnx | photo, 32×32 | colour, its mean: whoever draws the photo knows the answer |
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from tests.support import onnx_models
from tests.support.onnx_models import node


def write(folder: Path) -> None:
    write_digits(folder / "digits.onnx", widths=(64, 32, 10))
    write_digits(folder / "slow_digits.onnx", widths=(64, 1500, 1500, 10))
    onnx_models.save(
        folder / "double.onnx",
        [node("Add", ["x", "x"], ["doubled"])],
        {"x": ("FLOAT", ["rows", 4])},
        {"doubled": ("FLOAT", ["rows", 4])},
    )
    onnx_models.save(
        folder / "colour.onnx",
        [node("ReduceMean", ["photo", "axes"], ["colour"], keepdims=0)],
        {"photo": ("FLOAT", ["rows", 32, 32, 3])},
        {"colour": ("FLOAT", ["rows", 3])},
        initializers={"axes": np.array([1, 2])},
    )


def write_digits(path: Path, widths: tuple[int, ...]) -> None:
    random = np.random.default_rng(3)
    weights = {"scale": np.array([1 / 16], np.float32)}
    nodes = [node("Mul", ["pixels", "scale"], ["layer 0"])]
    for number, (before, after) in enumerate(itertools.pairwise(widths)):
        weights[f"kernel {number}"] = random.standard_normal((before, after), np.float32) / np.sqrt(np.float32(before))
        weights[f"bias {number}"] = random.standard_normal(after, np.float32)
        nodes += [
            node("MatMul", [f"layer {number}", f"kernel {number}"], [f"product {number}"]),
            node("Add", [f"product {number}", f"bias {number}"], [f"sum {number}"]),
            node("Tanh", [f"sum {number}"], [f"layer {number + 1}"]),
        ]
    nodes.append(node("Softmax", [f"layer {len(widths) - 1}"], ["digit"]))
    onnx_models.save(
        path, nodes, {"pixels": ("FLOAT", ["rows", 64])}, {"digit": ("FLOAT", ["rows", 10])}, initializers=weights
    )
