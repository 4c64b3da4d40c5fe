"""Prediction on several devices: this process begins, and replica processes take over if the work lasts long.

Starting a process takes seconds, so this process begins to predict at once. If there is more to do, replicas load at
the same time. When they are ready, this process only reads the input for them.
"""

from __future__ import annotations

import atexit
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from penstock.core.records import Device
from penstock.estimator.calling import LOG
from penstock.estimator.likeness import Reference
from penstock.estimator.model_function import ModelFunction
from penstock.estimator.own_graph import OwnGraph

if TYPE_CHECKING:
    from penstock.estimator.replicas import Replicas

PATIENCE_S = 2.0
"""How long this process predicts before it considers starting replicas."""
_SAMPLES = 3
WORTH_IT = 0.6
"""Reading an element may take at most this share of the time to predict it here: else more devices would only wait."""


def predict_on_all(
    own: OwnGraph, function: ModelFunction, devices: list[Device], threads: int, *, is_asked_for: bool
) -> Iterator[Any]:
    """The predictions of every element, in order. This process begins, and then a replica on each device goes on."""
    run = own.start()
    spent, patience, count = 0.0, PATIENCE_S, 0
    replicas: Replicas | None = None
    with ExitStack() as stack:
        while replicas is None or not replicas.is_ready:
            began = time.perf_counter()
            predictions = run()
            spent += time.perf_counter() - began
            count += 1
            if predictions is None:
                return
            yield predictions
            if replicas is not None or spent <= patience:
                continue
            if own.calls_python and not is_asked_for:
                _say_alone()
                patience = math.inf
                continue
            patience = 4 * spent  # considered again later, if it is not worth it now
            timed = _TimedReading(own)
            yield from timed.predictions()
            if timed.is_short_beside(spent / count):
                replicas = _start_replicas(own, function, devices, threads, timed.element, spent / count)
                stack.callback(_closer(replicas, own))
        yield from _predict_over(own, replicas)


def _start_replicas(
    own: OwnGraph, function: ModelFunction, devices: list[Device], threads: int, element: list[Any], seconds: float
) -> Replicas:
    # It is imported only when it is needed: it depends on every runtime, so its import takes long.
    from penstock.estimator.replicas import Replicas, Sample

    reference = Reference(own.predict_element(element), own.predict_element(element))
    # The checkpoint that this process restored: another may be the newest by now.
    portable = replace(function, checkpoint=own.checkpoint, config=function.called.config.portable())
    return Replicas(portable, own.features, devices, threads, Sample(element, reference, seconds))


def _predict_over(own: OwnGraph, replicas: Replicas) -> Iterator[Any]:
    from penstock.estimator.replicas import ElementReader

    reader = ElementReader(own.element_reader(), replicas.most_elements, replicas.most_ahead)
    with closing(reader):
        reader.start()
        while reader.wait():
            if replicas.is_ready:
                yield from replicas.predict(reader, own.predict_element)
            elif bundle := reader.take(1):
                yield from map(own.predict_element, bundle.elements)
                reader.finish(bundle.weight)


def _say_alone() -> None:
    LOG.warning(
        "one device predicts, in this process: input_fn calls Python code, which may wait for predictions before it "
        "gives more; where it does not, RunConfig(devices='all') lets every device read ahead"
    )


def _closer(replicas: Replicas, own: OwnGraph) -> Callable[[], None]:
    """A function that ends the processes. They also end if the interpreter ends before all predictions are taken."""

    def close_at_exit() -> None:
        replicas.close()
        own.close()

    def close() -> None:
        if not replicas.is_closed:  # at the very end of the interpreter, `atexit` does not exist any more
            atexit.unregister(close_at_exit)
            replicas.close()

    atexit.register(close_at_exit)
    return close


class _TimedReading:
    """Measures how long reading takes: a few elements are read and predicted in separate steps."""

    def __init__(self, own: OwnGraph) -> None:
        self._own = own
        self._seconds: list[float] = []
        self.element: list[Any] = []

    def predictions(self) -> Iterator[Any]:
        read = self._own.element_reader()
        for _ in range(_SAMPLES):
            began = time.perf_counter()
            element = read()
            self._seconds.append(time.perf_counter() - began)
            if element is None:
                return
            self.element = element
            yield self._own.predict_element(element)

    def is_short_beside(self, seconds: float) -> bool:
        """Whether reading is so fast that several devices would be busy, if each takes `seconds` for an element."""
        return bool(self.element) and median(self._seconds) < WORTH_IT * seconds
