"""Elements on replica processes: feeds the local engine, which starts while this process still predicts."""

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from penstock.core.job import Job
from penstock.core.messages import Measure
from penstock.core.protocols import Tunable
from penstock.core.records import STRING, Binding, Device, ModelFile, Placement, Result, Span
from penstock.core.stopping import StopFlag
from penstock.errors import PenstockError, WorkersDied, one_line
from penstock.estimator.calling import LOG
from penstock.estimator.elements import COLUMN, ElementModel, ElementSource, answers_of, location_of, open_bundle
from penstock.estimator.likeness import Reference, flatten
from penstock.estimator.model_function import ModelFunction
from penstock.estimator.opening import RUNTIMES, pack
from penstock.jobs.bring_up import open_engine
from penstock.jobs.open import log_without_folder
from penstock.jobs.placement import Setting
from penstock.jobs.run_context import RunContext

MOST_BYTES = 16 << 20
"""The most bytes of a bundle. A larger element is a bundle of its own."""
_MOST_IN_BUNDLE = 64
_BUNDLE_S = 0.05
_AHEAD = {"cpu": 4, "gpu": 6}
"""How many bundles may be read ahead for each replica."""
_LOADERS = {"cpu": 1, "gpu": 2}
_LANES = {"cpu": 1, "gpu": 2}


class Bundle(NamedTuple):
    """Elements that are sent together, and their weight."""

    elements: list[list[Any]]
    weight: int


