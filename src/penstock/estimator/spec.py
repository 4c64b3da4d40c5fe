"""`ModeKeys`, for which a `model_fn` is called, and `EstimatorSpec`, which it returns."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.estimator.export import serving_outputs
from penstock.estimator.refusals import WrongType, WrongValue
from penstock.runtimes.frameworks import tf

LOSS = "loss"


class ModeKeys:
    """The modes in which a `model_fn` is called."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


class _SpecFields(NamedTuple):
    mode: str
    predictions: Any
    loss: Any
    train_op: Any
    eval_metric_ops: dict[str, Any]
    export_outputs: dict[str, Any] | None
    training_chief_hooks: tuple[Any, ...]
    training_hooks: tuple[Any, ...]
    scaffold: Any
    evaluation_hooks: tuple[Any, ...]
    prediction_hooks: tuple[Any, ...]


class EstimatorSpec(_SpecFields):
    """The operations of one mode, checked when they are put together.

    Args:
        mode: One of `ModeKeys`.
        predictions: A tensor, or a dict of them. Needed to predict.
        loss: A tensor of one number. Needed to train and to evaluate.
        train_op: The operation of one training step. Needed to train.
        eval_metric_ops: Name to (value, update operation), or to a Keras metric whose state was updated.
        export_outputs: Signature name to an output of `penstock.estimator.export`; None serves the predictions.
        training_chief_hooks: Session hooks of training; there is one trainer, so they run like `training_hooks`.
        training_hooks: Session hooks of training.
        scaffold: A `Scaffold`, to initialise or save in another way than the usual one.
        evaluation_hooks: Session hooks of evaluation.
        prediction_hooks: Session hooks of prediction.
    """

    __slots__ = ()

    def __new__(
        cls,
        mode: str,
        predictions: Any = None,
        loss: Any = None,
        train_op: Any = None,
        eval_metric_ops: dict[str, Any] | None = None,
        export_outputs: dict[str, Any] | None = None,
        training_chief_hooks: Any = None,
        training_hooks: Any = None,
        scaffold: Any = None,
        evaluation_hooks: Any = None,
        prediction_hooks: Any = None,
    ) -> EstimatorSpec:
        checked_predictions = _check_predictions(predictions, mode)
        return super().__new__(
            cls,
            mode=mode,
            predictions=checked_predictions,
            loss=_check_loss(loss, mode),
            train_op=_check_train_op(train_op, mode),
            eval_metric_ops=_check_metrics(eval_metric_ops),
            export_outputs=_check_exports(export_outputs, checked_predictions, mode),
            training_chief_hooks=check_hooks(training_chief_hooks),
            training_hooks=check_hooks(training_hooks),
            scaffold=_check_scaffold(scaffold),
            evaluation_hooks=check_hooks(evaluation_hooks),
            prediction_hooks=check_hooks(prediction_hooks),
        )

    def _replace(self, **changed: Any) -> EstimatorSpec:
        if changed.get("mode", self.mode) != self.mode:
            raise WrongValue("the mode of an EstimatorSpec cannot be changed", received=f"mode={changed['mode']!r}")
        unknown = sorted(set(changed) - set(self._fields))
        if unknown:
            raise WrongValue("an EstimatorSpec has no such field", received=", ".join(unknown))
        return EstimatorSpec(**{**self._asdict(), **changed})


def check_hooks(hooks: Any) -> tuple[Any, ...]:
    """The hooks as a tuple. An object that is no hook raises an error that names it."""
    return _check_kind(hooks, "hooks", "SessionRunHook")


def check_listeners(listeners: Any) -> tuple[Any, ...]:
    """The checkpoint listeners as a tuple. An object that is no listener raises an error that names it."""
    return _check_kind(listeners, "saving_listeners", "CheckpointSaverListener")


def _check_kind(values: Any, name: str, kind: str) -> tuple[Any, ...]:
    checked = tuple(values or ())
    if checked:
        for value in checked:
            if not isinstance(value, getattr(tf.compat.v1.train, kind)):
                raise WrongType(f"{name} must be {kind} instances", received=repr(value))
    return checked


def _check_train_op(train_op: Any, mode: str) -> Any:
    if train_op is None:
        if mode == ModeKeys.TRAIN:
            raise WrongValue("train_op is missing", hint="EstimatorSpec(mode, loss=…, train_op=…) to train")
        return None
    if isinstance(train_op, tf.Variable):
        return _in_this_graph(train_op.op, "train_op")
    if not isinstance(train_op, tf.Operation) and not _is_tensor(train_op):
        raise WrongType("train_op must be an operation or a tensor", received=repr(train_op))
    return _in_this_graph(train_op, "train_op")


