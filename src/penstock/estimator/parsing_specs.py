"""`classifier_parse_example_spec` and `regressor_parse_example_spec`: specs for `tf.io.parse_example`."""

from typing import Any

from penstock.estimator.legacy_keras import quiet
from penstock.estimator.refusals import WrongValue
from penstock.runtimes.frameworks import tf


def classifier_parse_example_spec(
    feature_columns: Any, label_key: str, label_dtype: Any = None, label_default: Any = None, weight_column: Any = None
) -> dict[str, Any]:
    """The spec of the features that are parsed to train a classifier.

    Args:
        feature_columns: Columns of `tf.feature_column`.
        label_key: The feature that is the label: one value.
        label_dtype: Its type; None is int64.
        label_default: The label of an example that has none; None requires one.
        weight_column: The name of a feature that weighs examples, or a numeric column.
    """
    kind = tf.int64 if label_dtype is None else label_dtype
    return _with_label(feature_columns, label_key, tf.io.FixedLenFeature((1,), kind, label_default), weight_column)


def regressor_parse_example_spec(
    feature_columns: Any,
    label_key: str,
    label_dtype: Any = None,
    label_default: Any = None,
    label_dimension: int = 1,
    weight_column: Any = None,
) -> dict[str, Any]:
    """The spec of the features that are parsed to train a regressor.

    Args:
        feature_columns: Columns of `tf.feature_column`.
        label_key: The feature that is the label.
        label_dtype: Its type; None is float32.
        label_default: The label of an example that has none; None requires one.
        label_dimension: How many values a label has.
        weight_column: The name of a feature that weighs examples, or a numeric column.
    """
    kind = tf.float32 if label_dtype is None else label_dtype
    label = tf.io.FixedLenFeature((label_dimension,), kind, label_default)
    return _with_label(feature_columns, label_key, label, weight_column)


def _with_label(columns: Any, label_key: str, label: Any, weight_column: Any) -> dict[str, Any]:
    with quiet():
        return _joined(dict(tf.feature_column.make_parse_example_spec(columns)), label_key, label, weight_column)


def _joined(spec: dict[str, Any], label_key: str, label: Any, weight_column: Any) -> dict[str, Any]:
    if label_key in spec:
        raise WrongValue("the label is a feature, too", received=f"label_key={label_key!r}")
    spec[label_key] = label
    if weight_column is None:
        return spec
    weight = tf.feature_column.numeric_column(weight_column) if isinstance(weight_column, str) else weight_column
    if not hasattr(weight, "normalizer_fn"):
        raise WrongValue(
            "weight_column must be a name or a tf.feature_column.numeric_column", received=repr(weight_column)
        )
    if weight.key in spec:
        raise WrongValue("the weights are a feature or the label, too", received=f"weight_column={weight.key!r}")
    return {**spec, **weight.parse_example_spec}
