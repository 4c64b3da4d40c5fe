"""Losses and metrics of Keras: those that a model was compiled with, and others by name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.errors import ModelError, UsageError
from penstock.evaluation.metric_records import FoldShape, MetricRequest, Structure
from penstock.runtimes.frameworks import keras
from penstock.runtimes.keras.call import KerasCall

_BY_SHAPE = ("accuracy", "acc", "crossentropy", "ce")
"""Names that Keras resolves by the shapes of labels and predictions."""
_TAKE_VECTORS = (
    "AUC", "Precision", "Recall", "F1Score", "FBetaScore", "PrecisionAtRecall", "RecallAtPrecision",
    "SensitivityAtSpecificity", "SpecificityAtSensitivity", "CategoricalAccuracy", "TopKCategoricalAccuracy",
    "CategoricalCrossentropy", "BinaryAccuracy", "BinaryCrossentropy", "KLDivergence", "CategoricalHinge",
    "MeanSquaredError", "MeanAbsoluteError", "RootMeanSquaredError", "CosineSimilarity", "Poisson",
)  # fmt: skip
"""Metrics that take labels in the shape of the predictions: classes as whole numbers must become one-hot vectors."""

_COMPARE_NOTHING = {"Metric", "metric", "MeanMetricWrapper", "mean_metric_wrapper", "Mean", "mean", "Sum", "sum"}
"""Metrics of Keras that take no labels, or are only base classes."""

_OVER_WHOLE_BATCHES = ("dice", "tversky", "circle")
"""Losses of Keras that compare the rows of a batch with each other, or count over all of them."""


def check_request(model: Any, request: MetricRequest) -> None:
    """Check that there is something to measure, and that every name is known.

    Raises:
        ModelError: The model was not compiled with a loss or metrics, and none are given.
        UsageError: Keras has no loss or metric of a name.
    """
    for names, known, flag in (
        (request.metrics, _known_metrics(), "--metrics"),
        (request.loss, _known_losses(), "--loss"),
    ):
        for entry in names:
            name = entry.rpartition("=")[2]
            if name not in known and not _is_registered(name):
                _refuse_name(name, known, flag)
    is_compiled = model is not None and model.compiled
    if request.metrics or request.loss or (is_compiled and (user_loss(model) or _has_metrics(model))):
        return
    raise ModelError(
        "there is nothing to measure: the model has no compiled loss or metrics",
        received="a model that was not compiled" if not is_compiled else "a model compiled without loss and metrics",
        hint="--metrics accuracy, or --loss mse",
    )


def _refuse_name(name: str, known: Sequence[str], flag: str) -> None:
    shown = [each for each in known if each == each.lower()]
    close = difflib.get_close_matches(name.lower(), shown, n=3)
    raise UsageError(
        f"Keras has no {'metric' if flag == '--metrics' else 'loss'} of this name",
        received=f"{flag} {name}",
        allowed=", ".join(shown),
        hint=f"did you mean {', '.join(close)}?" if close else None,
    )


def _known_metrics() -> list[str]:
    from keras.src import metrics

    return sorted({*_BY_SHAPE, *metrics.ALL_OBJECTS_DICT} - _COMPARE_NOTHING)


def _known_losses() -> list[str]:
    from keras.src import losses

    return sorted({"crossentropy", "ce", *losses.ALL_OBJECTS_DICT})


def _is_registered(name: str) -> bool:
    return keras.saving.get_registered_object(name) is not None


def named(name: str) -> Any:
    """A metric or loss by its name: the name itself for one of Keras's own, an object for a registered one."""
    found = keras.saving.get_registered_object(name)
    if found is None:
        return name
    return found() if inspect.isclass(found) else found


def judged(model: Any, request: MetricRequest) -> tuple[Any, str | None, tuple[str, ...]]:
    """The model whose loss and metrics are folded, the reason if it must see the inputs itself, and notes for the user.

    If there is a reason, but the user named metrics or losses, only these are measured: they need only predictions.

    Raises:
        ModelError: There is nothing to measure.
        UsageError: Keras has no loss or metric of a name.
    """
    check_request(model, request)
    reason = None if model is None else reason_for_test_step(model)
    if reason is None or not (request.loss or request.metrics):
        return model, reason, ()
    return None, None, (f"only what is named is measured, because {reason}",)


