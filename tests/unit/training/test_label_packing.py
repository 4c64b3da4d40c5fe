"""Labels on their way into a step."""

import numpy as np
import pytest

from penstock.core.records import Signature, TensorSpec
from penstock.core.training import TrainBatch
from penstock.errors import InputError
from penstock.training.label_packing import ClassWeights, check_num_classes


def test_rows_are_weighted_by_their_class_whatever_numbers_the_classes_have() -> None:
    labels = np.array([-1, 7, 1_000_000_000, 3])
    batch = TrainBatch(4, {}, {"": labels}, {"": np.array([1, 2, 3, 4], np.float32)}, np.arange(4))
    weighted = ClassWeights({-1: 0.5, 7: 2.0, 1_000_000_000: 4.0})(batch)
    assert weighted.weights[""].tolist() == [0.5, 4.0, 12.0, 4.0], "another class counts 1"
    assert weighted.weights[""].dtype == np.float32


def test_more_classes_than_the_output_has_values_are_refused() -> None:
    signature = Signature((), (TensorSpec("kind", "float32", (3,)),))
    check_num_classes({"": 3}, signature)
    with pytest.raises(InputError, match="more classes than the model tells apart") as caught:
        check_num_classes({"": 100_000}, signature)
    assert caught.value.received == "100,000 classes, an output of 3 values"
    check_num_classes({"": 2}, Signature((), (TensorSpec("is", "float32", (1,)),)))
    check_num_classes({"": 9}, Signature((), (TensorSpec("any", "float32", None),)))


def test_every_output_has_its_own_number_of_classes() -> None:
    signature = Signature((), (TensorSpec("kind", "float32", (5,)), TensorSpec("size", "float32", (3,))))
    check_num_classes({"kind": 5, "size": 3}, signature)
    check_num_classes({"kind": 5}, signature)
    with pytest.raises(InputError, match="5 classes, an output of 3 values"):
        check_num_classes({"kind": 5, "size": 5}, signature)
