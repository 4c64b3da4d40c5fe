"""Goes on after estimator_scripts.LINEAR, HOOKS and TURNS: what tf.estimator's own tests hold it to."""

from __future__ import annotations

VALUES = """
import logging

v1 = tf.compat.v1
estimator_log = logging.getLogger("penstock.estimator")


def several_values(features, labels, mode):
    loss, step = tf.reduce_mean(labels), v1.assign_add(v1.train.get_global_step(), 1)
    update = (tf.no_op(), tf.no_op())
    nested = (((tf.constant(2.0), tf.constant(1)), {"third": tf.constant([3.0, 4.0])}), update)
    return estimator.EstimatorSpec(mode, loss=loss, train_op=step, eval_metric_ops={"nested": nested})


several = estimator.Estimator(several_values, folder + "/several")
(two, one), third = several.train(batches(16), steps=1).evaluate(batches(16, 1))["nested"]
told["nested"] = [float(two), int(one), third["third"].tolist()]
told["nested_events"] = sorted(next(iter(estimator.experimental.read_eval_metrics(several.eval_dir()).values())))


def by_hand(input_fn):
    answers = []
    with tf.Graph().as_default(), v1.Session() as session:
        taken = input_fn()
        try:
            while True:
                answers.append(session.run(taken))
        except tf.errors.OutOfRangeError:
            return answers


found = by_hand(estimator.inputs.numpy_input_fn({"a": np.arange(5)}, np.arange(5) * 2, 2, num_epochs=2, shuffle=False))
told["numpy_by_hand"] = [[features["a"].tolist(), labels.tolist()] for features, labels in found]
told["no_epochs"] = by_hand(estimator.inputs.numpy_input_fn({"a": np.arange(5)}, num_epochs=0, shuffle=False))
found = by_hand(estimator.inputs.pandas_input_fn(frame, frame[["a"]], batch_size=3, num_epochs=4, shuffle=True))
told["pandas_by_hand"] = sorted(label for _, labels in found for label in labels["a"].tolist())
empty = estimator.Estimator(linear, "")
told["no_model_dir"] = os.path.isdir(empty.model_dir) and empty.config.model_dir == empty.model_dir
receiver = estimator.export.SupervisedInputReceiver
one = receiver(tf.constant(5), tf.constant(6), tf.constant(["fed"]))
told["one_receiver"] = [int(one.features), int(one.labels), list(one.receiver_tensors)]
told["no_features"] = refused(lambda: receiver(None, one.labels, one.receiver_tensors))
told["no_label_name"] = refused(lambda: receiver(one.features, {1.5: one.labels}, one.receiver_tensors))
told["no_tensor"] = refused(lambda: receiver(one.features, one.labels, {"a": [1]}))
told["no_listener"] = refused(lambda: tf.estimator.TrainSpec(batches(16), saving_listeners=[Told()]))
told["no_column"] = refused(lambda: tf.estimator.classifier_parse_example_spec([column], "label", weight_column=3))
with tf.Graph().as_default():
    sparse = tf.SparseTensor([[0]], [1.0], [1])
    told["sparse_prediction"] = refused(lambda: estimator.EstimatorSpec("infer", {"s": sparse}))
    told["sparse_to_evaluate"] = refused(lambda: estimator.EstimatorSpec("eval", sparse, loss=tf.constant(1.0)))
    told["sparse_loss"] = refused(lambda: estimator.EstimatorSpec("eval", loss=sparse))
warnings = []
handler = logging.Handler()
handler.emit = lambda record: warnings.append(record.getMessage())
estimator_log.addHandler(handler)
next(hooked.predict(lambda: {"x": tf.constant(X)}))
told["endless"] = list(warnings)
next(hooked.predict(batches(16, 1)))
next(hooked.predict(estimator.inputs.numpy_input_fn({"x": X}, shuffle=False)))
estimator_log.removeHandler(handler)
told["endless_told_once"] = len(warnings)
"""