def declared_outputs(model: Any) -> Structure | None:
    """The structure of a model's outputs; None where there is no model, or it declares no outputs (a subclass)."""
    signature = KerasCall(model).signature if model is not None else None
    if signature is None or not signature.outputs:
        return None
    return Structure(signature.structure, tuple(spec.name for spec in signature.outputs))


def reason_for_test_step(model: Any) -> str | None:
    """Why predictions are not enough to compute what `model.evaluate` gives, in words; None where they are enough."""
    kind = type(model)
    for name in ("test_step", "compute_loss", "compute_metrics"):
        if getattr(kind, name) is not getattr(keras.Model, name):
            return f"the model has a {name} of its own"
    has_masks = False
    for layer in model._flatten_layers():
        if getattr(layer, "activity_regularizer", None) is not None:
            return f"the layer {layer.name} has an activity regularizer"
        if _calls(type(layer), "add_loss"):
            return f"the layer {layer.name} adds a loss of its own"
        if getattr(layer, "mask_zero", False) or isinstance(layer, keras.layers.Masking):
            has_masks = True
    if has_masks and any(len(tensor.shape) > 2 for tensor in getattr(model, "outputs", None) or ()):
        return "the model masks values of its outputs"
    return None


def _calls(kind: type[Any], name: str) -> bool:
    """Whether any method of a class that is not Keras's own calls a method of this name."""
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] == "keras" or base is object:
            continue
        functions = [value for value in vars(base).values() if inspect.isfunction(value)]
        if any(name in function.__code__.co_names for function in functions):
            return True
    return False


def user_loss(model: Any) -> Any:
    compiled = getattr(model, "_compile_loss", None)
    return None if compiled is None else compiled._user_loss


def _has_metrics(model: Any) -> bool:
    return getattr(model, "_compile_metrics", None) is not None


def stand_in(model: Any, request: MetricRequest, shape: FoldShape, vectors: Sequence[str]) -> Any:
    """A model with the requested loss and metrics, and with the penalties on weights of the real model.

    A loss or metrics that were not requested are those of the real model. `vectors` are outputs whose labels are
    classes; some metrics take these as one-hot vectors.
    """

    class Measuring(keras.Model):  # type: ignore[misc]
        """Loss and metrics without a model."""

        @property
        def losses(self) -> list[Any]:
            return model.losses if model is not None else []

    names = list(shape.predictions.names)
    loss, loss_weights = user_loss(model), None
    if request.loss:
        loss = by_output(request.loss, names, lambda name, output: named(name), "--loss")
        loss = next(iter(loss.values()))[0] if len(names) == 1 else {name: each[0] for name, each in loss.items()}
    elif loss is not None:
        loss_weights = model._compile_loss._user_loss_weights
    metrics = weighted = None
    if request.metrics:
        made = by_output(request.metrics, names, lambda name, output: _metric(name, output in vectors), "--metrics")
        given = next(iter(made.values())) if len(names) == 1 else made
        metrics, weighted = (None, given) if shape.weights.names else (given, None)
    elif model is not None and _has_metrics(model):
        metrics, weighted = model._compile_metrics._user_metrics, model._compile_metrics._user_weighted_metrics
    measuring = Measuring()
    measuring.output_names = names
    measuring.compile(loss=loss, loss_weights=loss_weights, metrics=metrics, weighted_metrics=weighted)
    return measuring


def by_output(entries: Sequence[str], outputs: Sequence[str], make: Any, flag: str) -> dict[str, list[Any]]:
    """Losses or metrics for every output, from names: `OUTPUT=NAME` is for one output, a plain name for all."""
    made: dict[str, list[Any]] = {}
    for entry in entries:
        output, equals, name = entry.rpartition("=")
        if equals and output not in outputs:
            raise UsageError("the model has no such output", received=f"{flag} {entry}", allowed=", ".join(outputs))
        for each in [output] if equals else outputs:
            made.setdefault(each, []).append(make(name, each))
    return made


