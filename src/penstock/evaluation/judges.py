"""Computes loss and metrics: in a metrics process for model files, in this process for a live model."""

from __future__ import annotations

import multiprocessing.connection
import sys
from collections.abc import Iterable, Mapping
from typing import IO, Any, Protocol

from penstock.core import kinds
from penstock.core.job import Job
from penstock.core.messages import Failed
from penstock.core.records import Array, ModelFile, RowFailure, Span
from penstock.errors import WorkersDied
from penstock.evaluation.compiled_metrics import declared_outputs, judged
from penstock.evaluation.metric_records import FoldShape, MetricRequest, MetricResults
from penstock.evaluation.metrics import Fold
from penstock.evaluation.metrics_messages import Add, Added, Begin, End, Open, Opened, Test
from penstock.evaluation.targets import Targets
from penstock.evaluation.testing import test_spans
from penstock.pool.devices.inventory import cpu_device, usable_cores
from penstock.pool.processes.supervisor import Launch, WorkerProcess
from penstock.pool.transfer.parcels import Mailbox
from penstock.runtimes.keras.backends import MODEL_KINDS, backend_for


class Judge(Protocol):
    """Loss and metrics of rows that come in order."""

    def open(self) -> Opened:
        """What is known before any row comes. Errors in the request or the compiled model are raised here."""
        ...

    def begin(self, shape: FoldShape) -> None: ...

    def add(self, columns: Mapping[str, Array]) -> None: ...

    def test(self, job: Job, spans: Iterable[Span], targets: Targets) -> list[RowFailure]: ...

    def finish(self) -> MetricResults: ...

    def close(self) -> None: ...


class JudgeHere:
    """The metrics of a live model, in this process."""

    def __init__(self, model: Any, request: MetricRequest) -> None:
        self._model = model
        self._request = request
        self._fold: Fold | None = None

    def open(self) -> Opened:
        outputs = declared_outputs(self._model)
        self._model, reason, notes = judged(self._model, self._request)
        return Opened(reason, notes, outputs)

    def begin(self, shape: FoldShape) -> None:
        self._fold = Fold(self._model, self._request, shape)

    def add(self, columns: Mapping[str, Array]) -> None:
        assert self._fold is not None
        self._fold.add(columns)

    def test(self, job: Job, spans: Iterable[Span], targets: Targets) -> list[RowFailure]:
        assert self._fold is not None
        return test_spans(self._fold, job, spans, targets)

    def finish(self) -> MetricResults:
        assert self._fold is not None
        return self._fold.finish()

    def close(self) -> None:
        pass


class JudgeProcess:
    """Starts the metrics process, which loads at once, and talks to it.

    Args:
        model: The model; None where none is known, and losses and metrics are given by name.
        request: What is measured.
        runtime: The runtime that predicts. If its framework is a backend of Keras, it also computes the metrics.
        log: Where the process writes.
        is_verbose: Whether all output of frameworks is shown.
    """

    def __init__(
        self, model: ModelFile | None, request: MetricRequest, runtime: str | None, log: IO[Any], *, is_verbose: bool
    ) -> None:
        known = model if model is not None and model.kind in MODEL_KINDS else None
        entry = kinds.runtime(backend_for(runtime))
        described = model or ModelFile("none", "", "", ())
        self._launch = Launch(entry.make(), described, usable_cores(), log, is_verbose=is_verbose)
        self._inbox = Mailbox.create()
        self._is_waiting = False
        self._process = WorkerProcess(
            "penstock.evaluation.metrics_process",
            (self._inbox.descriptor,),
            (self._inbox.descriptor,),
            self._launch.environment(cpu_device()),
            log,
        )
        self._process.send(Open(known, request, tuple(sys.path)))

    def open(self) -> Opened:
        answer = self._answer()
        assert isinstance(answer, Opened)
        return answer

    def begin(self, shape: FoldShape) -> None:
        self._process.send(Begin(shape))

    def add(self, columns: Mapping[str, Array]) -> None:
        """Send rows to the process. It folds them while the next ones are predicted."""
        self._wait()
        self._process.send(Add(self._inbox.put(columns)))
        self._is_waiting = True

    def test(self, job: Job, spans: Iterable[Span], targets: Targets) -> list[RowFailure]:
        self._process.send(Test(job, tuple(spans), targets))
        answer = self._answer()
        assert isinstance(answer, Added)
        return list(answer.failures)

    def finish(self) -> MetricResults:
        self._wait()
        self._process.send(End())
        answer = self._answer()
        assert isinstance(answer, MetricResults)
        return answer

    def close(self) -> None:
        self._process.close()
        self._inbox.close()
        self._launch.close()

    def _wait(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._answer()

    def _answer(self) -> Opened | Added | MetricResults:
        """The next answer.

        Raises:
            PenstockError: The error of the process.
            WorkersDied: The process has died.
        """
        try:
            multiprocessing.connection.wait(self._process.signs)
            answer = self._process.receive()
        except (EOFError, OSError):
            raise WorkersDied(
                "the process of the metrics died",
                received=f"it {self._process.describe_end()}; its last words: {self._launch.last_words() or 'none'}",
                hint="--verbose shows what it says",
            ) from None
        if isinstance(answer, Failed):
            raise answer.as_error("the process of the metrics")
        assert isinstance(answer, (Opened, Added, MetricResults))
        return answer
