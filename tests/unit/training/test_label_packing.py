"""Labels on their way into a step."""

import numpy as np

from penstock.core.training import TrainBatch
from penstock.training.label_packing import ClassWeights


def test_rows_are_weighted_by_their_class_whatever_numbers_the_classes_have() -> None:
    labels = np.array([-1, 7, 1_000_000_000, 3])
    batch = TrainBatch(4, {}, {"": labels}, {"": np.array([1, 2, 3, 4], np.float32)}, np.arange(4))
    weighted = ClassWeights({-1: 0.5, 7: 2.0, 1_000_000_000: 4.0})(batch)
    assert weighted.weights[""].tolist() == [0.5, 4.0, 12.0, 4.0], "another class counts 1"
    assert weighted.weights[""].dtype == np.float32
