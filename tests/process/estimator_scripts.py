"""Scripts that are run in processes of their own: code as it was written for `tf.estimator`, and probes of the doorway.

They are text, because nothing may be changed in them: no annotation, no other import.
"""

from __future__ import annotations

OLD_SCRIPT = """
import json
import os
import sys

import numpy as np
import tensorflow as tf

tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
folder = sys.argv[1]


def cnn_model_fn(features, labels, mode, params):
    kind = tf.feature_column.categorical_column_with_vocabulary_list("kind", ["plain", "bold"])
    columns = [tf.feature_column.embedding_column(kind, 2)]
    styles = tf.compat.v1.feature_column.input_layer({"kind": features["kind"]}, columns)
    image = tf.reshape(features["image"], [-1, 8, 8, 1])
    conv = tf.compat.v1.layers.conv2d(image, filters=4, kernel_size=3, activation=tf.nn.relu, name="conv")
    flat = tf.keras.layers.Flatten()(conv)
    flat = tf.compat.v1.layers.batch_normalization(flat, training=mode == tf.estimator.ModeKeys.TRAIN, name="norm")
    logits = tf.compat.v1.layers.dense(tf.concat([flat, styles], 1), params["classes"], name="logits")
    names = tf.constant(["class-%d" % i for i in range(params["classes"])])
    predictions = {
        "classes": tf.argmax(logits, axis=1),
        "probabilities": tf.nn.softmax(logits, name="softmax"),
        "names": tf.gather(names, tf.argmax(logits, axis=1)),
    }
    if mode == tf.estimator.ModeKeys.PREDICT:
        exports = {
            "serving_default": tf.estimator.export.PredictOutput(predictions),
            "classification": tf.estimator.export.ClassificationOutput(scores=predictions["probabilities"]),
        }
        return tf.estimator.EstimatorSpec(mode=mode, predictions=predictions, export_outputs=exports)
    loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)
    if mode == tf.estimator.ModeKeys.TRAIN:
        optimizer = tf.compat.v1.train.AdamOptimizer(learning_rate=0.01)
        with tf.control_dependencies(tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)):
            train_op = optimizer.minimize(loss=loss, global_step=tf.compat.v1.train.get_global_step())
        logging_hook = tf.estimator.LoggingTensorHook({"probabilities": "softmax"}, every_n_iter=50)
        return tf.estimator.EstimatorSpec(mode=mode, loss=loss, train_op=train_op, training_hooks=[logging_hook])
    by_keras = tf.keras.metrics.SparseCategoricalAccuracy()
    by_keras.update_state(labels, logits)
    metrics = {
        "accuracy": tf.compat.v1.metrics.accuracy(labels=labels, predictions=predictions["classes"]),
        "by_keras": by_keras,
    }
    return tf.estimator.EstimatorSpec(mode=mode, loss=loss, eval_metric_ops=metrics)


rng = np.random.default_rng(3)
images = rng.random((400, 8, 8)).astype("float32")
kinds = np.array([b"plain", b"bold"])[rng.integers(0, 2, 400)]
labels = np.argmax(images.reshape(400, -1)[:, :5], axis=1).astype("int32")

config = tf.estimator.RunConfig(tf_random_seed=1, save_checkpoints_steps=100, log_step_count_steps=50)
classifier = tf.estimator.Estimator(
    model_fn=cnn_model_fn, model_dir=os.path.join(folder, "model"), config=config, params={"classes": 5}
)
train_input_fn = tf.compat.v1.estimator.inputs.numpy_input_fn(
    {"image": images, "kind": kinds}, labels, batch_size=50, num_epochs=None, shuffle=True
)
classifier.train(input_fn=train_input_fn, steps=200)


def eval_input_fn():
    return tf.data.Dataset.from_tensor_slices(({"image": images, "kind": kinds}, labels)).batch(64)


metrics = classifier.evaluate(input_fn=eval_input_fn)
predictions = list(classifier.predict(input_fn=eval_input_fn))
raw = classifier.export_saved_model(
    os.path.join(folder, "raw"),
    tf.estimator.export.build_raw_serving_input_receiver_fn(
        {"image": tf.zeros([1, 8, 8]), "kind": tf.constant(["plain"])}
    ),
)
spec = {"image": tf.io.FixedLenFeature([8, 8], tf.float32), "kind": tf.io.FixedLenFeature([], tf.string)}
parsing = classifier.export_saved_model(
    os.path.join(folder, "parsing"), tf.estimator.export.build_parsing_serving_input_receiver_fn(spec)
)
np.savez(
    os.path.join(folder, "answers.npz"),
    image=images,
    kind=kinds,
    classes=[row["classes"] for row in predictions],
    probabilities=[row["probabilities"] for row in predictions],
    names=[row["names"] for row in predictions],
)
print("ANSWERS" + json.dumps({
    "metrics": {name: float(value) for name, value in metrics.items()},
    "accuracy": float(np.mean([row["classes"] for row in predictions] == labels)),
    "variables": classifier.get_variable_names(),
    "files": sorted(os.listdir(classifier.model_dir)),
    "raw": raw.decode(),
    "parsing": parsing.decode(),
    "is_eager": tf.executing_eagerly(),
}))
"""

