"""Evaluation in this process: metrics over the whole input, and the events that TensorBoard and exporters read."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from penstock.estimator.calling import LOG, Called, begin_graph, call_model_fn, take_input, user_code
from penstock.estimator.checkpoints import check_initial_values
from penstock.estimator.installing import doorway_in_place
from penstock.estimator.legacy_keras import quiet
from penstock.estimator.placing import place
from penstock.estimator.refusals import WrongValue
from penstock.estimator.spec import LOSS, EstimatorSpec, ModeKeys
from penstock.runtimes.frameworks import tf
from penstock.runtimes.tensorflow.restoring import session_creator

GLOBAL_STEP = "global_step"


class Evaluation(NamedTuple):
    """One call of `Estimator.evaluate`."""

    called: Called
    input_fn: Callable[..., Any]
    steps: int | None
    hooks: list[Any]
    checkpoint: str | None
    warm_start: Any
    folder: str
    """The folder into which events are written."""


def evaluate(evaluation: Evaluation) -> dict[str, Any]:
    """The metrics of a checkpoint, with `loss` and `global_step`."""
    called = evaluation.called
    options = called.config.session_options()
    placing = place(called.config)
    placing.limit(options)
    with tf.Graph().as_default() as graph, graph.device(called.config.device_fn or placing.scope):
        step = begin_graph(called.config)
        with user_code(called.config.tf_random_seed):
            taken = take_input(called, evaluation.input_fn, ModeKeys.EVAL)
            spec = call_model_fn(called, taken.features, taken.labels, ModeKeys.EVAL)
        with quiet(), doorway_in_place():
            update, values = _metrics(spec)
            values[GLOBAL_STEP] = step
            if evaluation.checkpoint is None:
                _begin_without_checkpoint(evaluation, spec.scaffold)
            results = _run(evaluation, spec, taken.hooks, update, values, options)
    with quiet():
        _write_events(evaluation, results)
    return results


def _begin_without_checkpoint(evaluation: Evaluation, scaffold: Any) -> None:
    if evaluation.warm_start is not None:
        tf.compat.v1.train.warm_start(*evaluation.warm_start)
    else:
        check_initial_values(scaffold, evaluation.called.config.model_dir)


def _metrics(spec: EstimatorSpec) -> tuple[Any, dict[str, Any]]:
    """The operation that updates every metric, and the values by name."""
    for name in (LOSS, GLOBAL_STEP):
        if name in spec.eval_metric_ops:
            raise WrongValue("this metric is always there", received=f"eval_metric_ops[{name}]", hint="rename yours")
    metrics = {**spec.eval_metric_ops, LOSS: tf.compat.v1.metrics.mean(spec.loss)}
    names = sorted(metrics)
    updates = tf.nest.flatten([metrics[name][1] for name in names])
    return tf.group(*updates), {name: metrics[name][0] for name in names}


def _run(
    evaluation: Evaluation, spec: EstimatorSpec, input_hooks: Any, update: Any, values: dict[str, Any], options: Any
) -> dict[str, Any]:
    train = tf.compat.v1.train
    final = train.FinalOpsHook(values)
    hooks = [*input_hooks, *evaluation.hooks, *_stopping(evaluation.steps), *spec.evaluation_hooks, final]
    creator = session_creator(_with_local_variables(spec.scaffold), evaluation.checkpoint, options)
    with train.MonitoredSession(creator, hooks) as session:
        while not session.should_stop():
            session.run(update)
    return dict(final.final_ops_values)


def _with_local_variables(scaffold: Any) -> Any:
    """The scaffold. If it has its own local initialisation, that also sets the metrics to zero."""
    kind = tf.compat.v1.train.Scaffold
    if scaffold.local_init_op is None:
        return scaffold
    both = tf.group(scaffold.local_init_op, kind.default_local_init_op())
    return kind(local_init_op=both, copy_from_scaffold=scaffold)


def _stopping(steps: int | None) -> list[Any]:
    if steps is None:
        return []
    most = steps

    class StopsAfter(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
        def begin(self) -> None:
            self._left = most

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self._left -= 1
            if self._left <= 0:
                run_context.request_stop()

    return [StopsAfter()]


def _write_events(evaluation: Evaluation, results: dict[str, Any]) -> None:
    """Write the metrics as events, which BestExporter, early stopping and TensorBoard read."""
    step = int(results[GLOBAL_STEP])
    summary = tf.compat.v1.Summary()
    for name, value in results.items():
        if name == GLOBAL_STEP or value is None:
            continue
        if isinstance(value, (tuple, list, dict)):
            LOG.info("no event for the metric %s: it has several values", name)
        elif isinstance(value, (bytes, np.bytes_)):
            _add_summaries(summary, name, bytes(value))
        elif np.ndim(value) == 0 and np.issubdtype(np.asarray(value).dtype, np.number):
            summary.value.add(tag=name, simple_value=float(value))
        elif isinstance(value, np.ndarray) and value.dtype != object:
            summary.value.add(tag=name, node_name=name, tensor=tf.make_tensor_proto(value))
        else:
            LOG.info("no event for the metric %s: %s", name, type(value).__name__)
    tf.io.gfile.makedirs(evaluation.folder)
    with tf.Graph().as_default():
        writer = tf.compat.v1.summary.FileWriterCache.get(evaluation.folder)
        writer.add_summary(summary, step)
        if evaluation.checkpoint is not None:
            path = tf.compat.v1.Summary()
            path.value.add(tag="checkpoint_path", tensor=tf.make_tensor_proto(evaluation.checkpoint, dtype=tf.string))
            writer.add_summary(path, step)
        writer.flush()


def _add_summaries(summary: Any, name: str, serialized: bytes) -> None:
    """Add the summaries in a metric's value: a metric may be a summary itself, such as an image or a histogram."""
    try:
        parsed = tf.compat.v1.Summary.FromString(serialized)
    except Exception:  # each implementation of protobuf has its own error class
        LOG.info("no event for the metric %s: its text is no summary", name)
        return
    for number, value in enumerate(parsed.value):
        value.tag = f"{name}/{number}"
    summary.value.extend(parsed.value)


def metrics_of_events(path: str) -> list[tuple[int, dict[str, float]]]:
    """(step, metrics) of every evaluation in a file of events, as far as it can be read."""
    by_step = []
    try:
        for event in tf.compat.v1.train.summary_iterator(path):
            values = event.summary.value if event.HasField("summary") else ()
            metrics = {value.tag: value.simple_value for value in values if value.HasField("simple_value")}
            if metrics:
                by_step.append((int(event.step), metrics))
    except tf.errors.DataLossError:
        LOG.warning("the rest of %s is damaged", path)
    return by_step