CHECKPOINTS = """
from tensorflow.core.protobuf import saved_model_pb2

told["no_variable"] = refused(lambda: hooked.get_variable_value("nothing"))


def one_more(features, labels, mode, params):
    v1.get_variable("more", [2], initializer=v1.zeros_initializer())
    return linear(features, labels, mode, params)


told["more_variables"] = refused(lambda: made("hooked", one_more).evaluate(batches(16, 1)))


class Watched:
    "Hands every call on to a saver."

    def __init__(self, saver):
        self.saver, self.saver_def, self.calls = saver, saver.saver_def, []

    def __getattr__(self, name):
        def call(*arguments, **named):
            self.calls.append(name)
            return getattr(self.saver, name)(*arguments, **named)
        return call


def with_watched_saver(features, labels, mode, params):
    global watched
    spec = linear(features, labels, mode, params)
    watched = Watched(v1.train.Saver())
    return spec._replace(scaffold=v1.train.Scaffold(saver=watched))


by_proxy = made("hooked", with_watched_saver)
told["proxy"] = {
    "evaluates": float(by_proxy.evaluate(batches(16, 1))["loss"]), "evaluated_by": list(watched.calls),
    "predicts": first_answer(by_proxy) == first_answer(hooked), "predicted_by": list(watched.calls),
    "exports": os.path.isdir(by_proxy.export_saved_model(folder + "/proxy", receive)), "exported_by": watched.calls,
}


def with_objects(features, labels, mode):
    scale, step = v1.get_variable("scale", initializer=2.0), v1.train.get_global_step()
    scaffold = v1.train.Scaffold(saver=tf.train.Checkpoint(scale=scale, step=step))
    predicted = features["x"][:, :1] * scale
    updates = tf.group(v1.assign(scale, 3.0), v1.assign_add(step, 1))
    loss = tf.reduce_mean(predicted)
    return estimator.EstimatorSpec(mode, {"y": predicted}, loss=loss, train_op=updates, scaffold=scaffold)


objects = estimator.Estimator(with_objects, folder + "/objects").train(batches(16), steps=1)
served = tf.saved_model.load(objects.export_saved_model(folder + "/objects-export", receive).decode())
told["objects"] = float(served.signatures["serving_default"](x=tf.ones([1, 3]))["y"][0, 0])


def attributes(export):
    with open(export.decode() + "/saved_model.pb", "rb") as file:
        [graph] = saved_model_pb2.SavedModel.FromString(file.read()).meta_graphs
    return "container" in next(node for node in graph.graph_def.node if node.name == "weight").attr


told["attributes"] = [
    attributes(hooked.export_savedmodel(folder + "/kept", receive)),
    attributes(hooked.export_savedmodel(folder + "/stripped", receive, strip_default_attrs=True)),
    attributes(hooked.export_saved_model(folder + "/stripped", receive)),
]


class LedByAnother(estimator.RunConfig):
    is_chief = False


def with_chief_hook(features, labels, mode, params):
    return linear(features, labels, mode, params)._replace(training_chief_hooks=[Told()])


seen.clear()
follower = estimator.Estimator(with_chief_hook, folder + "/led", LedByAnother(session_creation_timeout_secs=1))
told["led"] = refused(lambda: follower.train(batches(16), steps=1))
told["chief_hooks"] = list(seen)
os.environ["TF_CONFIG"] = json.dumps({
    "cluster": {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}, "task": {"type": "worker", "index": 0}
})
in_cluster = made("cluster")
del os.environ["TF_CONFIG"]
told["cluster"] = [
    in_cluster.config.cluster_spec.as_dict(),
    list(in_cluster.config.session_config.device_filters),
    list(in_cluster.config.session_options().device_filters),
]
told["cluster_to_train"] = refused(lambda: in_cluster.train(batches(16), steps=1))
"""
