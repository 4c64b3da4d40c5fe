"""An input whose elements are asked for one by one, who takes its predictions, and what was warned of meanwhile."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf


class Warnings(logging.Handler):
    """What the doorway warns of."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(record.getMessage())


def is_handed_over() -> bool:
    return any(thread.name == "estimator-input" for thread in threading.enumerate())


class Requests:
    """An input that gives batches of growing numbers; from some time on only when one is asked for, and a bad one."""

    def __init__(self, images: Any) -> None:
        self._images = images
        self.tokens: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.is_gated = False
        self.rows = self.rows_before_bad = 0

    def batches(self) -> Any:
        for size in itertools.cycle([1, 17, 64, 3]):
            token = self.tokens.get() if self.is_gated else ""
            numbers = np.arange(self.rows, self.rows + size)
            if token == "bad":
                self.rows_before_bad = self.rows
                yield self._images[:1], np.array([-1])
                continue
            yield self._images[numbers % len(self._images)], numbers
            self.rows += size

    def input_fn(self) -> Any:
        signature = (tf.TensorSpec((None, 8, 8), tf.float32), tf.TensorSpec((None,), tf.int64))
        dataset = tf.data.Dataset.from_generator(self.batches, output_signature=signature).map(self._more)
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        return {**iterator.get_next(), "times": 3.0}

    def _more(self, image: Any, number: Any) -> Any:
        lengths = tf.cast(tf.maximum(number, 0) % 3, tf.int64)
        return {
            "nested": {"image": image},
            "number": number,
            "sparse": tf.sparse.from_dense(tf.one_hot(number % 4, 4) * tf.cast(number[:, None], tf.float32)),
            "ragged": tf.RaggedTensor.from_row_lengths(tf.ones(tf.reduce_sum(lengths), tf.int64), lengths),
            "text": tf.strings.as_string(number),
        }


class Taker(threading.Thread):
    """Takes predictions and says how many, and how it ended: what waits for input must not hold up the test."""

    def __init__(self, predictions: Any, check: Callable[[int, Any], None]) -> None:
        super().__init__(daemon=True)
        self._predictions = predictions
        self._check = check
        self._is_handed_over = False
        self.count = 0
        self.ended = ""

    def run(self) -> None:
        try:
            for row in self._predictions:
                self._check(self.count, row)
                self.count += 1
                self._is_handed_over = self._is_handed_over or is_handed_over()
                if not self._is_handed_over:
                    time.sleep(0.001)  # leaves the cores to the processes that load
        except Exception as error:
            self.ended = type(error).__name__

    def reaches(self, count: int, seconds: float = 60.0) -> bool:
        until = time.monotonic() + seconds
        while self.count < count and not self.ended and time.monotonic() < until:
            time.sleep(0.01)
        return self.count >= count

    def rests(self) -> int:
        """The count when it has not grown for a while."""
        before = -1
        while before != self.count:
            before = self.count
            time.sleep(0.5)
        return before