START = """
import sys, penstock.estimator
assert not {"tensorflow", "keras", "tf_keras"} & set(sys.modules), "importing the doorway imports no framework"
penstock.estimator.install()
penstock.estimator.install()
"""

LINEAR = """
import json, os
import numpy as np, tensorflow as tf
from penstock import estimator

folder = sys.argv[1]
told = {}
rng = np.random.default_rng(5)
X = rng.normal(size=(96, 3)).astype("float32")
Y = (X @ np.array([[1.0], [-2.0], [0.5]]) + 0.25).astype("float32")


def linear(features, labels, mode, params):
    weight = tf.compat.v1.get_variable("weight", [3, 1], initializer=tf.compat.v1.ones_initializer())
    bias = tf.compat.v1.get_variable("bias", [params.get("width", 1)], initializer=tf.compat.v1.zeros_initializer())
    predicted = tf.matmul(features["x"], weight) + bias
    if mode == "infer":
        outputs = {
            "serving_default": tf.estimator.export.PredictOutput({"y": predicted}),
            "regression": tf.estimator.export.RegressionOutput(predicted),
        }
        return tf.estimator.EstimatorSpec(mode, {"y": predicted}, export_outputs=outputs)
    loss = tf.reduce_mean(tf.square(predicted - labels))
    if mode == "eval":
        return tf.estimator.EstimatorSpec(mode, loss=loss)
    step = tf.compat.v1.train.get_global_step()
    train_op = tf.compat.v1.train.MomentumOptimizer(0.1, 0.5).minimize(loss, step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def batches(size, epochs=None):
    return lambda: tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).repeat(epochs).batch(size)


def made(name, model_fn=linear, params=None, warm_start_from=None, **settings):
    config = estimator.RunConfig(tf_random_seed=1, **settings)
    return estimator.Estimator(model_fn, os.path.join(folder, name), config, params or {}, warm_start_from)


def values(trained):
    return {name: np.asarray(trained.get_variable_value(name)).tolist() for name in trained.get_variable_names()}


def refused(call):
    try:
        call()
    except Exception as error:
        return {"kinds": [kind.__name__ for kind in type(error).__mro__], "text": str(error)}
    return {"kinds": [], "text": ""}


def finish():
    print("ANSWERS" + json.dumps(told))
"""

SEVERAL_DEVICES = """
class Losses(tf.estimator.SessionRunHook):
    def begin(self):
        self.seen, self.loss = [], tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.LOSSES)[-1]

    def before_run(self, run_context):
        return tf.estimator.SessionRunArgs(self.loss)

    def after_run(self, run_context, run_values):
        self.seen.append(float(run_values.results))


losses = [Losses(), Losses()]
told["one"] = values(made("one").train(batches(16), hooks=losses[:1], steps=20))
told["two"] = values(made("two", devices="cpu:2").train(batches(8), hooks=losses[1:], steps=20))
told["losses"] = [hook.seen for hook in losses]
told["cpus"] = len(tf.config.list_logical_devices("CPU"))
from_numpy = estimator.inputs.numpy_input_fn({"x": X}, Y, batch_size=8, num_epochs=None, shuffle=False)
told["numpy_two"] = values(made("numpy", devices="cpu:2").train(from_numpy, steps=20))
told["two_goes_on"] = int(made("two", devices="cpu:2").train(batches(8), steps=5).get_variable_value("global_step"))
tensors = lambda: ({"x": tf.constant(X)}, tf.constant(Y))
import logging

told["warned"] = []
watch = logging.Handler(logging.WARNING)
watch.emit = lambda record: told["warned"].append(record.getMessage())
logging.getLogger("penstock.estimator").addHandler(watch)
told["odd"] = int(made("odd", devices="cpu:2").train(batches(32, 1), steps=None).get_variable_value("global_step"))
logging.getLogger("penstock.estimator").removeHandler(watch)
told["too_many_gpus"] = refused(lambda: made("none", num_gpus=99).train(batches(8), steps=1))
told["no_dataset"] = refused(lambda: made("none", devices="cpu:2").train(tensors, steps=1))
"""

