"""Exports: SavedModels that every server of SavedModels reads, and the exporters that write them after evaluations."""

import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from penstock.errors import OutputError
from penstock.estimator.calling import LOG, Called, argument_names, begin_graph, call_model_fn, user_code
from penstock.estimator.evaluating import metrics_of_events
from penstock.estimator.legacy_keras import quiet
from penstock.estimator.refusals import WrongValue
from penstock.estimator.spec import LOSS, ModeKeys
from penstock.runtimes.frameworks import tf
from penstock.runtimes.tensorflow.restoring import as_saver, plan_restoring

Metrics = Mapping[str, Any]
MODES = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)
_ATTEMPTS = 10


class Export(NamedTuple):
    """One call of `Estimator.export_saved_model`."""

    called: Called
    receivers: Mapping[str, Callable[[], Any]]
    """By mode, the function that returns what is fed."""
    checkpoint: str
    as_text: bool = False
    assets_extra: Mapping[str, str] | None = None
    strip_default_attrs: bool = True


def export(job: Export, base: str) -> str:
    """Write `base/TIMESTAMP/` and return its path. It appears whole or not at all."""
    modes = [mode for mode in MODES if job.receivers.get(mode)]
    if not modes:
        raise WrongValue(
            "there is no mode to export", received=", ".join(map(str, job.receivers)), allowed=", ".join(MODES)
        )
    folder = _timestamped(base)
    staging = os.path.join(base, f"temp-{os.path.basename(folder)}")
    try:
        with quiet():
            builder = tf.compat.v1.saved_model.Builder(staging)
            for number, mode in enumerate(modes):
                _add_graph(builder, job, mode, has_variables=number == 0)
            builder.save(job.as_text)
        for name, source in (job.assets_extra or {}).items():
            target = os.path.join(staging, "assets.extra", name)
            tf.io.gfile.makedirs(os.path.dirname(target))
            tf.io.gfile.copy(source, target)
        tf.io.gfile.rename(staging, folder)
    except BaseException:
        if tf.io.gfile.exists(staging):
            tf.io.gfile.rmtree(staging)
        raise
    return folder


def _timestamped(base: str) -> str:
    """A new folder in `base`. Its name is the time in seconds: exporters and servers take the largest number."""
    for _ in range(_ATTEMPTS):
        folder = os.path.join(base, str(int(time.time())))
        if not tf.io.gfile.exists(folder):
            return folder
        time.sleep(1)
    raise OutputError("no free name for the export", received=base, hint="is something exporting into it all the time?")


def _add_graph(builder: Any, job: Export, mode: str, *, has_variables: bool) -> None:
    from tensorflow.python.saved_model.model_utils import export_utils

    options = job.called.config.session_options()
    with tf.Graph().as_default():
        begin_graph(job.called.config)
        with user_code(job.called.config.tf_random_seed):
            receiver = job.receivers[mode]()
            spec = call_model_fn(job.called, receiver.features, getattr(receiver, "labels", None), mode)
        outputs = export_utils.export_outputs_for_mode(
            mode, spec.export_outputs, spec.predictions, spec.loss, spec.eval_metric_ops
        )
        signatures = export_utils.build_all_signature_defs(
            receiver.receiver_tensors,
            outputs,
            getattr(receiver, "receiver_tensors_alternatives", None),
            serving_only=mode == ModeKeys.PREDICT,
        )
        _check_signatures(signatures, mode)
        with tf.compat.v1.Session(config=options) as session:
            plan_restoring(spec.scaffold, job.checkpoint).restore(session)
            saver = as_saver(spec.scaffold.saver) or tf.compat.v1.train.Saver(sharded=True)
            local_init = spec.scaffold.local_init_op
            builder._add_train_op(spec.train_op)
            arguments = {
                "tags": list(export_utils.EXPORT_TAG_MAP[mode]),
                "signature_def_map": signatures,
                "assets_collection": tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.ASSET_FILEPATHS),
                "main_op": tf.compat.v1.train.Scaffold.default_local_init_op() if local_init is None else local_init,
                "saver": saver,
                "strip_default_attrs": job.strip_default_attrs,
            }
            if has_variables:
                builder.add_meta_graph_and_variables(session, **arguments)
            else:
                builder.add_meta_graph(**arguments)


def _check_signatures(signatures: Mapping[str, Any], mode: str) -> None:
    """Warn if nothing can be served. This is no error, since an exporter must not end the training that calls it."""
    if mode == ModeKeys.PREDICT and not signatures:
        LOG.warning(
            "the export has no signature: outputs of classification and regression take one string vector; "
            "parse examples, or add a PredictOutput to export_outputs"
        )


class Exporter:
    """The base class for `EvalSpec(exporters=…)`: it has a name, and `export`, which is called after evaluations."""

    @property
    def name(self) -> str:
        """The name of its folder below `model_dir/export`."""
        raise NotImplementedError

    def export(
        self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Metrics, is_the_final_export: bool
    ) -> Any:
        """Export, and return the path; or return None."""
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

    def export(
        self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Metrics, is_the_final_export: bool
    ) -> Any:
        if not self._is_wanted(estimator, eval_result, is_the_final_export):
            return None
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

    def _is_wanted(self, estimator: Any, metrics: Metrics, is_final: bool) -> bool:
        return True


def _remove_older(folder: str, keep: int) -> None:
    names = (name.rstrip("/") for name in tf.io.gfile.listdir(folder))
    for name in sorted((name for name in names if re.fullmatch(r"[0-9]{10}", name)), key=int)[:-keep]:
        try:
            tf.io.gfile.rmtree(os.path.join(folder, name))
        except tf.errors.OpError as error:
            LOG.warning("an older export could not be removed: %s", error)


class LatestExporter(_SavedModelExporter):
    """Exports after every evaluation, and keeps the newest exports.

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

    def _is_wanted(self, estimator: Any, metrics: Metrics, is_final: bool) -> bool:
        return is_final


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
        event_file_pattern: Files with the events of earlier evaluations, below `model_dir`; None reads none.
        compare_fn: Takes `best_eval_result` and `current_eval_result`, and returns whether the second is better.
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

    def _is_wanted(self, estimator: Any, metrics: Metrics, is_final: bool) -> bool:
        if self._model_dir != estimator.model_dir and self._pattern:
            self._model_dir = estimator.model_dir
            self._best = self._best_of_events(os.path.join(estimator.model_dir, self._pattern))
        is_best = (
            self._best is None
            or not self._has_exported
            or self._compare(best_eval_result=self._best, current_eval_result=metrics)
        )
        if is_best:
            self._best, self._has_exported = metrics, True
        return is_best

    def _best_of_events(self, pattern: str) -> Metrics | None:
        best: Metrics | None = None
        for path in sorted(tf.io.gfile.glob(pattern)):
            for _, metrics in metrics_of_events(path):
                if best is None or self._compare(best_eval_result=best, current_eval_result=metrics):
                    best = metrics
        return best
