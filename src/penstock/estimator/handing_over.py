"""Work that lasts is handed over to replica processes, one for each device, while this process goes on predicting.

Starting a process takes seconds. So this process begins at once; when it is clear that there is more to do, the others
are started beside it, and when they are ready this process only reads the input for them. It stays the one that
decides: the others must predict as it does, and an element that they reject is predicted here.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from penstock.core.records import Device
from penstock.estimator.bundles import MOST_BYTES, Bundles, num_bytes
from penstock.estimator.calling import LOG
from penstock.estimator.likeness import Reference, flatten
from penstock.estimator.model_function import ModelFunction
from penstock.estimator.own_graph import OwnGraph

if TYPE_CHECKING:
    from penstock.estimator.replicas import Replicas

PATIENCE_S = 2.0
"""So long this process predicts alone."""
_SAMPLES = 3
WORTH_IT = 0.6
"""Reading an element may take this share of predicting it here: beyond that, more devices would only wait."""
_BUNDLE_S = 0.05
_MOST_IN_BUNDLE = 64


def predict_on_all(
    own: OwnGraph, function: ModelFunction, devices: list[Device], threads: int, *, is_asked_for: bool
) -> Iterator[Any]:
    """The predictions of every element, in order: by this process first, by one process for each device then."""
    with ExitStack() as stack:
        run = own.start()
        spent, patience, count = 0.0, PATIENCE_S, 0
        replicas: Replicas | None = None
        while replicas is None or not replicas.are_ready:
            began = time.perf_counter()
            predictions = run()
            spent += time.perf_counter() - began
            count += 1
            if predictions is None:
                return
            yield predictions
            if replicas is None and spent > patience:
                patience = 4 * spent  # looked at again later, if it is not worth it now
                if own.calls_python and not is_asked_for:
                    _stay_alone()
                    while (predictions := run()) is not None:
                        yield predictions
                    return
                look = _Look(own, spent / count)
                yield from look.predictions()
                if look.is_worth_it:
                    # Not before it is needed: it knows every source and runtime, and takes long to import.
                    from penstock.estimator.replicas import Replicas

                    config = function.called.config.portable()
                    # The checkpoint that this process restored: another may be the newest by now.
                    whole = replace(function, features=own.features, checkpoint=own.checkpoint, config=config)
                    reference = look.reference()
                    size = look.elements_in_bundle(reference)
                    replicas = Replicas(whole, devices, threads, look.element, reference, size)
                    stack.callback(_closer(replicas, own))
        yield from _predict_over(own, replicas)


def _stay_alone() -> None:
    LOG.warning(
        "one device predicts, in this process: input_fn calls Python code, which may wait for predictions before it "
        "gives more; where it does not, RunConfig(devices='all') lets every device read ahead"
    )


def _closer(replicas: Replicas, own: OwnGraph) -> Any:
    """Ends the processes, also where the predictions are neither used up nor closed when the interpreter ends."""

    def close_at_exit() -> None:
        replicas.close()
        own.close()

    def close() -> None:
        if not replicas.is_closed:  # at the very end of the interpreter there is no `atexit` any more
            atexit.unregister(close_at_exit)
            replicas.close()

    atexit.register(close_at_exit)
    return close


def _predict_over(own: OwnGraph, replicas: Replicas) -> Iterator[Any]:
    bundles = replicas.bundles
    reader = threading.Thread(target=_read, args=(own, bundles), name="estimator-input", daemon=True)
    replicas.begin()
    reader.start()
    for bundle in bundles.in_order():
        answers = bundle.answers or []
        yield from answers
        if len(answers) < bundle.count:
            # A process rejected one, or no process is left. An error is this process's own, as before.
            for element in bundle.remaining():
                yield own.predict_element(element)
        if bundle.span is not None:
            replicas.files.release(bundle.span)


def _read(own: OwnGraph, bundles: Bundles) -> None:
    """The thread that reads: an input that waits holds nobody up who has work."""
    try:
        read = own.element_reader()
        while bundles.wait_for_room():
            element = read()
            if element is None:
                break
            bundles.add(element)
        bundles.end()
    except BaseException as error:
        bundles.end(error)


class _Look:
    """A few elements taken and predicted apart, to see what reading takes and what predicting does."""

    def __init__(self, own: OwnGraph, seconds: float) -> None:
        self._own = own
        self._seconds = seconds
        self._reading: list[float] = []
        self.element: list[Any] = []

    def predictions(self) -> Iterator[Any]:
        read = self._own.element_reader()
        for _ in range(_SAMPLES):
            began = time.perf_counter()
            element = read()
            self._reading.append(time.perf_counter() - began)
            if element is None:
                return
            self.element = element
            yield self._own.predict_element(element)

    @property
    def is_worth_it(self) -> bool:
        return bool(self.element) and median(self._reading) < WORTH_IT * self._seconds

    def reference(self) -> Reference:
        """What this process predicts for the last element, for others to be compared with."""
        return Reference(self._own.predict_element(self.element), self._own.predict_element(self.element))

    def elements_in_bundle(self, reference: Reference) -> int:
        """Small elements travel together: a message for each would take longer than predicting it."""
        largest = max(num_bytes(self.element), num_bytes(list(flatten(reference.once).values())), 1)
        return int(min(max(1, MOST_BYTES // largest), _MOST_IN_BUNDLE, 1 + _BUNDLE_S // max(self._seconds, 1e-6)))
