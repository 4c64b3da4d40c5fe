"""Work that lasts is handed over to replica processes, one for each device, while this process goes on predicting.

Starting a process takes seconds. So this process begins at once; when it is clear that there is more to do, the others
are started beside it, and when they are ready this process only reads the input for them.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from statistics import median
from typing import Any

import cloudpickle
import numpy as np

from penstock import registry
from penstock.core.records import STRING, Binding, Device, Job, ModelFile, Placement, Span
from penstock.core.stopping import StopFlag
from penstock.engines.local import LocalEngine
from penstock.errors import ModelError, PenstockError
from penstock.estimator.calling import LOG
from penstock.estimator.elements import ANSWERS, COLUMN, ElementFiles, unpack_row
from penstock.estimator.model_function import ModelFunction
from penstock.estimator.own_graph import OwnGraph
from penstock.opening import log_without_folder
from penstock.pool.supervisor import Launch

PATIENCE_S = 2.0
"""So long this process predicts alone."""
_SAMPLES = 3
WORTH_IT = 0.6
"""Reading an element may take this share of predicting it here: beyond that, more devices would only wait."""
_BUNDLE_S = 0.05
_BUNDLE_BYTES = 16 << 20
_MOST_IN_BUNDLE = 64
_GPU_LANES = 2


def predict_on_all(
    own: OwnGraph, function: ModelFunction, devices: list[Device], threads: int, *, is_verbose: bool = False
) -> Iterator[Any]:
    """The predictions of every element, in order: by this process first, by one process for each device then."""
    with ExitStack() as stack:
        run = own.start()
        spent, patience, count = 0.0, PATIENCE_S, 0
        helpers: Helpers | None = None
        while helpers is None or not helpers.is_ready:
            began = time.perf_counter()
            predictions = run()
            spent += time.perf_counter() - began
            count += 1
            if predictions is None:
                return
            yield predictions
            if helpers is None and spent > patience:
                patience = 4 * spent  # looked at again later, if it is not worth it now
                look = _Look(own, spent / count)
                yield from look.predictions()
                if look.is_worth_it:
                    whole = replace(function, features=own.features, config=function.called.config.portable())
                    helpers = Helpers(whole, devices, threads, look.element, is_verbose)
                    stack.callback(helpers.close)
        yield from helpers.predict(_bundles(own.element_reader(), look.elements_in_bundle))


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

    @property
    def elements_in_bundle(self) -> int:
        """Small elements travel together: a message for each would take longer than predicting it."""
        num_bytes = sum(np.asarray(value).nbytes for value in self.element)
        fitting = max(1, _BUNDLE_BYTES // max(1, num_bytes))
        return int(min(fitting, _MOST_IN_BUNDLE, 1 + _BUNDLE_S // max(self._seconds, 1e-6)))


def _bundles(read: Callable[[], list[Any] | None], size: int) -> Iterator[list[Any]]:
    bundle: list[Any] = []
    while (element := read()) is not None:
        bundle.append(element)
        if len(bundle) == size:
            yield bundle
            bundle = []
    if bundle:
        yield bundle


class Helpers:
    """Replica processes that load in the background.

    Args:
        function: The `model_fn`, with the structure of the features.
        devices: One for each process.
        threads: CPU threads of each.
        sample: An element to warm up with.
        is_verbose: Whether what they write goes to the terminal.
    """

    def __init__(
        self, function: ModelFunction, devices: list[Device], threads: int, sample: list[Any], is_verbose: bool
    ) -> None:
        self._function = function
        self._placement = Placement(tuple(devices), loaders=1, lanes=_GPU_LANES if devices[0].kind == "gpu" else 1)
        self._threads = threads
        self._is_verbose = is_verbose
        self._files = ElementFiles()
        self._sample = self._files.add([sample])
        self._stop = StopFlag()
        self._engine: LocalEngine | None = None
        self._resources = ExitStack()
        self.is_ready = False
        self._thread = threading.Thread(target=self._prepare, name="estimator-replicas", daemon=True)
        self._thread.start()

    def predict(self, bundles: Iterator[list[Any]]) -> Iterator[Any]:
        """The predictions of every element of every bundle, in order."""
        assert self._engine is not None
        self._thread.join()
        spans = self._numbered(self._files.add(bundle) for bundle in bundles)
        for result in self._engine.run(spans):
            for failure in result.failures:
                raise ModelError("the model rejects an element of input_fn", received=failure.reason)
            yield from unpack_row(result.columns[ANSWERS])

    def close(self) -> None:
        """End the processes, also while they load."""
        self._stop.signal_number = signal.SIGINT
        self._thread.join()
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        self._resources.close()
        self._files.close()

    def _numbered(self, spans: Iterator[Span]) -> Iterator[Span]:
        for index, span in enumerate(spans):
            yield replace(span, index=index, start=index)

    def _prepare(self) -> None:
        try:
            log = self._resources.enter_context(log_without_folder(self._is_verbose))
            payload = cloudpickle.dumps(self._function)
            file = ModelFile("estimator", self._function.name, "", ("tf_keras",), payload=payload)
            launch = Launch(registry.RUNTIMES["tf_keras"], file, self._threads, log, is_verbose=self._is_verbose)
            self._engine = LocalEngine(launch, self._placement, lambda *_: None, self._stop)
            self._engine.load()
            job = Job(self._files, (Binding(COLUMN, (COLUMN,), STRING, ()),), (), 1)
            self._engine.prepare(job, self._placement, self._sample)
            self.is_ready = True
        except Exception as error:
            if self._stop.is_raised:
                return
            # This process can do it all, only slower: better than to lose what was predicted.
            reason = error.received or error.problem if isinstance(error, PenstockError) else repr(error)
            LOG.warning("only this process predicts, because no other could be started: %s", reason)
