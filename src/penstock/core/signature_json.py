"""A model's signature as JSON and back: what a converted step keeps of the model that it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from penstock.core.records import Feature, Shape, Signature, TensorSpec


def to_json(signature: Signature) -> dict[str, Any]:
    """Everything a signature says, in what `json.dumps` takes.

    >>> from_json(to_json(Signature((), (), name="serve"))).name
    'serve'
    """
    return asdict(signature)


def from_json(told: Mapping[str, Any]) -> Signature:
    """The signature that `to_json` was given."""
    examples = {name: tuple(map(_feature, features)) for name, features in told["examples"].items()}
    remade = {
        "inputs": tuple(map(_spec, told["inputs"])),
        "outputs": tuple(map(_spec, told["outputs"])),
        "others": tuple(map(from_json, told["others"])),
        "examples": examples,
        "notes": tuple(told["notes"]),
    }
    return Signature(**{**told, **remade})


def _spec(told: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(**{**told, "shape": _shape(told["shape"])})


def _feature(told: Mapping[str, Any]) -> Feature:
    return Feature(**{**told, "shape": _shape(told["shape"])})


def _shape(lengths: list[int | None] | None) -> Shape | None:
    return None if lengths is None else tuple(lengths)
