"""Training in this process: the loop, its hooks and its checkpoints, on one device or on several.

With several devices, each has a copy of the model, and the variables are mirrored. Each device takes the next batch of
the dataset, so a step uses as many batches as there are devices. The optimizers of `tf.compat.v1.train` scale the loss
by the number of copies: a step on N devices equals one step over the N batches together.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.estimator.calling import (
    LOG,
    Called,
    begin_graph,
    call_input_fn,
    call_model_fn,
    split_element,
    starts_iterator,
    take_input,
    user_code,
)
from penstock.estimator.checkpoints import repair_note
from penstock.estimator.installing import doorway_in_place
from penstock.estimator.legacy_keras import quiet
from penstock.estimator.placing import Placing, in_session, place, strategy_over
from penstock.estimator.refusals import WrongValue
from penstock.estimator.spec import EstimatorSpec, ModeKeys
from penstock.runtimes.frameworks import tf
from penstock.runtimes.tensorflow.restoring import check_restorable, newest_checkpoint


class Training(NamedTuple):
    """One call of `Estimator.train`."""

    called: Called
    input_fn: Callable[..., Any]
    hooks: list[Any]
    listeners: list[Any]
    warm_start: Any
    """`WarmStartSettings`, or None."""


class _Built(NamedTuple):
    """The operations in the graph of training."""

    spec: EstimatorSpec
    global_step: Any
    input_hooks: list[Any]


def train(training: Training) -> Any:
    """Train until a hook or the end of the input stops it. Returns the loss of the last step; None without any step."""
    config = training.called.config
    options = config.session_options()
    placing = place(config) if config.training_strategy is None else Placing((), True)
    if len(placing.devices) == 1:
        return _train_on_one(training, placing, options)
    try:
        return _train_on_several(training, placing, options)
    except _NoDataset as refusal:
        if placing.is_asked_for:
            raise WrongValue(
                "to train on several devices, input_fn must return a tf.data.Dataset",
                received=str(refusal),
                hint="return a dataset, or take one device: RunConfig(devices='gpu:0')",
            ) from None
        LOG.warning("training on one device of %s: input_fn returns no dataset", len(placing.devices))
        return _train_on_one(training, Placing(placing.devices[:1], False), options)


def _train_on_one(training: Training, placing: Placing, options: Any) -> Any:
    config = training.called.config
    placing.limit(options)
    with tf.Graph().as_default() as graph, graph.device(config.device_fn or placing.scope):
        begin_graph(config)
        with user_code(config.tf_random_seed):
            taken = take_input(training.called, training.input_fn, ModeKeys.TRAIN)
            spec = call_model_fn(training.called, taken.features, taken.labels, ModeKeys.TRAIN)
        built = _Built(spec, tf.compat.v1.train.get_global_step(), list(taken.hooks))
        return _run_loop(training, built, options)


class _NoDataset(Exception):
    """The input is no dataset, so its batches cannot go to several devices in turn."""


def _train_on_several(training: Training, placing: Placing, options: Any) -> Any:
    """Build the graph under the strategy of `config`, or one over `placing`, and run the loop of training over it."""
    called = training.called
    graph = tf.Graph()
    with graph.as_default(), quiet():
        strategy = called.config.training_strategy or strategy_over(placing, options)
        strategy.configure(options)
    with (
        graph.as_default(),
        in_session(strategy, options),
        strategy.scope(),
        strategy._scale_loss_for_estimator_enabled(),
    ):
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
        return _run_loop(training, _Built(spec, global_step, hooks), options)


def _deal_out(training: Training, strategy: Any) -> Any:
    def dataset(context: Any) -> Any:
        as_dataset = getattr(training.input_fn, "as_dataset", None)
        if as_dataset is not None:
            return as_dataset()
        result = call_input_fn(training.called, training.input_fn, ModeKeys.TRAIN, context)
        if not isinstance(result, tf.data.Dataset):
            raise _NoDataset(type(result).__name__)
        return result

    def checked(context: Any) -> Any:
        given = dataset(context)
        _say_what_is_left_out(given, strategy.num_replicas_in_sync)
        return given

    return strategy.make_input_fn_iterator(checked)


def _say_what_is_left_out(dataset: Any, devices: int) -> None:
    """Warn about unused batches: a step takes one for each device, so the last ones of the input may be left over."""
    count = _num_batches(dataset)
    if count == tf.data.UNKNOWN_CARDINALITY:
        LOG.warning("should %s devices not divide the number of batches, the last ones are not trained on", devices)
    elif count != tf.data.INFINITE_CARDINALITY and count % devices:
        LOG.warning(
            "%s devices do not divide the %s batches of the input: the last %s not trained on",
            devices,
            count,
            "is" if count % devices == 1 else f"{count % devices} are",
        )


def _num_batches(dataset: Any) -> int:
    count = dataset.cardinality()
    options = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
    try:
        with tf.compat.v1.Session(graph=count.graph, config=options) as session:
            return int(session.run(count))
    except tf.errors.OpError:  # the dataset may depend on variables or tables that are not initialised yet
        return int(tf.data.UNKNOWN_CARDINALITY)


def _read_step_once(strategy: Any, global_step: Any) -> None:
    """Add the operation from which hooks read the step: a mirrored step must be read by the strategy."""
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
    """How the losses of all copies are reduced: as the optimizer that scaled them defines, else by their sum."""
    if getattr(tf.compat.v1.get_default_graph(), "_is_loss_scaled_by_optimizer", False):
        return tf.compat.v1.distribute.get_loss_reduction()
    return tf.distribute.ReduceOp.SUM


def _one_scaffold(scaffolds: Any, strategy: Any) -> Any:
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


def _run_loop(training: Training, built: _Built, options: Any) -> Any:
    """Run the loop of training over the built graph, in a session that restores, saves, summarises and recovers."""
    config, spec = training.called.config, built.spec
    _warm_start(training)
    _summarise_loss(spec.loss)
    _add_saver(training, spec)
    _check_newest(config.model_dir, spec.scaffold)
    hooks = [*built.input_hooks, *training.hooks, *_watching(training, built), *spec.training_hooks]
    chief_hooks = [*_saving(training, spec, hooks), *spec.training_chief_hooks]
    loss, steps = None, 0
    with (
        quiet(),
        doorway_in_place(),  # hooks may use `tf.estimator`
        tf.compat.v1.train.MonitoredTrainingSession(
            is_chief=config.is_chief,  # in the user's own config class, another process may be the chief
            checkpoint_dir=config.model_dir,
            scaffold=spec.scaffold,
            hooks=hooks,
            chief_only_hooks=chief_hooks,
            save_checkpoint_secs=0,  # the hook of _saving does it
            save_summaries_steps=config.save_summary_steps,
            config=options,
            max_wait_secs=config.session_creation_timeout_secs,
            log_step_count_steps=config.log_step_count_steps,
            save_graph_def=config.checkpoint_save_graph_def,
        ) as session,
    ):
        while not session.should_stop():
            _, loss = session.run([spec.train_op, spec.loss])
            steps += 1
    if not steps:
        LOG.warning("training made no step: the input is empty")
    return loss


def _check_newest(model_dir: str, scaffold: Any) -> None:
    """Check that TensorFlow can continue from the newest checkpoint, and make sure that it does."""
    newest = newest_checkpoint(model_dir)
    if newest is not None:
        check_restorable(newest, scaffold)
        repair_note(model_dir)


def _warm_start(training: Training) -> None:
    if training.warm_start is not None and newest_checkpoint(training.called.config.model_dir) is None:
        with quiet():
            tf.compat.v1.train.warm_start(*training.warm_start)


def _summarise_loss(loss: Any) -> None:
    graph_keys = tf.compat.v1.GraphKeys
    if not any(summary.op.name == "loss" for summary in tf.compat.v1.get_collection(graph_keys.SUMMARIES)):
        tf.compat.v1.summary.scalar("loss", loss)
    tf.compat.v1.add_to_collection(graph_keys.LOSSES, loss)


def _add_saver(training: Training, spec: EstimatorSpec) -> None:
    """Add a saver that writes the same files as the original: `model.ckpt-N`, and relative paths in the state file."""
    savers = tf.compat.v1.GraphKeys.SAVERS
    if spec.scaffold.saver or tf.compat.v1.get_collection(savers):
        return
    config = training.called.config
    saver = tf.compat.v1.train.Saver(
        sharded=True,
        max_to_keep=config.keep_checkpoint_max,
        keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
        defer_build=True,
        save_relative_paths=True,
    )
    tf.compat.v1.add_to_collection(savers, saver)


def _watching(training: Training, built: _Built) -> list[Any]:
    """Hooks that stop training if the loss is no number, and log the loss."""
    hooks = [tf.compat.v1.train.NanTensorHook(built.spec.loss)]
    every = training.called.config.log_step_count_steps
    if every is not None:
        logged = {"loss": built.spec.loss, "step": built.global_step}
        hooks.append(tf.compat.v1.train.LoggingTensorHook(logged, every_n_iter=every))
    return hooks


def _saving(training: Training, spec: EstimatorSpec, hooks: list[Any]) -> list[Any]:
    """The hook that saves checkpoints, unless the user gave one. The listeners are added to the hook that is used."""
    config, saver_hook = training.called.config, tf.compat.v1.train.CheckpointSaverHook
    savers = [hook for hook in (*hooks, *spec.training_chief_hooks) if isinstance(hook, saver_hook)]
    added = []
    if not savers and (config.save_checkpoints_secs or config.save_checkpoints_steps):
        added = [
            saver_hook(
                config.model_dir,
                save_secs=config.save_checkpoints_secs,
                save_steps=config.save_checkpoints_steps,
                scaffold=spec.scaffold,
                save_graph_def=config.checkpoint_save_graph_def,
            )
        ]
        savers = added
    if training.listeners and not savers:
        raise WrongValue(
            "saving_listeners need checkpoints, and none are saved",
            hint="RunConfig(save_checkpoints_steps=…) or RunConfig(save_checkpoints_secs=…)",
        )
    for listener in training.listeners:
        if listener not in savers[0]._listeners:
            savers[0]._listeners.append(listener)
    return added