def _check_loss(loss: Any, mode: str) -> Any:
    if loss is None:
        if mode in (ModeKeys.TRAIN, ModeKeys.EVAL):
            raise WrongValue("loss is missing", hint="EstimatorSpec(mode, loss=…) to train and to evaluate")
        return None
    if isinstance(_check_tensor(loss, "loss"), (tf.SparseTensor, tf.RaggedTensor)):
        raise WrongType("loss must be dense", received=str(loss))
    shape = loss.get_shape()
    if shape.num_elements() not in (None, 1):
        raise WrongValue("loss must be one number", received=str(loss))
    _in_this_graph(loss, "loss")
    return loss if shape.is_compatible_with(tf.TensorShape([])) else tf.reshape(loss, [])


def _check_predictions(predictions: Any, mode: str) -> Any:
    if predictions is None:
        if mode == ModeKeys.PREDICT:
            raise WrongValue("predictions are missing", hint="EstimatorSpec(mode, predictions=…) to predict")
        return {}
    if not isinstance(predictions, dict):
        return _check_prediction(predictions, "predictions")
    return {name: _check_prediction(tensor, f"predictions[{name}]") for name, tensor in predictions.items()}


def _check_prediction(prediction: Any, name: str) -> Any:
    if isinstance(prediction, tf.SparseTensor):
        raise WrongType(f"{name} must be dense", received=str(prediction), hint="tf.sparse.to_dense(…)")
    return _in_this_graph(_check_tensor(prediction, name), name)


def _check_exports(exports: dict[str, Any] | None, predictions: Any, mode: str) -> dict[str, Any] | None:
    return serving_outputs(exports, predictions) if mode == ModeKeys.PREDICT else exports


def _check_metrics(metrics: dict[str, Any] | None) -> dict[str, Any]:
    """Metric name to (value, update operation). Keras metrics are taken apart, their state becomes local variables."""
    if metrics is None:
        return {}
    if not isinstance(metrics, dict):
        raise WrongType("eval_metric_ops must be a dict", received=repr(metrics))
    return {name: _metric_pair(name, metric) for name, metric in metrics.items()}


def _metric_pair(name: str, metric: Any) -> tuple[Any, Any]:
    if is_keras_metric(metric):
        updates = getattr(metric, "updates", None)
        if updates is None:
            raise WrongValue(
                "a metric of Keras 3 does not work in a graph",
                received=f"eval_metric_ops[{name}] is a {type(metric).__module__}.{type(metric).__name__}",
                hint="take it from tf_keras: call penstock.estimator.install() before `from tensorflow.keras import …`",
            )
        if not updates:
            raise WrongValue(
                "a metric of Keras was not updated",
                received=f"eval_metric_ops[{name}]",
                hint="call its update_state(…)",
            )
        for key in (tf.compat.v1.GraphKeys.LOCAL_VARIABLES, tf.compat.v1.GraphKeys.METRIC_VARIABLES):
            known = {variable.ref() for variable in tf.compat.v1.get_collection(key)}
            for variable in metric.variables:
                if variable.ref() not in known:
                    tf.compat.v1.add_to_collection(key, variable)
        pair = (metric.result(), updates[0])
    elif isinstance(metric, tuple) and len(metric) == 2:
        pair = metric
    else:
        raise WrongType(
            "a metric is a pair of its value and the operation that updates it",
            received=f"eval_metric_ops[{name}]={metric!r}",
            hint="tf.compat.v1.metrics.… returns such pairs",
        )
    for part in tf.nest.flatten(pair):
        _in_this_graph(part, f"eval_metric_ops[{name}]")
    return pair


def is_keras_metric(value: Any) -> bool:
    """Whether this is a metric object of Keras, old or new, without importing either."""
    return any(
        kind.__name__ == "Metric" and kind.__module__.partition(".")[0] in ("keras", "tf_keras")
        for kind in type(value).__mro__
    )


def _check_scaffold(scaffold: Any) -> Any:
    if scaffold is None:
        return tf.compat.v1.train.Scaffold()
    if not isinstance(scaffold, tf.compat.v1.train.Scaffold):
        raise WrongType("scaffold must be a tf.compat.v1.train.Scaffold", received=repr(scaffold))
    return scaffold


def _is_tensor(value: Any) -> bool:
    of_keras = tf.compat.v2.__internal__.types.Tensor
    return isinstance(value, (tf.Tensor, tf.SparseTensor, tf.RaggedTensor, tf.Variable, of_keras))


def _check_tensor(value: Any, name: str) -> Any:
    if not _is_tensor(value):
        raise WrongType(f"{name} must be a tensor", received=repr(value))
    return value


def _in_this_graph(value: Any, name: str) -> Any:
    graph = getattr(value, "graph", None)
    if not tf.executing_eagerly() and graph is not None and graph is not tf.compat.v1.get_default_graph():
        raise WrongValue(
            f"{name} must be from the graph that this call of the model_fn builds",
            received=str(getattr(value, "name", value)),
            hint="make every tensor inside model_fn or input_fn",
        )
    return value
