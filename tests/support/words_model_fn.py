"""A `model_fn` with what real ones have: strings, a lookup table, an embedding, batch normalisation, dropout."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

WORDS = ["apple", "pear", "plum", "fig"]
CLASSES = ["sour", "sweet", "dry"]


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """Which taste a fruit of some weight has."""
    is_training = mode == tf.estimator.ModeKeys.TRAIN
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(WORDS, list(range(len(WORDS))), value_dtype=tf.int64), len(WORDS)
    )
    embedding = tf.compat.v1.get_variable("embedding", [len(WORDS) + 1, params["size"]])
    net = tf.nn.embedding_lookup(embedding, table.lookup(features["word"]))
    net = tf.concat([net, tf.reshape(features["weight"], [-1, 1])], axis=1)
    net = tf.compat.v1.layers.batch_normalization(net, training=is_training, name="norm")
    net = tf.compat.v1.layers.dropout(net, 0.5, training=is_training)
    logits = tf.compat.v1.layers.dense(net, len(CLASSES), name="logits")
    best = tf.argmax(logits, axis=1)
    names = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(list(range(len(CLASSES))), CLASSES, key_dtype=tf.int64), "none"
    )
    predictions = {"taste": names.lookup(best), "scores": tf.nn.softmax(logits), "word": features["word"]}
    if mode == tf.estimator.ModeKeys.PREDICT:
        tf.compat.v1.summary.histogram("scores", predictions["scores"])
        return tf.estimator.EstimatorSpec(mode, predictions=predictions)
    loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels, logits)
    updates = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)
    with tf.control_dependencies(updates):
        step = tf.compat.v1.train.get_global_step()
        train_op = tf.compat.v1.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def rows(count: int) -> dict[str, Any]:
    """Fruits: some of them are in no vocabulary."""
    random = np.random.default_rng(4)
    return {
        "word": random.choice([*WORDS, "durian"], count).astype(object),
        "weight": random.normal(2.0, 3.0, count).astype(np.float32),
    }


def train(folder: str, params: dict[str, Any]) -> dict[str, Any]:
    """Train with a plain session of TensorFlow 1, save as an Estimator would, and give what that session predicts."""
    v1 = tf.compat.v1
    fed = rows(200)
    with tf.Graph().as_default():
        v1.set_random_seed(3)
        v1.train.create_global_step()
        features = {"word": v1.placeholder(tf.string, [None]), "weight": v1.placeholder(tf.float32, [None])}
        labels = v1.placeholder(tf.int64, [None])
        with v1.variable_scope("", reuse=v1.AUTO_REUSE):
            trained = model_fn(features, labels, tf.estimator.ModeKeys.TRAIN, params)
            predicted = model_fn(features, None, tf.estimator.ModeKeys.PREDICT, params)
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.tables_initializer()])
            feed = {features["word"]: fed["word"], features["weight"]: fed["weight"]}
            for _ in range(60):
                session.run(trained.train_op, {**feed, labels: np.arange(200) % 3})
            v1.train.Saver().save(session, f"{folder}/model.ckpt", global_step=60)
            found: dict[str, Any] = session.run(predicted.predictions, feed)
            return found