GIVEN_STRATEGY = """
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
told["one"] = values(made("one").train(batches(16), steps=20))
over = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
given = made("given", train_distribute=over, save_checkpoints_steps=10)
evaluated, _ = tf.estimator.train_and_evaluate(
    given, tf.estimator.TrainSpec(batches(8), max_steps=20), tf.estimator.EvalSpec(batches(16, 1), throttle_secs=0)
)
told["given"], told["given_loss"] = values(given), float(evaluated["loss"])
told["one_loss"] = float(made("one").evaluate(batches(16, 1))["loss"])
wrapped = __import__("collections").namedtuple("DistributeConfig", ["train_distribute"])(over)
told["wrapped"] = values(made("wrapped", experimental_distribute=wrapped).train(batches(8), steps=20))
"""

HOOKS = """
seen = []


class Told(tf.estimator.SessionRunHook):
    def begin(self): seen.append("begin")
    def after_create_session(self, session, coord): seen.append("session")
    def end(self, session): seen.append("end")


class Saved(tf.estimator.CheckpointSaverListener):
    def after_save(self, session, global_step_value): seen.append(int(global_step_value))


hooked = made("hooked", save_checkpoints_steps=10, keep_checkpoint_max=2)
hooked.train(batches(16), hooks=[Told()], max_steps=25, saving_listeners=[Saved()])
told["seen"] = list(seen)
hooked.train(batches(16), hooks=[Told()], max_steps=25)
told["skipped"] = len(seen) == len(told["seen"])
told["kept"] = sorted(name for name in os.listdir(hooked.model_dir) if name.endswith(".index"))
told["two_batches"] = {k: float(v) for k, v in hooked.evaluate(batches(16), steps=2, name="short").items()}
told["evaluated"] = {k: float(v) for k, v in hooked.evaluate(batches(16, 1)).items()}
weight, bias = hooked.get_variable_value("weight"), hooked.get_variable_value("bias")
told["expected_loss"] = float(np.mean((X @ weight + bias - Y) ** 2))
told["eval_dirs"] = sorted(name for name in os.listdir(hooked.model_dir) if name.startswith("eval"))
older = hooked.model_dir + "/model.ckpt-20"
told["older"] = float(hooked.evaluate(batches(16, 1), checkpoint_path=older)["global_step"])
told["empty_input"] = values(made("empty").train(batches(16, 1), steps=100))["global_step"]
warm = made("warm", warm_start_from=hooked.model_dir)
told["warm"] = float(warm.evaluate(batches(16, 1))["loss"])
warm.train(batches(16), steps=1)
told["warm_step"] = int(warm.get_variable_value("global_step"))
more = estimator.add_metrics(hooked, lambda labels: {"label": tf.compat.v1.metrics.mean(labels)})
told["more"] = {name: float(value) for name, value in more.evaluate(batches(16, 1)).items()}
told["mean_label"] = float(Y.mean())
"""

TURNS = """
receive = tf.estimator.export.build_raw_serving_input_receiver_fn({"x": tf.zeros([1, 3])})
exporters = [
    tf.estimator.LatestExporter("latest", receive, exports_to_keep=1),
    tf.estimator.FinalExporter("final", receive),
    tf.estimator.BestExporter("best", receive),
]
turns = made("turns", save_checkpoints_steps=10)
metrics, exports = tf.estimator.train_and_evaluate(
    turns,
    tf.estimator.TrainSpec(batches(16), max_steps=30),
    tf.estimator.EvalSpec(batches(16, 1), steps=None, exporters=exporters, throttle_secs=0),
)
told["turns"] = {
    "step": int(metrics["global_step"]),
    "steps": list(estimator.experimental.read_eval_metrics(turns.eval_dir())),
    "exports": [path is not None for path in exports],
    "kept": {e.name: len(os.listdir(os.path.join(turns.model_dir, "export", e.name))) for e in exporters},
}
stop = tf.estimator.experimental.stop_if_lower_hook(turns, "loss", 1e9, run_every_secs=None, run_every_steps=1)
told["stopped"] = int(turns.train(batches(16), hooks=[stop], steps=50).get_variable_value("global_step"))
"""

