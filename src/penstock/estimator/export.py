"""Inputs and outputs of an export: serving input receivers, and the outputs of signatures.

The classes of outputs are TensorFlow's own, which still has them: `PredictOutput`, `ClassificationOutput`,
`RegressionOutput`, `EvalOutput`, `ExportOutput`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.estimator.refusals import WrongType, WrongValue
from penstock.runtimes.frameworks import tf

FEATURE, LABEL, RECEIVER = "feature", "label", "input"
"""The names of a tensor that came without one."""

_OUTPUTS = ("ClassificationOutput", "EvalOutput", "ExportOutput", "PredictOutput", "RegressionOutput", "TrainOutput")

_OUTPUTS_ARE = "name to PredictOutput, ClassificationOutput or RegressionOutput; one of several is serving_default"

__all__ = [
    "ServingInputReceiver",
    "TensorServingInputReceiver",
    "build_parsing_serving_input_receiver_fn",
    "build_raw_serving_input_receiver_fn",
    "build_raw_supervised_input_receiver_fn",
]


def __getattr__(name: str) -> Any:
    if name not in _OUTPUTS:
        raise AttributeError(f"module 'penstock.estimator.export' has no attribute {name!r}")
    from tensorflow.python.saved_model.model_utils import export_output

    return getattr(export_output, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_OUTPUTS})


class _Receiver(NamedTuple):
    features: Any
    receiver_tensors: dict[str, Any]
    receiver_tensors_alternatives: dict[str, Any] | None


class ServingInputReceiver(_Receiver):
    """The tensors that a served model receives, and the features that are made of them.

    Args:
        features: A tensor, or a dict of them: the `model_fn` gets these.
        receiver_tensors: A tensor, or a dict of them: these are fed.
        receiver_tensors_alternatives: Name to other tensors that may be fed instead.
    """

    __slots__ = ()

    def __new__(
        cls, features: Any, receiver_tensors: Any, receiver_tensors_alternatives: Any = None
    ) -> ServingInputReceiver:
        return super().__new__(
            cls,
            _named(features, "features", FEATURE, allow_numbers=True),
            _named(receiver_tensors, "receiver_tensors", RECEIVER),
            _alternatives(receiver_tensors_alternatives),
        )


class TensorServingInputReceiver(_Receiver):
    """The same for a `model_fn` whose features are one tensor, not a dict."""

    __slots__ = ()

    def __new__(
        cls, features: Any, receiver_tensors: Any, receiver_tensors_alternatives: Any = None
    ) -> TensorServingInputReceiver:
        if isinstance(features, dict):
            raise WrongValue("features must be one tensor", received="a dict", hint="ServingInputReceiver takes dicts")
        return super().__new__(
            cls,
            _named(features, "features", FEATURE)[FEATURE],
            _named(receiver_tensors, "receiver_tensors", RECEIVER),
            _alternatives(receiver_tensors_alternatives),
        )


class _SupervisedReceiver(NamedTuple):
    features: Any
    labels: Any
    receiver_tensors: dict[str, Any]


class SupervisedInputReceiver(_SupervisedReceiver):
    """Features and labels, for exports of training and evaluation.

    Args:
        features: A tensor, or a dict of them: the `model_fn` gets these as they are.
        labels: The same for the labels.
        receiver_tensors: A tensor, or a dict of them: these are fed.
    """

    __slots__ = ()

    def __new__(cls, features: Any, labels: Any, receiver_tensors: Any) -> SupervisedInputReceiver:
        _named(features, "features", FEATURE, allow_numbers=True)
        _named(labels, "labels", LABEL, allow_numbers=True)
        return super().__new__(cls, features, labels, _named(receiver_tensors, "receiver_tensors", RECEIVER))


def build_parsing_serving_input_receiver_fn(
    feature_spec: dict[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """A function for `export_saved_model`: the model receives serialized `tf.train.Example` records and parses them."""

    def serving_input_receiver_fn() -> ServingInputReceiver:
        examples = tf.compat.v1.placeholder(tf.string, [default_batch_size], name="input_example_tensor")
        return ServingInputReceiver(tf.compat.v1.io.parse_example(examples, feature_spec), {"examples": examples})

    return serving_input_receiver_fn


def build_raw_serving_input_receiver_fn(
    features: dict[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """A function for `export_saved_model`: tensors like these come in, with any number of rows."""

    def serving_input_receiver_fn() -> ServingInputReceiver:
        fed = {name: _placeholder_like(tensor, default_batch_size) for name, tensor in features.items()}
        return ServingInputReceiver(fed, fed)

    return serving_input_receiver_fn


def build_raw_supervised_input_receiver_fn(
    features: Any, labels: Any, default_batch_size: int | None = None
) -> Callable[[], SupervisedInputReceiver]:
    """A function for exports of training and evaluation: the model receives features and labels."""
    feature_names = set(features) if isinstance(features, dict) else {RECEIVER}
    label_names = set(labels) if isinstance(labels, dict) else {LABEL}
    if feature_names & label_names:
        shared = ", ".join(sorted(map(str, feature_names & label_names)))
        raise WrongValue("features and labels have names in common", received=shared)

    def receiver_fn() -> SupervisedInputReceiver:
        taken, fed = _placeholders(features, RECEIVER, default_batch_size)
        taken_labels, fed_labels = _placeholders(labels, LABEL, default_batch_size)
        return SupervisedInputReceiver(taken, taken_labels, {**fed, **fed_labels})

    return receiver_fn


def serving_outputs(exports: dict[str, Any] | None, predictions: Any) -> dict[str, Any]:
    """The outputs that are served: those given, or the predictions; one of them is `serving_default`."""
    from tensorflow.python.saved_model.model_utils import export_output

    if exports is None:
        return {_default_name(): export_output.PredictOutput(predictions)}
    if not isinstance(exports, dict):
        raise WrongType("export_outputs must be a dict", received=repr(exports), allowed=_OUTPUTS_ARE)
    for name, output in exports.items():
        if not isinstance(output, export_output.ExportOutput):
            raise WrongType("export_outputs are not understood", received=f"{name}: {output!r}", allowed=_OUTPUTS_ARE)
    if _default_name() in exports:
        return dict(exports)
    if len(exports) == 1:
        return {**exports, _default_name(): next(iter(exports.values()))}
    raise WrongValue("none of several export_outputs is the default", received=", ".join(exports), allowed=_OUTPUTS_ARE)


def _default_name() -> str:
    return str(tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY)


def _placeholders(tensors: Any, name: str, batch_size: int | None) -> tuple[Any, dict[str, Any]]:
    if isinstance(tensors, dict):
        made = {key: _placeholder_like(tensor, batch_size) for key, tensor in tensors.items()}
        return made, made
    one = _placeholder_like(tensors, batch_size)
    return one, {name: one}


def _placeholder_like(tensor: Any, batch_size: int | None) -> Any:
    shape = tf.TensorShape([batch_size]).concatenate(tensor.shape[1:])
    try:
        name = tensor.op.name
    except AttributeError:  # an eager tensor has none
        name = None
    return tf.compat.v1.placeholder(tensor.dtype, shape, name=name)


def _alternatives(alternatives: Any) -> dict[str, Any] | None:
    if alternatives is None:
        return None
    if not isinstance(alternatives, dict):
        raise WrongValue("receiver_tensors_alternatives must be a dict", received=repr(alternatives))
    return {name: _named(tensors, f"alternative {name}", RECEIVER) for name, tensors in alternatives.items()}


def _named(tensors: Any, what: str, default_name: str, *, allow_numbers: bool = False) -> dict[str, Any]:
    if tensors is None:
        raise WrongValue(f"{what} must be given", received="None")
    named = tensors if isinstance(tensors, dict) else {default_name: tensors}
    for name, tensor in named.items():
        if not isinstance(name, (str, int) if allow_numbers else str):
            allowed = "text or whole numbers" if allow_numbers else "text"
            raise WrongValue(f"names of {what} must be {allowed}", received=repr(name))
        if not isinstance(tensor, (tf.Tensor, tf.SparseTensor, tf.RaggedTensor)) and not hasattr(tensor, "tensor"):
            raise WrongValue(f"{what} must be tensors, dense, sparse or ragged", received=f"{name}: {tensor!r}")
    return named
