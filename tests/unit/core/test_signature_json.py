"""A signature goes through JSON and comes back as it was."""

from __future__ import annotations

import json
from dataclasses import fields

from penstock.core.records import Feature, Signature, TensorSpec
from penstock.core.signature_json import from_json, to_json

SIGNATURE = Signature(
    inputs=(TensorSpec("x", "uint8", (None, 3)), TensorSpec("records", "string", (), varies=True)),
    outputs=(TensorSpec("p/q:0", "float32", None), TensorSpec("Köln", "string", (2,), encoding="image")),
    structure="dict",
    fixed_batch=8,
    name="serving_default",
    others=(Signature((TensorSpec("y", "int64", (1,)),), (), name="other", notes=("shown only",)),),
    parameters=12,
    writer="TensorFlow 2.21",
    weights="abc",
    examples={"records": (Feature("age", "int64", (1,)), Feature("tags", "string", None, False, num_columns=3))},
    notes=("first", "second"),
)


def test_a_full_signature_comes_back_as_it_was() -> None:
    assert from_json(json.loads(json.dumps(to_json(SIGNATURE)))) == SIGNATURE


def test_every_field_was_tried() -> None:
    bare = Signature((), ())
    assert [each.name for each in fields(Signature) if getattr(SIGNATURE, each.name) == getattr(bare, each.name)] == []


def test_a_bare_signature_comes_back_as_it_was() -> None:
    assert from_json(json.loads(json.dumps(to_json(Signature((), ()))))) == Signature((), ())
