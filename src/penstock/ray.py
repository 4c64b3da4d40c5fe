"""Penstock inside the user's own jobs on Ray.

>>> rows = ray.data.read_parquet("rows/")                                                        # doctest: +SKIP
>>> options = {"keep": "name", "on_error": "nan"}                                                # doctest: +SKIP
>>> rows.map_batches(                                                                            # doctest: +SKIP
...     penstock.ray.Predictor, fn_constructor_args=["model.keras"], fn_constructor_kwargs=options, concurrency=2
... )

Importing this does not import Ray.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from typing import Any, Unpack

from penstock.commands.batch_by_call import BatchByCall
from penstock.commands.gathering import check_on_error
from penstock.commands.keyword_types import PredictKeywords
from penstock.errors import UsageError
from penstock.options.records import make_options
from penstock.options.spelling import for_python
from penstock.pool.devices.inventory import CORES
from penstock.runtimes.keras.live import is_live_keras_model
from penstock.sources.python.batches import piece_of

__all__ = ["Predictor"]

_OF_WHOLE_INPUTS = (
    *("limit", "skip", "sample", "sample_by", "plan", "check"),
    *("format", "part_rows", "max_failures", "trace"),
    *("engine", "address", "resources", "max_nodes"),
)
"""Options of whole jobs, which a `Predictor` refuses: which rows are taken, the plan, and how results are written."""


class Predictor:
    """A callable class that predicts batches: for `ray.data.Dataset.map_batches`, or for any other caller.

    The first batch loads the model, in processes of penstock's own, on the devices and cores that Ray gives to the
    actor. Several threads may call at the same time. A copy (by pickle) starts its own processes.

    Args:
        model: As in `penstock.predict`: a path, `module:function`, or a function that builds a Keras model.
        batch_size: Rows that a device sees in one step; by default, a number that suits the model and the first batch.
        on_error: What to do when rows fail: "raise" (the default), "skip" leaves the rows out, "nan" puts NaN (None in
            text and lists) in their place, and adds a column `error` with the reason, or with empty text.
        **keywords: The options of `penstock.predict`, except those that select rows or decide how to write.

    Raises:
        PenstockError: See `penstock.errors` for the tree.

    Example:
        >>> predict = penstock.ray.Predictor("model.onnx")      # doctest: +SKIP
        >>> predict({"pixels": pixels})["digit"].shape          # doctest: +SKIP
        (1024, 10)
    """

    @for_python
    def __init__(
        self,
        model: Any,
        batch_size: int | None = None,
        *,
        on_error: str | None = None,
        **keywords: Unpack[PredictKeywords],
    ) -> None:
        check_on_error(on_error)
        if is_live_keras_model(model):
            raise UsageError(
                "a live model does not travel to other processes",
                received=type(model).__name__,
                hint="save it, and give its path",
            )
        unfit = next((name for name in _OF_WHOLE_INPUTS if keywords.get(name) is not None), None)
        if unfit is not None:
            raise UsageError(f"{unfit} is for a whole input, and batches come one by one", received=unfit)
        self._model = model
        self._on_error = on_error or "raise"
        given = {**keywords, **({} if batch_size is None else {"batch_size": batch_size})}
        self._options = make_options(given, Predictor.__init__)
        self._running: BatchByCall | None = None
        self._closing: weakref.finalize[..., Any] | None = None
        self._lock = threading.Lock()

    @for_python
    def __call__(self, batch: Any) -> dict[str, Any]:
        """The predictions of a batch, and the kept columns: an array for each.

        Args:
            batch: A dict of arrays, an Arrow table, a pandas frame, or an array.
        """
        piece = piece_of(batch)
        with self._lock:
            if self._running is None:
                if not piece.rows:
                    return {}
                _take_what_ray_lends()
                self._running = BatchByCall(self._model, self._options, self._on_error, piece)
                self._closing = weakref.finalize(self, self._running.close)
            running = self._running
        return running.answer(piece)

    def close(self) -> None:
        """End its processes; otherwise they end with the object. A later batch starts new ones."""
        with self._lock:
            if self._closing is not None:
                self._closing()
            self._running = self._closing = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_running", "_closing", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _running=None, _closing=None, _lock=threading.Lock())


def _take_what_ray_lends() -> None:
    """Inside of a Ray actor, use as many cores as the actor has CPUs. Ray itself does not bind processes to cores."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return
    context = ray.get_runtime_context()
    if context.get_actor_id() is None:
        return
    os.environ.pop("OMP_NUM_THREADS", None)  # Ray sets it; Penstock sets the threads of each replica itself
    cpus = context.get_assigned_resources().get("CPU", 0)
    if cpus:
        os.environ.setdefault(CORES, str(max(1, int(cpus))))
