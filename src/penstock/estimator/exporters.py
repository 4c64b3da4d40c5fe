"""Exporters: what is exported after an evaluation, and how many exports are kept."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from penstock.estimator.calling import LOG, argument_names
from penstock.estimator.refusals import WrongValue
from penstock.estimator.spec import LOSS

Metrics = Mapping[str, Any]


class Exporter:
    """What `EvalSpec(exporters=…)` takes: a name, and `export`, called after every evaluation."""

    @property
    def name(self) -> str:
        """The folder below `model_dir/export` that it writes to."""
        raise NotImplementedError

    def export(
        self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Metrics, is_the_final_export: bool
    ) -> Any:
        """Export, or return None."""
        raise NotImplementedError


class _SavedModelExporter(Exporter):
    def __init__(self, name: str, receiver_fn: Any, assets_extra: Any, as_text: bool, keep: int | None) -> None:
        if keep is not None and keep <= 0:
            raise WrongValue("exports_to_keep must be positive", received=f"exports_to_keep={keep}")
        self._name = name
        self._receiver_fn = receiver_fn
        self._assets_extra = assets_extra
        self._as_text = as_text
        self._keep = keep

    @property
    def name(self) -> str:
        return self._name

    def _write(self, estimator: Any, export_path: str, checkpoint_path: str) -> Any:
        written = estimator.export_saved_model(
            export_path,
            self._receiver_fn,
            assets_extra=self._assets_extra,
            as_text=self._as_text,
            checkpoint_path=checkpoint_path,
        )
        if self._keep is not None:
            _remove_older(export_path, self._keep)
        return written


def _remove_older(folder: str, keep: int) -> None:
    import tensorflow as tf

    names = (name.rstrip("/") for name in tf.io.gfile.listdir(folder))
    for name in sorted((name for name in names if re.fullmatch(r"[0-9]{10}", name)), key=int)[:-keep]:
        try:
            tf.io.gfile.rmtree(os.path.join(folder, name))
        except tf.errors.OpError as error:
            LOG.warning("an older export could not be removed: %s", error)


class LatestExporter(_SavedModelExporter):
    """Exports after every evaluation; the newest are kept.

    Args:
        name: The folder below `model_dir/export`.
        serving_input_receiver_fn: Says what is fed.
        assets_extra: Path below `assets.extra` to a file that is copied there.
        as_text: Write `saved_model.pbtxt`.
        exports_to_keep: How many are kept; None keeps all.
    """

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep)

    def export(
        self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Metrics, is_the_final_export: bool
    ) -> Any:
        return self._write(estimator, export_path, checkpoint_path)


class FinalExporter(_SavedModelExporter):
    """Exports once, when training is done."""

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, None)

    def export(
        self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Metrics, is_the_final_export: bool
    ) -> Any:
        return self._write(estimator, export_path, checkpoint_path) if is_the_final_export else None


def _loss_smaller(best_eval_result: Metrics, current_eval_result: Metrics) -> bool:
    for metrics in (best_eval_result, current_eval_result):
        if not metrics or LOSS not in metrics:
            raise WrongValue("these metrics have no loss to compare", received=str(metrics))
    return bool(best_eval_result[LOSS] > current_eval_result[LOSS])


class BestExporter(_SavedModelExporter):
    """Exports when an evaluation was better than all before it.

    Args:
        name: The folder below `model_dir/export`.
        serving_input_receiver_fn: Says what is fed.
        event_file_pattern: Where the events of earlier evaluations lie, below `model_dir`; None looks at none.
        compare_fn: Takes `best_eval_result` and `current_eval_result`, and says whether the second is better.
        assets_extra: Path below `assets.extra` to a file that is copied there.
        as_text: Write `saved_model.pbtxt`.
        exports_to_keep: How many are kept; None keeps all.
    """

    def __init__(
        self,
        name: str = "best_exporter",
        serving_input_receiver_fn: Callable[[], Any] | None = None,
        event_file_pattern: str | None = "eval/*.tfevents.*",
        compare_fn: Callable[..., bool] = _loss_smaller,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep)
        if compare_fn is None or set(argument_names(compare_fn)) != {"best_eval_result", "current_eval_result"}:
            raise WrongValue(
                "compare_fn takes `best_eval_result` and `current_eval_result`", received=f"compare_fn={compare_fn!r}"
            )
        self._compare = compare_fn
        self._pattern = event_file_pattern
        self._model_dir: str | None = None
        self._best: Metrics | None = None
        self._has_exported = False

    def export(
        self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Metrics, is_the_final_export: bool
    ) -> Any:
        if self._model_dir != estimator.model_dir and self._pattern:
            self._model_dir = estimator.model_dir
            self._best = self._best_of_events(os.path.join(estimator.model_dir, self._pattern))
        is_best = (
            self._best is None
            or not self._has_exported
            or self._compare(best_eval_result=self._best, current_eval_result=eval_result)
        )
        if not is_best:
            return None
        self._best, self._has_exported = eval_result, True
        return self._write(estimator, export_path, checkpoint_path)

    def _best_of_events(self, pattern: str) -> Metrics | None:
        import tensorflow as tf

        best: Metrics | None = None
        for path in sorted(tf.io.gfile.glob(pattern)):
            for _, metrics in metrics_of_events(path):
                if best is None or self._compare(best_eval_result=best, current_eval_result=metrics):
                    best = metrics
        return best


def metrics_of_events(path: str) -> list[tuple[int, dict[str, float]]]:
    """(step, metrics) of every evaluation in a file of events, as far as it can be read."""
    import tensorflow as tf

    found = []
    try:
        for event in tf.compat.v1.train.summary_iterator(path):
            values = event.summary.value if event.HasField("summary") else ()
            metrics = {value.tag: value.simple_value for value in values if value.HasField("simple_value")}
            if metrics:
                found.append((int(event.step), metrics))
    except tf.errors.DataLossError:
        LOG.warning("the rest of %s is damaged", path)
    return found
