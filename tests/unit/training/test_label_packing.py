"""Labels on their way into a step."""

import pytest

from penstock.core.records import Signature, TensorSpec
from penstock.errors import InputError
from penstock.training.label_packing import check_num_classes


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