REFUSALS = """
told["canned"] = refused(lambda: tf.estimator.DNNClassifier([8], []))
told["boosted"] = refused(lambda: tf.compat.v1.estimator.BoostedTreesClassifier())
told["no_checkpoint"] = refused(lambda: made("nothing").get_variable_names())
told["no_export"] = refused(lambda: made("nothing").export_saved_model(folder + "/x", receive))
wider = made("hooked", params={"width": 7})
told["misfit"] = refused(lambda: wider.evaluate(batches(16, 1)))
told["misfit_to_train"] = refused(lambda: wider.train(batches(16), steps=1))
told["misfit_to_export"] = refused(lambda: wider.export_saved_model(folder + "/x", receive))
told["nothing_left"] = os.listdir(folder + "/x") if os.path.exists(folder + "/x") else []
told["no_spec"] = refused(lambda: made("bad", lambda features, labels, params: 3).train(batches(16), steps=1))
told["no_labels"] = refused(lambda: made("bad", lambda features, params: 3).evaluate(batches(16, 1)))


def without_train_op(features, labels, mode, params):
    return tf.estimator.EstimatorSpec(mode, loss=tf.reduce_mean(features["x"]))


told["no_train_op"] = refused(lambda: made("bad", without_train_op).train(batches(16), steps=1))


def with_old_tensor(features, labels, mode, params):
    return tf.estimator.EstimatorSpec(mode, loss=elsewhere, train_op=elsewhere)


with tf.Graph().as_default():
    elsewhere = tf.constant(1.0)
told["elsewhere"] = refused(lambda: made("bad", with_old_tensor).train(batches(16), steps=1))
told["overridden"] = refused(lambda: type("Mine", (estimator.Estimator,), {"train": None})(linear, folder))
told["names"] = [
    tf.estimator is penstock.estimator,
    tf.compat.v1.estimator is penstock.estimator,
    __import__("tensorflow.compat.v1", fromlist=["estimator"]).estimator is penstock.estimator,
    __import__("tensorflow_estimator", fromlist=["estimator"]).estimator is penstock.estimator,
    __import__("tensorflow.estimator.export", fromlist=["x"]).PredictOutput is tf.estimator.export.PredictOutput,
    issubclass(tf.estimator.SessionRunHook, tf.compat.v1.train.SessionRunHook),
]
frame = __import__("pandas").DataFrame({"a": [1.0, 2.0, 3.0], "b": ["x", "y", "z"]})
with tf.Graph().as_default(), tf.compat.v1.train.MonitoredSession() as session:
    pass
with tf.Graph().as_default():
    taken = estimator.inputs.pandas_input_fn(frame, frame["a"], batch_size=2, shuffle=False)()
    with tf.compat.v1.train.MonitoredSession() as session:
        features, target = session.run(taken)
told["pandas"] = [features["a"].tolist(), [text.decode() for text in features["b"]], target.tolist()]
"""

KERAS_3_IN_USE = """
import os, sys, json
import numpy as np, tensorflow as tf
from tensorflow.keras import layers, metrics
from penstock import estimator

folder = sys.argv[1]
modern = tf.keras.Sequential([layers.Dense(2)])
before = tf.keras.__version__


def old_style(features, labels, mode):
    logits = tf.compat.v1.layers.dense(tf.keras.layers.Dense(4)(features["x"]), 1)
    loss = tf.reduce_mean(tf.square(logits - labels))
    op = tf.compat.v1.train.GradientDescentOptimizer(0.01).minimize(loss, tf.compat.v1.train.get_global_step())
    return estimator.EstimatorSpec(mode, loss=loss, train_op=op)


def holds_keras_3(features, labels, mode):
    error = metrics.MeanSquaredError()
    return estimator.EstimatorSpec(mode, loss=tf.reduce_mean(labels), eval_metric_ops={"error": error})


def batches():
    return tf.data.Dataset.from_tensors(({"x": np.ones((4, 3), "f4")}, np.ones((4, 1), "f4"))).repeat()


def says_tf_estimator(features, labels, mode):
    from tensorflow.estimator import ModeKeys
    logits = tf.compat.v1.layers.dense(features["x"], 1, name="logits")
    if mode == ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, {"y": logits})
    loss = tf.reduce_mean(tf.square(logits - labels))
    op = tf.compat.v1.train.GradientDescentOptimizer(0.01).minimize(loss, tf.compat.v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=op)


def left_behind():
    modules = [name for name in sys.modules if name.startswith(("tensorflow.estimator", "tensorflow_estimator"))]
    names = ["tf.estimator"] if hasattr(tf, "estimator") else []
    return [*modules, *names, *({"TF_USE_LEGACY_KERAS"} & set(os.environ))]


receive = estimator.export.build_raw_serving_input_receiver_fn({"x": np.ones((1, 3), "f4")})
scoped = estimator.Estimator(says_tf_estimator, folder + "/scoped", estimator.RunConfig(devices="cpu:1"))
calls = {
    "train": lambda: scoped.train(batches, steps=1),
    "evaluate": lambda: scoped.evaluate(batches, steps=1),
    "predict": lambda: next(scoped.predict(batches)),
    "export_saved_model": lambda: scoped.export_saved_model(folder + "/export", receive),
}
left = {}
for name, call in calls.items():
    call()
    left[name] = left_behind()
names = estimator.Estimator(old_style, folder + "/old").train(batches, steps=3).get_variable_names()
try:
    estimator.Estimator(holds_keras_3, folder + "/new").evaluate(batches, steps=3)
    problem = ""
except Exception as error:
    problem = type(error).__name__ + ": " + str(error)
after = modern(np.ones((2, 3), "f4")).shape
print("ANSWERS" + json.dumps({
    "names": names, "problem": problem, "left": left, "shape": list(after),
    "before": before, "after": tf.keras.__version__,
}))
"""
