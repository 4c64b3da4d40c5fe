"""Goes on after estimator_scripts.LINEAR, HOOKS and TURNS: which checkpoint is used, and what is written."""

from __future__ import annotations

CHECKPOINTS = """
import shutil

v1 = tf.compat.v1


def noted(name, note):
    shutil.copytree(hooked.model_dir, os.path.join(folder, name))
    with open(os.path.join(folder, name, "checkpoint"), "w") as file:
        file.write(note)
    return made(name)


def first_answer(trained):
    return float(next(trained.predict(batches(16, 1)))["y"][0])


note = 'model_checkpoint_path: "/elsewhere/model.ckpt-25" all_model_checkpoint_paths: "/elsewhere/model.ckpt-20"'
moved = noted("moved", note)
told["moved"] = {
    "newest": os.path.basename(moved.latest_checkpoint()),
    "predicts": first_answer(moved) == first_answer(hooked),
    "evaluates": float(moved.evaluate(batches(16, 1))["loss"]),
    "exports": os.path.isdir(moved.export_saved_model(folder + "/moved-export", receive)),
    "trains": int(moved.train(batches(16), steps=2).get_variable_value("global_step")),
    "note": open(os.path.join(moved.model_dir, "checkpoint")).read(),
}
with tf.Graph().as_default(), v1.Session() as session:
    v1.get_variable("weight", initializer=tf.constant([[2.0], [0.0], [0.0]]))
    v1.get_variable("bias", initializer=tf.constant([1.0]))
    session.run(v1.global_variables_initializer())
    v1.train.Saver().save(session, os.path.join(folder, "stepless", "model.ckpt"))
stepless = made("stepless")
told["stepless"] = {
    "predicts": bool(abs(first_answer(stepless) - (2 * X[0, 0] + 1)) < 1e-6),
    "evaluates": float(stepless.evaluate(batches(16, 1))["loss"]),
    "expected": float(np.mean((2 * X[:, :1] + 1 - Y) ** 2)),
    "exports": os.path.isdir(stepless.export_saved_model(folder + "/stepless-export", receive)),
}


def beginning(with_values):
    def model_fn(features, labels, mode):
        predicted, scaffold = with_values(features["x"])
        loss = None if mode == "infer" else tf.reduce_mean(predicted)
        return estimator.EstimatorSpec(mode, {"y": predicted}, loss=loss, scaffold=scaffold)
    return estimator.Estimator(model_fn, os.path.join(folder, "untrained"), estimator.RunConfig(devices="cpu:1"))


def random_kernel(x, name="weight", **scaffold):
    kernel = v1.get_variable(name, [3, 1], initializer=v1.glorot_uniform_initializer())
    return tf.matmul(x, kernel), v1.train.Scaffold(**scaffold)


def set_by_init_fn(x):
    def give(scaffold, session):
        kernel, value = [v for v in v1.global_variables() if v.op.name == "weight"][0], np.array([[3.0], [0.0], [0.0]])
        kernel.load(value, session)
    return random_kernel(x, init_fn=give)


def from_another(x):
    answers = random_kernel(x)
    v1.train.init_from_checkpoint(folder + "/stepless", {"weight": "weight"})
    return answers


def ratio(beginner):
    return float(next(beginner.predict(batches(16, 1)))["y"][0] / X[0, 0])


told["untrained"] = {
    "no variables": ratio(beginning(lambda x: (5 * x[:, :1], None))),
    "init_fn": ratio(beginning(set_by_init_fn)),
    "other checkpoint": ratio(beginning(from_another)),
    "constant": ratio(beginning(lambda x: (x[:, :1] * v1.get_variable("scale", initializer=tf.constant(7.0)), None))),
    "evaluated": float(beginning(from_another).evaluate(batches(16, 1))["loss"]),
}
told["random_to_predict"] = refused(lambda: next(beginning(random_kernel).predict(batches(16, 1))))
told["random_to_evaluate"] = refused(lambda: beginning(random_kernel).evaluate(batches(16, 1)))
told["no_such_path"] = refused(lambda: hooked.evaluate(batches(16, 1), checkpoint_path=hooked.model_dir + "/other"))


told["raised"] = refused(lambda: next(made("hooked", lambda features, params: {}["x"]).predict(batches(16, 1))))


def breaks_in_tensorflow(features, params):
    raise tf.errors.InvalidArgumentError(None, None, "not of this size")


told["raised_by_tensorflow"] = refused(lambda: next(made("hooked", breaks_in_tensorflow).predict(batches(16, 1))))
told["to_estimator"] = refused(lambda: tf.keras.estimator.model_to_estimator(tf.keras.Sequential()))
tf.get_logger().setLevel("ERROR")  # the user's own call is deprecated
column = tf.feature_column.numeric_column("x")
tf.get_logger().setLevel("WARNING")
told["parsed"] = [
    sorted(tf.estimator.classifier_parse_example_spec([column], "label", weight_column="weight")),
    str(tf.estimator.regressor_parse_example_spec([column], "label", label_dimension=2)["label"].shape),
]
told["label_twice"] = refused(lambda: tf.estimator.regressor_parse_example_spec([column], "x"))
"""

LARGE_ARRAYS = """
large = np.repeat(X, 40_000, axis=0)[:400_000]
labels = np.arange(400_000, dtype="f4")[:, None]
rows = {"x": large, "text": np.array([b"a", "\u00fc", "ccc", "d"] * 100_000, dtype=object)}
heavy = made("heavy", save_checkpoints_steps=2)
heavy.train(estimator.inputs.numpy_input_fn(rows, labels, batch_size=32, num_epochs=None, shuffle=True), steps=3)
told["large"] = {
    "bytes": large.nbytes + labels.nbytes,
    "written": sum(os.path.getsize(os.path.join(heavy.model_dir, name)) for name in os.listdir(heavy.model_dir)),
}
with tf.Graph().as_default():
    taken = estimator.inputs.numpy_input_fn(rows, labels, batch_size=3, shuffle=False)()
    told["large"]["shapes"] = [str(taken[0]["x"].shape), str(taken[0]["text"].shape), str(taken[1].shape)]
    with tf.compat.v1.train.MonitoredSession() as session:
        session.run(taken)
        features, numbers = session.run(taken)
told["large"]["second"] = [numbers.ravel().tolist(), [text.decode() for text in features["text"]]]
"""
