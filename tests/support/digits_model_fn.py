"""The `model_fn` of tests/data/estimator/model_fn_ckpt, as people wrote it: several spellings of one model."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from penstock import estimator


def with_layers(features: Any, labels: Any, mode: str) -> Any:
    """Layers of TensorFlow 1, and the doorway by its own name."""
    image = tf.reshape(features["image"], [-1, 8, 8, 1])
    net = tf.compat.v1.layers.conv2d(image, filters=8, kernel_size=3, activation=tf.nn.relu, name="conv")
    logits = tf.compat.v1.layers.dense(tf.compat.v1.layers.flatten(net), 10, name="logits")
    return estimator.EstimatorSpec(mode, predictions=_predictions(logits))


def with_tf_estimator(features: Any, labels: Any, mode: str, params: Any, config: Any) -> Any:
    """Not a line changed since TensorFlow 1."""
    image = tf.reshape(features["image"], [-1, 8, 8, 1])
    conv = tf.compat.v1.layers.Conv2D(params.get("filters", 8), 3, activation=tf.nn.relu, name="conv")
    logits = tf.compat.v1.layers.Dense(10, name="logits")(tf.compat.v1.layers.Flatten()(conv(image)))
    predictions = _predictions(logits)
    if mode == tf.estimator.ModeKeys.PREDICT:
        assert isinstance(config, tf.estimator.RunConfig)
        return tf.estimator.EstimatorSpec(
            mode=mode,
            predictions=predictions,
            export_outputs={"classes": tf.estimator.export.PredictOutput(predictions)},
        )
    loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels, logits)
    step = tf.compat.v1.train.get_global_step()
    train_op = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    return tf.estimator.EstimatorSpec(mode=mode, loss=loss, train_op=train_op)


def with_keras_layers(features: Any, mode: str) -> Any:
    """Layers of Keras 2, whose variables have the same names."""
    image = tf.reshape(features["image"], [-1, 8, 8, 1])
    net = tf.keras.layers.Conv2D(8, 3, activation="relu", name="conv")(image)
    logits = tf.keras.layers.Dense(10, name="logits")(tf.keras.layers.Flatten()(net))
    return tf.estimator.EstimatorSpec(mode, predictions=_predictions(logits))


def with_variables(features: Any, mode: str) -> Any:
    """Bare variables; the features are a single tensor."""
    with tf.compat.v1.variable_scope("conv"):
        kernel = tf.compat.v1.get_variable("kernel", [3, 3, 1, 8])
        bias = tf.compat.v1.get_variable("bias", [8])
    net = tf.nn.relu(tf.nn.conv2d(tf.reshape(features, [-1, 8, 8, 1]), kernel, 1, "VALID") + bias)
    with tf.compat.v1.variable_scope("logits"):
        weights = tf.compat.v1.get_variable("kernel", [288, 10])
        logits = tf.reshape(net, [-1, 288]) @ weights + tf.compat.v1.get_variable("bias", [10])
    return tf.estimator.EstimatorSpec(mode, predictions=tf.nn.softmax(logits))


def estimator_of_checkpoint() -> estimator.Estimator:
    """For `--estimator module:function` without a checkpoint: the Estimator knows its own."""
    return estimator.Estimator(with_tf_estimator, model_dir=os.environ["DIGITS_MODEL_DIR"], params={"filters": 8})


def _predictions(logits: Any) -> dict[str, Any]:
    return {"classes": tf.argmax(logits, 1), "probabilities": tf.nn.softmax(logits)}