def _metric(name: str, takes_classes: bool) -> Any:
    """A metric by name. One that compares vectors is changed, so that it takes labels that are classes."""
    found = named(name)
    if not takes_classes or name in _BY_SHAPE or not isinstance(found, str):
        return found
    metric = keras.metrics.get(name)
    if type(metric).__name__ not in _TAKE_VECTORS:
        return name
    metric.name = name
    update = metric.update_state

    def update_with_vectors(labels: Any, predictions: Any, sample_weight: Any = None) -> Any:
        vectors = keras.ops.one_hot(keras.ops.cast(labels, "int32"), predictions.shape[-1])
        return update(vectors, predictions, sample_weight=sample_weight)

    metric.update_state = update_with_vectors
    return metric


def losses_of(model: Any, request: MetricRequest, output: str, place: int, outputs: int) -> list[Any]:
    """The loss of an output, or else its metrics: they decide how its labels are read."""
    names = [entry.rpartition("=")[2] for entry in request.loss if entry.rpartition("=")[0] in ("", output)]
    if names:
        return list(names)
    loss = user_loss(model) if model is not None else None
    if loss is not None:
        return [_part_of(loss, output, place, outputs)]
    if request.metrics or model is None or not _has_metrics(model):
        return [entry.rpartition("=")[2] for entry in request.metrics if entry.rpartition("=")[0] in ("", output)]
    compiled = model._compile_metrics
    given = [
        _part_of(each, output, place, outputs) for each in (compiled._user_metrics, compiled._user_weighted_metrics)
    ]
    return [metric for each in given if each is not None for metric in (each if isinstance(each, list) else [each])]


def _part_of(given: Any, output: str, place: int, outputs: int) -> Any:
    """What a loss or metrics argument of `compile` has for one output."""
    if isinstance(given, Mapping):
        return given.get(output)
    if isinstance(given, (list, tuple)) and outputs > 1 and len(given) == outputs:
        return given[place]
    if isinstance(given, (list, tuple)) and outputs == 1 and len(given) == 1:
        return given[0]
    return list(given) if isinstance(given, tuple) else given


def depends_on_batches(model: Any) -> bool:
    """Whether the result may depend on the batch size: a loss is no mean over rows, or is the user's own code."""
    losses, metrics = keras.tree.flatten(user_loss(model)), _given_metrics(model)
    # If a loss is given as a metric, Keras computes the mean of the means of batches.
    if any(isinstance(each, keras.losses.Loss) for each in metrics):
        return True
    flat = [each for each in (*losses, *metrics) if each is not None]
    return not all(_is_of_keras(each) and _is_mean_over_rows(each) for each in flat)


def reset_metrics(model: Any) -> None:
    """Reset all metrics. `model.reset_metrics` skips compiled ones if the model has seen no batch yet."""
    model.reset_metrics()
    for metric in _given_metrics(model):
        if isinstance(metric, keras.metrics.Metric):
            metric.reset_state()


def _given_metrics(model: Any) -> list[Any]:
    compiled = getattr(model, "_compile_metrics", None)
    if compiled is None:
        return []
    flat: list[Any] = keras.tree.flatten((compiled._user_metrics, compiled._user_weighted_metrics))
    return flat


def _is_of_keras(given: Any) -> bool:
    if isinstance(given, str):
        return keras.saving.get_registered_object(given) is None
    function = getattr(given, "fn", getattr(given, "_fn", None))
    kinds = [type(given) if not inspect.isfunction(given) else given, *([function] if callable(function) else [])]
    return all(str(getattr(kind, "__module__", "")).partition(".")[0] == "keras" for kind in kinds)


def _is_mean_over_rows(given: Any) -> bool:
    function = getattr(given, "fn", given)
    name = given if isinstance(given, str) else getattr(function, "__name__", type(given).__name__)
    if name.lower() in _OVER_WHOLE_BATCHES:
        return False
    if not isinstance(given, keras.losses.Loss):
        return True
    if getattr(given, "_fn_kwargs", {}).get("ignore_class") is not None:
        return False  # the mean is over the rows of a batch that are not ignored
    return given.reduction in ("sum_over_batch_size", "auto")
