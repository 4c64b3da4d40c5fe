"""Classes and functions of a model's own, and how a framework says that it misses one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.errors import ModelError
from penstock.runtimes.keras.custom_objects import import_custom_objects, missing_object


def test_classes_and_functions_of_a_module_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_objects_a.py").write_text(
        "from collections import OrderedDict\nfrom math import sqrt\nSIZE = 3\n"
        "class Twice: pass\ndef squash(x): return x\ndef _hidden(): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert set(import_custom_objects(["own_objects_a"])) == {"Twice", "squash"}


def test_a_module_that_does_not_import_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_objects_b.py").write_text("raise RuntimeError('not today')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelError, match="own_objects_b: RuntimeError: not today"):
        import_custom_objects(["own_objects_b"])
    assert "own_objects_b" not in sys.modules


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Unknown layer: 'Twice'. Please ensure you are using a `keras.utils.custom_object_scope`", "Twice"),
        ("Unknown activation function: squash. Please ensure", "squash"),
        ("Could not locate class 'Twice'. Make sure custom classes are decorated", "Twice"),
        ("Could not interpret activation function identifier: squash", "squash"),
        ("Could not locate function 'squash'. Make sure", "squash"),
        ("Unknown layer: 'shop>Twice'", "Twice"),
        ("Shape mismatch in layer #3", None),
    ],
)
def test_what_a_framework_misses_is_read_from_its_words(text: str, name: str | None) -> None:
    assert missing_object(ValueError(text)) == name
