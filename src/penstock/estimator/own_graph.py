"""`input_fn` and `model_fn` in one graph of this process, as the original had them: nothing to start, nothing to copy.

For one device this is all there is. Where there are several, the same session hands its elements out later: fetching
the features instead of the predictions takes the next element without predicting it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from penstock.errors import ModelError
from penstock.estimator.calling import take_input
from penstock.estimator.legacy_keras import quiet, user_code
from penstock.estimator.model_function import ModelFunction
from penstock.estimator.run_config import session_options
from penstock.estimator.spec import ModeKeys
from penstock.runtimes.graph_restoring import Restoring, plan_restoring


class OwnGraph:
    """A graph that reads its input and predicts it.

    Args:
        function: The `model_fn`.
        input_fn: The user's function.
        hooks: Session hooks of the caller.
        place: TensorFlow's name of the device.
    """

    def __init__(self, function: ModelFunction, input_fn: Callable[..., Any], hooks: list[Any], place: str) -> None:
        import tensorflow as tf

        self.checkpoint = function.find_checkpoint()
        config = function.called.config
        self._options = session_options(config)
        if place.startswith("/CPU"):
            self._options.device_count["GPU"] = 0  # a GPU that is only there would still have its memory taken
        self._graph = tf.Graph()
        self._session: Any = None
        self._coordinator: Any = None
        with self._graph.as_default():
            function.begin()
            with user_code():
                taken = take_input(function.called, input_fn, ModeKeys.PREDICT)
            # The first GPU is where TensorFlow puts things by itself.
            where = config.device_fn or (place if place.startswith("/GPU") and place != "/GPU:0" else None)
            with self._graph.device(where):
                spec = function.build(taken.features)
            self.predictions = function.choose(spec.predictions)
            self.features = _specs(taken.features)
            self._components = tf.nest.flatten(taken.features, expand_composites=True)
            self._input_hooks = list(taken.hooks)
            self.hooks = [*hooks, *spec.prediction_hooks]
            if self.checkpoint is None:
                function.start_warm()
            self._scaffold = spec.scaffold
            self._restoring: Restoring = plan_restoring(spec.scaffold, self.checkpoint)

    def predict_all(self) -> Iterator[Any]:
        """The predictions of every element, as the session gives them."""
        if self.hooks:
            yield from self._predict_with_hooks()
            return
        run = self.start()
        while (predictions := run()) is not None:
            yield predictions

    def start(self) -> Callable[[], Any]:
        """Open the session; returns a function that predicts the next element, and gives None when there is none."""
        import tensorflow as tf

        v1 = tf.compat.v1
        with self._graph.as_default(), quiet():
            for hook in self._input_hooks:
                hook.begin()
            self._session = v1.Session(graph=self._graph, config=self._options)
            self._restoring.run(self._session)
            if v1.get_collection(v1.GraphKeys.QUEUE_RUNNERS):
                self._coordinator = v1.train.Coordinator()
                v1.train.start_queue_runners(self._session, self._coordinator)
            for hook in self._input_hooks:
                hook.after_create_session(self._session, self._coordinator)
        return self._until_the_end(self._session.make_callable(self.predictions))

    def element_reader(self) -> Callable[[], list[Any] | None]:
        """A function that takes the next element without predicting it: its tensors, flat; None when there is none."""
        return self._until_the_end(self._session.make_callable(self._components))

    def predict_element(self, element: list[Any]) -> Any:
        """Predict an element that was taken."""
        fed = {tensor.name: value for tensor, value in zip(self._components, element, strict=True)}
        return self._session.run(self.predictions, fed)

    def close(self) -> None:
        if self._coordinator is not None:
            self._coordinator.request_stop()
        if self._session is not None:
            self._session.close()
            self._session = None

    def _until_the_end(self, run: Callable[[], Any]) -> Callable[[], Any]:
        import tensorflow as tf

        def step() -> Any:
            try:
                return run()
            except (tf.errors.OutOfRangeError, StopIteration):
                return None

        return step

    def _predict_with_hooks(self) -> Iterator[Any]:
        """Hooks need the session of TensorFlow 1 that calls them."""
        import tensorflow as tf

        train = tf.compat.v1.train
        with self._graph.as_default(), quiet():
            scaffold = self._scaffold
            if scaffold.saver is None and self._restoring.saver is not None:
                scaffold = train.Scaffold(saver=self._restoring.saver, copy_from_scaffold=scaffold)
            creator = train.ChiefSessionCreator(
                scaffold, checkpoint_filename_with_path=self.checkpoint, config=self._options
            )
            session = train.MonitoredSession(creator, [*self._input_hooks, *self.hooks])
        with session:
            while not session.should_stop():
                yield session.run(self.predictions)


def _specs(features: Any) -> Any:
    """What the features are, so that another process can make room for them; None where they are not tensors."""
    import tensorflow as tf

    try:
        specs = tf.nest.map_structure(tf.type_spec_from_value, features)
    except TypeError:
        return None
    if not tf.nest.flatten(specs):
        raise ModelError("input_fn gives no features", received=repr(features)[:200])
    return specs
