"""The graph of training on several devices: one copy of the model on each, its variables mirrored.

Each device takes the next batch of the dataset, so a step sees as many batches as there are devices. The optimizers of
`tf.compat.v1.train` scale the loss by the number of copies: a step over N devices is one over the N batches together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.estimator.calling import begin_graph, call_input_fn, call_model_fn, split_element, starts_iterator
from penstock.estimator.legacy_keras import quiet, user_code
from penstock.estimator.placing import Placing, strategy_over
from penstock.estimator.spec import EstimatorSpec, ModeKeys

if TYPE_CHECKING:
    from penstock.estimator.training import Training


class NoDataset(Exception):
    """The input cannot be dealt out to several devices."""


def train_on_several(training: Training, placing: Placing, options: Any) -> Any:
    """Build the graph under the strategy of `config`, or one over `placing`, and run the loop of training over it."""
    import tensorflow as tf

    from penstock.estimator.training import Built, run_loop

    called = training.called
    graph = tf.Graph()
    with graph.as_default(), quiet():
        strategy = called.config.train_distribute or strategy_over(placing, options)
        strategy.configure(options)
    with graph.as_default(), strategy.scope(), strategy._scale_loss_for_estimator_enabled():
        with user_code(called.config.tf_random_seed):
            tf.compat.v1.set_random_seed(called.config.tf_random_seed)
            iterator = _deal_out(training, strategy)
            global_step = begin_graph(called.config)
            _read_step_once(strategy, global_step)
            features, labels = split_element(iterator.get_next())
            grouped = strategy.extended.call_for_each_replica(
                lambda inputs, targets: call_model_fn(called, inputs, targets, ModeKeys.TRAIN), args=(features, labels)
            )
        with quiet():
            spec = _ungroup(grouped, strategy)
        hooks = [starts_iterator(iterator.initialize)]
        return run_loop(training, Built(spec, global_step, hooks), options)


def _deal_out(training: Training, strategy: Any) -> Any:
    import tensorflow as tf

    def dataset(context: Any) -> Any:
        as_dataset = getattr(training.input_fn, "as_dataset", None)
        if as_dataset is not None:
            return as_dataset()
        result = call_input_fn(training.called, training.input_fn, ModeKeys.TRAIN, context)
        if not isinstance(result, tf.data.Dataset):
            raise NoDataset(type(result).__name__)
        return result

    return strategy.make_input_fn_iterator(dataset)


def _read_step_once(strategy: Any, global_step: Any) -> None:
    """The hooks look for the operation that reads the step; a mirrored one must be read by the strategy."""
    import tensorflow as tf
    from tensorflow.python.training import training_util

    tf.compat.v1.add_to_collection(training_util.GLOBAL_STEP_READ_KEY, strategy.extended.read_var(global_step))


def _ungroup(grouped: Any, strategy: Any) -> EstimatorSpec:
    """One spec out of those of all copies: their operations together, the loss over all, the hooks of the first."""

    def of_first(hooks: Any) -> list[Any]:
        return [strategy.experimental_local_results(hook)[0] for hook in hooks]

    return EstimatorSpec(
        mode=ModeKeys.TRAIN,
        loss=strategy.reduce(_loss_reduction(), grouped.loss, axis=None),
        train_op=strategy.group(grouped.train_op),
        training_hooks=of_first(grouped.training_hooks),
        training_chief_hooks=of_first(grouped.training_chief_hooks),
        scaffold=_one_scaffold(strategy.experimental_local_results(grouped.scaffold), strategy),
    )


def _loss_reduction() -> Any:
    """Where an optimizer scaled the loss of each copy, they add up as it says; else they are summed."""
    import tensorflow as tf

    if getattr(tf.compat.v1.get_default_graph(), "_is_loss_scaled_by_optimizer", False):
        return tf.compat.v1.distribute.get_loss_reduction()
    return tf.distribute.ReduceOp.SUM


def _one_scaffold(scaffolds: Any, strategy: Any) -> Any:
    import tensorflow as tf

    def together(name: str) -> Any:
        operations = [getattr(s, name) for s in scaffolds if getattr(s, name) is not None]
        return strategy.group(operations) if operations else None

    def first(name: str) -> Any:
        return next((getattr(s, name) for s in scaffolds if getattr(s, name) is not None), None)

    return tf.compat.v1.train.Scaffold(
        init_op=together("init_op"),
        init_feed_dict=first("init_feed_dict"),
        init_fn=first("_user_init_fn"),
        ready_op=first("ready_op"),
        ready_for_local_init_op=first("ready_for_local_init_op"),
        local_init_op=together("local_init_op"),
        summary_op=first("summary_op"),
        saver=first("saver"),
    )
