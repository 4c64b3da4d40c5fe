"""Roles of columns: classes, vocabularies, weights."""

from datetime import date, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.job import Job
from penstock.core.records import Binding
from penstock.core.shuffling import split_by_class
from penstock.errors import InputError
from penstock.pool.loading import load_batches
from penstock.sources.catalog import open_files
from penstock.sources.python.memory import InMemory
from penstock.training.roles import (
    CodedLabels,
    find_column,
    in_role,
    scan_classes,
    target_binding,
    weight_binding,
    with_folders,
)

NAMES = pa.array(["dog", "cat", None, "dog", "owl", "cat", "dog"])


def table() -> InMemory:
    return InMemory(
        {
            "name": NAMES,
            "digit": np.array([3, 1, 1, 3, 9, 1, 3]),
            "price": np.linspace(0, 1, 7),
            "vector": np.zeros((7, 2)),
        }
    )


def test_classes_are_in_ascending_order_and_a_missing_label_is_in_none() -> None:
    classes = scan_classes(table(), ["name"])["name"]
    assert classes.values == classes.vocabulary == ("cat", "dog", "owl")
    assert classes.counts.tolist() == [2, 3, 1]
    assert classes.codes.tolist() == [1, 0, -1, 1, 2, 0, 1]


def test_whole_numbers_are_classes_without_a_vocabulary() -> None:
    classes = scan_classes(table(), ["digit"])["digit"]
    assert classes.values == (1, 3, 9)
    assert classes.vocabulary is None
    assert classes.balanced_weights() == {1: 7 / 9, 3: 7 / 9, 9: 7 / 3}


def test_balanced_weights_of_text_are_by_the_numbers_that_labels_become() -> None:
    assert scan_classes(table(), ["name"])["name"].balanced_weights() == {0: 1.0, 1: pytest.approx(2 / 3), 2: 2.0}


def test_balanced_weights_count_only_the_rows_that_are_given() -> None:
    classes = scan_classes(table(), ["digit"])["digit"]
    assert classes.balanced_weights(np.array([0, 1, 3])) == {1: 3 / 2, 3: 3 / 4}


def test_classes_that_a_split_lacks_are_named() -> None:
    classes = scan_classes(table(), ["digit"])["digit"]
    _, held_out = split_by_class(classes.codes, 0.3, seed=1)
    assert classes.missing_in(held_out.numbers(np.arange(held_out.count))) == ["9"]


def test_whole_numbers_that_are_floats_are_classes() -> None:
    source = InMemory({"grade": pa.array([1.0, None, float("nan"), 0.0, 1.0])})
    classes = scan_classes(source, ["grade"])["grade"]
    assert classes.values == (0, 1)
    assert classes.codes.tolist() == [1, -1, -1, 0, 1]
    assert classes.balanced_weights() == {0: 1.5, 1: 0.75}


@pytest.mark.parametrize("column", ["price", "vector"])
def test_fractions_and_vectors_are_no_classes(column: str) -> None:
    with pytest.raises(InputError, match="no classes"):
        scan_classes(table(), ["name", column])


def test_labels_of_text_become_numbers_and_an_unknown_one_fails_its_row() -> None:
    source = CodedLabels(table(), "name", ("cat", "dog"))
    binding = target_binding(source, "name")
    assert (binding.input, binding.dtype, binding.shape) == ("target:", "int64", ())
    (span,) = source.divide(10)
    (batch,) = load_batches(Job(source, (binding,), (), 7), span)
    assert batch.arrays["target:"].tolist() == [1, 0, 0, 1, 0, 0, 1]
    reasons = {failure.row: failure.reason for failure in batch.failures}
    assert set(reasons) == {2, 4}
    assert "'owl', which is not among the 2 known labels" in reasons[4]
    assert reasons[2].endswith("is null")


def test_targets_are_numbers_of_any_shape_and_weights_one_number() -> None:
    assert target_binding(table(), "vector", "out") == Binding("target:out", ("vector",), "float32", (2,))
    assert weight_binding(table(), "price") == Binding("weight:", ("price",), "float32", ())
    with pytest.raises(InputError, match="one number for each row"):
        weight_binding(table(), "vector")


def test_a_missing_label_column_names_those_that_are_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="allowed: name, digit, price, vector"):
        find_column(table(), "labels", "--label")
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats" / "1.jpg").write_bytes(b"x")
    photos = open_files([str(tmp_path)])
    with pytest.raises(InputError, match="hint: --label @folder"):
        find_column(photos, "labels", "--label")
    with pytest.raises(InputError, match="neither numbers nor text"):
        find_column(photos, "image", "--label")
    assert scan_classes(with_folders(photos, ["@folder"]), ["@folder"])["@folder"].values == ("cats",)


@pytest.mark.parametrize(("values", "kind"), [([date(2026, 1, 2)], "date32"), ([datetime(2026, 1, 2, 3)], "timestamp")])
def test_dates_are_no_labels_and_are_called_dates(values: list[date], kind: str) -> None:
    with pytest.raises(InputError, match=rf"--label day, of {kind}(.|\n)*hint: write dates and times as numbers"):
        find_column(InMemory({"day": pa.array(values)}), "day", "--label")


def test_names_say_the_role_also_of_what_a_mask_belongs_to() -> None:
    mask = Binding("mask", (), "bool", (None,), mask_of="x")
    (bound,) = in_role("input:", [mask])
    assert (bound.input, bound.mask_of) == ("input:mask", "input:x")