class ElementReader:
    """Reads elements in a thread, so that a slow input does not delay elements that were read before.

    The weight of an element is its number of bytes, but at least 1/`most_elements` of a bundle and at most a whole one.
    A bundle is full when its elements weigh `MOST_BYTES`.

    Args:
        read: Reads the next element; None at the end of the input.
        most_elements: How many elements a bundle has at most.
        most_ahead: How many bundles may be read ahead of the last finished one.
    """

    def __init__(self, read: Callable[[], list[Any] | None], most_elements: int, most_ahead: int) -> None:
        self._read = read
        self._least_weight = -(-MOST_BYTES // most_elements)
        self._most_ahead = most_ahead * MOST_BYTES
        self._changed = threading.Condition()
        self._waiting: deque[tuple[list[Any], int]] = deque()
        self._ahead = 0
        self._has_ended = self._is_closed = False
        self._error: BaseException | None = None

    def start(self) -> None:
        threading.Thread(target=self._read_all, name="estimator-input", daemon=True).start()

    def wait(self) -> bool:
        """Wait for an element; False at the end of the input.

        Raises:
            BaseException: The error of the input, after all elements before it were taken.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._has_ended)
            if not self._waiting and self._error is not None:
                raise self._error
            return bool(self._waiting)

    def take(self, replicas: int) -> Bundle | None:
        """A bundle of elements that were read; None if there are none now. `replicas` share the elements evenly."""
        with self._changed:
            most = -(-len(self._waiting) // replicas)
            elements: list[list[Any]] = []
            weight = 0
            while len(elements) < most and weight < MOST_BYTES:
                element, added = self._waiting.popleft()
                elements.append(element)
                weight += added
            return Bundle(elements, weight) if elements else None

    def finish(self, weight: int) -> None:
        """Note that the predictions of a bundle were taken: then more elements may be read."""
        with self._changed:
            self._ahead -= weight
            self._changed.notify_all()

    def close(self) -> None:
        """Stop reading. An element that is being read is dropped."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _read_all(self) -> None:
        try:
            while self._has_room() and (element := self._read()) is not None:
                self._add(element)
        except BaseException as error:
            self._error = error
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _has_room(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._ahead < self._most_ahead)
            return not self._is_closed

    def _add(self, element: list[Any]) -> None:
        weight = min(MOST_BYTES, max(num_bytes(element), self._least_weight))
        with self._changed:
            self._waiting.append((element, weight))
            self._ahead += weight
            self._changed.notify_all()


def num_bytes(element: list[Any]) -> int:
    """The memory of an element, with the content of its strings."""
    return sum(_size(np.asarray(value)) for value in element)


def _size(array: Any) -> int:
    if array.dtype != object:
        return int(array.nbytes)
    return int(array.nbytes + sum(map(len, array.ravel().tolist())))


class Sample(NamedTuple):
    """An element, this process's predictions for it, and how long they take."""

    element: list[Any]
    reference: Reference
    seconds: float

    def elements_in_bundle(self) -> int:
        """How many elements are sent together: a message for each small one would take longer than predicting it."""
        answers = list(flatten(self.reference.once).values())
        largest = max(num_bytes(self.element), num_bytes(answers), 1)
        return int(min(max(1, MOST_BYTES // largest), _MOST_IN_BUNDLE, 1 + _BUNDLE_S // max(self.seconds, 1e-6)))


class DeviceTrial:
    """The devices to try: first all at once, then one by one, to find the device that fails and leave it out.

    With fewer than two devices, replicas are not worth it. If a single replica fails on two devices, the model is at
    fault.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = list(devices)
        self._is_one_by_one = False
        self._running = 1
        self._failed_alone = 0

    def steps(self) -> Iterator[int]:
        """After the first replica is ready: the numbers of replicas to run, one after the other."""
        for count in range(2, len(self.devices) + 1) if self._is_one_by_one else [len(self.devices)]:
            self._running = count
            yield count

    def next_after_failure(self) -> tuple[bool, Device | None]:
        """Whether another attempt is worth it, and the device that it leaves out, where one is known to fail."""
        running, self._running = self._running, 1
        self._failed_alone += running == 1
        if len(self.devices) <= 2 or self._failed_alone > 1:
            return False, None
        if running > 1 and not self._is_one_by_one:
            self._is_one_by_one = True
            return True, None
        return True, self.devices.pop(running - 1)


class Replicas:
    """One replica for each device. They load in the background; if they cannot predict, this process goes on alone.

    Args:
        function: The `model_fn`.
        features: The structure of the features, as specs of tensors.
        devices: The device of each replica.
        threads: The CPU threads of each.
        sample: An element for which each replica must make the same predictions as this process, before it is used.
    """

    def __init__(
        self, function: ModelFunction, features: Any, devices: list[Device], threads: int, sample: Sample
    ) -> None:
        kind = devices[0].kind
        self.most_elements = sample.elements_in_bundle()
        self.is_ready = self.is_closed = False
        self._threads = threads
        self._kind = kind
        self._trial = DeviceTrial(devices)
        self._source = ElementSource()
        self._sample = self._source.add([sample.element])
        reference = self._source.add(sample.reference)
        self._model = ElementModel(function, features, location_of(self._sample), location_of(reference))
        self._under_way: deque[tuple[Span, int]] = deque()
        self._stop = StopFlag()
        self._engine: Tunable | None = None
        self._held = ExitStack()
        self._thread = threading.Thread(target=self._bring_up, name="estimator-replicas", daemon=True)
        self._thread.start()

    @property
    def most_ahead(self) -> int:
        """How many bundles may be read ahead."""
        return _AHEAD[self._kind] * len(self._trial.devices)

    def predict(self, reader: ElementReader, predict_here: Callable[[list[Any]], Any]) -> Iterator[Any]:
        """The predictions of the elements that were read, in order.

        It ends when none is left, and does not wait for more: the input may itself wait for predictions.

        Args:
            reader: Gives the elements.
            predict_here: Predicts an element in this process. This is for an element that a replica rejects, so that
                the error is the same as on one device, and for all remaining ones if the replicas cannot go on.

        Raises:
            WorkersDied: Replicas died several times.
        """
        assert self._engine is not None
        results = self._engine.run(self._spans(reader))
        while (result := self._next(results)) is not None:
            span, weight = self._under_way.popleft()
            if result.failures:
                raise _died("replicas died at the same elements again and again", result.failures[0].reason)
            answers, problem = answers_of(result)
            yield from answers
            if problem:
                yield from map(predict_here, open_bundle(location_of(span))[len(answers) :])
            reader.finish(weight)
        while self._under_way:  # the engine has ended with an error
            span, weight = self._under_way.popleft()
            yield from map(predict_here, open_bundle(location_of(span)))
            self._source.release(span)
            reader.finish(weight)

    def close(self) -> None:
        """End the processes, also while they load."""
        if self.is_closed:
            return
        self.is_closed, self.is_ready = True, False
        self._stop.signal_number = signal.SIGTERM
        self._thread.join()
        self._held.close()
        self._source.close()

    def _spans(self, reader: ElementReader) -> Iterator[Span]:
        while bundle := reader.take(len(self._trial.devices)):
            span = self._source.add(bundle.elements)
            self._under_way.append((span, bundle.weight))
            yield span

    def _next(self, results: Iterator[Result]) -> Result | None:
        try:
            return next(results, None)
        except WorkersDied as error:
            raise _died(error.problem, error.received) from error
        except PenstockError as error:
            LOG.warning("from here on only this process predicts: %s", _in_words(error))
            self.is_ready = False
            self._held.close()
            return None

    def _bring_up(self) -> None:
        while not self.is_ready and not self.is_closed:
            try:
                self._attempt()
                self.is_ready = not self.is_closed
            except Exception as error:
                if self.is_closed:
                    return
                self._held.close()
                is_worth_it, left_out = self._trial.next_after_failure()
                if left_out is not None:
                    LOG.warning("%s takes no part: %s", left_out, _in_words(error))
                if not is_worth_it:
                    LOG.warning("only this process predicts: %s", _in_words(error))
                    return

    def _attempt(self) -> None:
        """Bring up a replica on each device of the trial."""
        placement = Placement(tuple(self._trial.devices), _LOADERS[self._kind], _LANES[self._kind])
        log = self._held.enter_context(log_without_folder(is_verbose=False))
        payload = pack(self._model, self._model.function.checkpoint)
        file = ModelFile("estimator", self._model.function.name, "", RUNTIMES, payload=payload)
        setting = Setting(RUNTIMES[0], file, self._threads, placement)
        self._engine, _ = open_engine(setting, RunContext(log, self._stop))
        self._held.callback(self._engine.close)
        self._engine.load()
        job = Job(self._source, (Binding(COLUMN, (COLUMN,), STRING, ()),), (), 1)
        self._engine.prepare(job, placement, self._sample)
        for replicas in self._trial.steps():
            # When this returns, so many replicas are started and ready. Their speed does not matter.
            self._engine.measure(Measure(1, 0.0, 1), replicas, self._stop)


def _died(problem: str, received: str | None) -> WorkersDied:
    return WorkersDied(problem, received=received, hint="let input_fn give smaller batches, which need less memory")


def _in_words(error: Exception) -> str:
    if isinstance(error, PenstockError):
        return ": ".join(filter(None, (error.problem, error.received, error.hint)))
    return one_line(error)
