"""The main of the metrics process: `python -m penstock.evaluation.metrics_process CHANNEL BOARD INBOX`.

It holds the loss and metrics of a model file, on a CPU, and folds the predictions of the replicas into them, in order.
If a model must see the inputs itself, this process reads the inputs and runs the model, without replicas.
"""

import sys
from typing import Any

import pyarrow as pa

from penstock.core.records import ModelFile
from penstock.errors import RefusedByRuntime
from penstock.evaluation.compiled_metrics import declared_outputs, judged
from penstock.evaluation.metric_records import MetricRequest
from penstock.evaluation.metrics import Fold
from penstock.evaluation.metrics_messages import Add, Added, Begin, End, Open, Opened, Test
from penstock.evaluation.testing import test_spans
from penstock.pool.processes.channel import Channel
from penstock.pool.processes.serving import Serving
from penstock.pool.transfer.parcels import Mailbox
from penstock.runtimes.keras.compiled import compile_as_saved
from penstock.runtimes.keras.loading import load_keras_model


class MetricsProcess:
    """Handles the messages of the coordinator."""

    def __init__(self, channel: Channel, inbox: Mailbox) -> None:
        self._channel = channel
        self._inbox = inbox
        self._request = MetricRequest()
        self._model: Any = None
        self._fold: Fold | None = None

    def serve(self) -> None:
        Serving(self._channel, self._handle, lambda message: False).serve()

    def _handle(self, message: Any) -> None:
        if isinstance(message, Open):
            self._channel.send(self._open(message))
            return
        if isinstance(message, Begin):
            self._fold = Fold(self._model, self._request, message.shape)
            return
        assert self._fold is not None
        if isinstance(message, Add):
            self._fold.add(self._inbox.take(message.columns))
            self._channel.send(Added())
        elif isinstance(message, Test):
            failures = test_spans(self._fold, message.job, message.spans, message.targets)
            self._channel.send(Added(tuple(failures)))
        elif isinstance(message, End):
            self._channel.send(self._fold.finish())

    def _open(self, order: Open) -> Opened:
        sys.path += [entry for entry in order.sys_path if entry not in sys.path]
        self._request = order.request
        notes: list[str] = []
        if order.model is not None:
            self._model = self._load(order.model, notes)
        outputs = declared_outputs(self._model)
        self._model, reason, more = judged(self._model, order.request)
        return Opened(reason, (*notes, *more), outputs)

    def _load(self, file: ModelFile, notes: list[str]) -> Any:
        """The model with its compiled loss and metrics; None where only tf_keras loads it."""
        try:
            model = load_keras_model(file)
        except RefusedByRuntime as error:
            if not (self._request.loss or self._request.metrics):
                raise
            notes.append(f"the loss is without penalties of weights: {error.received}")
            return None
        if not (self._request.loss and self._request.metrics):
            compile_as_saved(model, file)
        return model


def main() -> None:
    channel, _, inbox = map(int, sys.argv[1:4])
    pa.set_cpu_count(1)
    MetricsProcess(Channel.inherited(channel), Mailbox(inbox)).serve()


if __name__ == "__main__":
    main()
