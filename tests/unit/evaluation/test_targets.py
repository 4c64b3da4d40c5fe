"""Labels and weights are read from columns as people have them."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.records import TensorSpec
from penstock.errors import InputError, UsageError
from penstock.evaluation.targets import Targets, classes_beside, label_columns


def test_text_becomes_classes_and_a_null_is_a_row_without_a_label() -> None:
    targets = Targets({"out": "kind"}, classes=("cat", "dog"))
    read, bad = targets.read({"kind": pa.array(["dog", None, "cat"]).dictionary_encode()})
    assert read["label:out"].tolist() == [1, 0, 0]
    assert bad == {1: "the label 'kind' is null"}


def test_numbers_lists_and_weights_are_read() -> None:
    specs = {"y": TensorSpec("y", "float64", (2,), varies=True)}
    targets = Targets({"out": "y"}, "w", specs=specs)
    read, bad = targets.read({"y": pa.array([[1.0, 2.0], [3.0, 4.0], [5.0]]), "w": pa.array([1, 2, None])})
    assert read["label:out"][:2].tolist() == [[1, 2], [3, 4]]
    assert read["weight:"].tolist() == [1, 2, 0]
    assert read["weight:"].dtype == np.float32
    assert list(bad) == [2]


@pytest.mark.parametrize(
    ("column", "classes", "problem"),
    [
        (pa.array(["dgo"]), ("cat", "dog"), "did you mean 'dog'"),
        (pa.array(["cat"]), (), "--labels FILE"),
        (pa.array([["cat"]]), ("cat",), "lists of text"),
        (pa.array([date(2026, 1, 2)]), (), r"column 'kind' of date32\[day\]"),
    ],
)
def test_labels_that_cannot_be_read_say_what_to_do(column: pa.Array, classes: tuple[str, ...], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        Targets({"out": "kind"}, classes=classes).read({"kind": column})


@pytest.mark.parametrize(
    "column", [pa.array(["1", "2"]), pa.array([[1.0], [2.0]]), pa.array([0, 1], pa.timestamp("s"))]
)
def test_a_weight_is_one_number(column: pa.Array) -> None:
    with pytest.raises(InputError, match="a weight is one number for each row"):
        Targets({}, "w").read({"w": column})


def test_every_output_has_names_of_its_own() -> None:
    targets = Targets({"kind": "k", "size": "s"}, classes={"kind": ("cat", "dog"), "size": ("dog", "cat")})
    read, bad = targets.read({"k": pa.array(["dog", "cat"]), "s": pa.array(["dog", "cat"])})
    assert (read["label:kind"].tolist(), read["label:size"].tolist(), bad) == ([1, 0], [0, 1], {})
    with pytest.raises(InputError, match="the order of the classes is not known"):
        Targets({"kind": "k"}, classes={"size": ("dog", "cat")}).read({"k": pa.array(["dog"])})


def test_labels_of_bytes_are_the_same_classes_as_in_training() -> None:
    labels = pa.array([b"dog", b"\xff", None, b"cat"])
    read, bad = Targets({"out": "kind"}, classes=("cat", "dog", "\\xff")).read({"kind": labels})
    assert read["label:out"].tolist() == [1, 2, 0, 0]
    assert list(bad) == [2]


@pytest.mark.parametrize(
    ("outputs", "label", "columns"),
    [
        (("out",), {"": "y"}, {"out": "y"}),
        ((), {"": "y"}, {"": "y"}),
        ((), {"out": "y"}, {"out": "y"}),
        (("zz", "aa"), {"aa": "a", "zz": "z"}, {"zz": "z", "aa": "a"}),
        (("zz", "aa"), {"aa": "a"}, {"aa": "a"}),
    ],
)
def test_every_output_has_a_column_of_labels(
    outputs: tuple[str, ...], label: dict[str, str], columns: dict[str, str]
) -> None:
    found = label_columns(outputs, label)
    assert found == columns
    assert list(found) == list(columns)


@pytest.mark.parametrize(
    ("label", "problem"),
    [({"": "y"}, "--label zz=COLUMN --label aa=COLUMN"), ({"bb": "y"}, r"--label bb=y\nallowed: zz, aa")],
)
def test_a_column_of_labels_names_an_output_of_the_model(label: dict[str, str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        label_columns(("zz", "aa"), label)


def test_classes_are_found_beside_the_model(tmp_path: Path) -> None:
    model = str(tmp_path / "model.keras")
    assert classes_beside(model) == classes_beside(None) == ()
    (tmp_path / "labels.json").write_text('["cat", "dog"]', encoding="utf-8")
    assert classes_beside(model) == ("cat", "dog")
    (tmp_path / "labels.json").write_text('{"kind": ["cat", "dog"], "size": ["big"]}', encoding="utf-8")
    assert classes_beside(model) == {"kind": ("cat", "dog"), "size": ("big",)}
    (tmp_path / "labels.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match=r"labels\.json"):
        classes_beside(model)
