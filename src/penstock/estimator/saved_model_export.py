"""Exports: SavedModels that `penstock predict` and every other server of SavedModels reads."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from penstock.errors import OutputError
from penstock.estimator.calling import LOG, Called, begin_graph, call_model_fn
from penstock.estimator.legacy_keras import quiet, user_code
from penstock.estimator.refusals import WrongValue
from penstock.estimator.spec import ModeKeys
from penstock.runtimes.tensorflow.restoring import as_saver, plan_restoring

MODES = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)
_ATTEMPTS = 10


class Export(NamedTuple):
    """One call of `Estimator.export_saved_model`."""

    called: Called
    receivers: Mapping[str, Callable[[], Any]]
    """Mode to the function that says what is fed."""
    checkpoint: str
    as_text: bool = False
    assets_extra: Mapping[str, str] | None = None
    strip_default_attrs: bool = True


def export(job: Export, base: str) -> str:
    """Write `base/TIMESTAMP/` and return its path. It appears whole or not at all."""
    import tensorflow as tf

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
    """A folder of `base` that does not exist, named after the second: exporters and servers take the largest."""
    import tensorflow as tf

    for _ in range(_ATTEMPTS):
        folder = os.path.join(base, str(int(time.time())))
        if not tf.io.gfile.exists(folder):
            return folder
        time.sleep(1)
    raise OutputError("no free name for the export", received=base, hint="is something exporting into it all the time?")


def _add_graph(builder: Any, job: Export, mode: str, *, has_variables: bool) -> None:
    import tensorflow as tf
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
    """Say so where nothing can be served, and go on: an exporter must not end the training that it is called from."""
    if mode == ModeKeys.PREDICT and not signatures:
        LOG.warning(
            "the export has no signature: outputs of classification and regression take one string vector; "
            "parse examples, or add a PredictOutput to export_outputs"
        )
