"""`input_fn` and `model_fn` in one graph of this process, as in the original: nothing is started, nothing is copied.

One device needs nothing else. With several devices, the same session also reads elements for replicas: if it fetches
the features instead of the predictions, it takes the next element without predicting it.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any

from penstock.errors import ModelError
from penstock.estimator.calling import LOG, take_input, user_code
from penstock.estimator.legacy_keras import quiet
from penstock.estimator.model_function import ModelFunction
from penstock.estimator.spec import ModeKeys
from penstock.runtimes.frameworks import tf
from penstock.runtimes.tensorflow.restoring import plan_restoring, session_creator


class OwnGraph:
    """A graph that reads its input and predicts it.

    Args:
        function: The `model_fn`.
        input_fn: The user's function.
        hooks: Session hooks of the caller.
        device: TensorFlow's name of the device.
        is_alone: Whether this process predicts alone, without replicas on its device and on others.
    """

    def __init__(
        self,
        function: ModelFunction,
        input_fn: Callable[..., Any],
        hooks: list[Any],
        device: str,
        *,
        is_alone: bool = True,
    ) -> None:
        self.checkpoint = function.find_checkpoint()
        config = function.called.config
        self._options = config.session_options()
        if device.startswith("/CPU"):
            self._options.device_count["GPU"] = 0  # otherwise TensorFlow takes the memory of a GPU that it does not use
        if not is_alone:
            self._options.gpu_options.allow_growth = True  # leaves room for another process
        self._graph = tf.Graph()
        self._session: Any = None
        self._closes_later: Any = None
        self._is_reading = False
        self._lock = threading.Lock()
        self._coordinator: Any = None
        with self._graph.as_default():
            function.begin()
            with user_code():
                taken = take_input(function.called, input_fn, ModeKeys.PREDICT)
            if _never_ends(self._graph):
                LOG.warning("input_fn returns tensors that neither a dataset nor a queue fills: predictions never end")
            self.calls_python = not (is_alone or hasattr(input_fn, "as_dataset")) and _calls_python(self._graph)
            # TensorFlow uses the first GPU by itself, so only another one is named.
            where = config.device_fn or (device if device.startswith("/GPU") and device != "/GPU:0" else None)
            with self._graph.device(where):
                spec = function.build(taken.features)
            self.predictions = function.choose(spec.predictions)
            self.features = _specs(taken.features)
            tensors = [leaf for leaf in tf.nest.flatten(taken.features) if tf.is_tensor(leaf)]
            self._components = tf.nest.flatten(tensors, expand_composites=True)
            self._input_hooks = list(taken.hooks)
            self.hooks = [*hooks, *spec.prediction_hooks]
            if self.checkpoint is None:
                function.start_warm()
            self._scaffold = spec.scaffold
            self._restoring = None if self.hooks else plan_restoring(spec.scaffold, self.checkpoint)

    def predict_all(self) -> Iterator[Any]:
        """The predictions of every element, as the session gives them."""
        if self.hooks:
            yield from self._predict_with_hooks()
            return
        run = self.start()
        while (predictions := run()) is not None:
            yield predictions

    def start(self) -> Callable[[], Any]:
        """Open the session. Returns a function that predicts the next element, and gives None after the last one."""
        v1 = tf.compat.v1
        assert self._restoring is not None
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
        """A function that takes the next element without predicting it. It gives its tensors, flat; None at the end."""
        return self._until_the_end(self._holding_open(self._session.make_callable(self._components)))

    def predict_element(self, element: list[Any]) -> Any:
        """Predict an element that was taken."""
        fed = {tensor.name: value for tensor, value in zip(self._components, element, strict=True)}
        return self._session.run(self.predictions, fed)

    def close(self) -> None:
        """Close the session. If another thread waits for input in it, it is closed when that input arrives."""
        if self._coordinator is not None:
            self._coordinator.request_stop()
            self._coordinator = None
        with self._lock:
            session, self._session = self._session, None
            if session is not None and self._is_reading:
                self._closes_later = session
            elif session is not None:
                session.close()

    def _holding_open(self, read: Callable[[], Any]) -> Callable[[], Any]:
        """`read`, during which `close` does not close the session: that would wait for input, which may never come."""

        def step() -> Any:
            with self._lock:
                self._is_reading = True
            try:
                return read()
            finally:
                with self._lock:
                    self._is_reading = False
                    if self._closes_later is not None:
                        self._closes_later.close()

        return step

    def _until_the_end(self, run: Callable[[], Any]) -> Callable[[], Any]:
        def step() -> Any:
            try:
                return run()
            except (tf.errors.OutOfRangeError, StopIteration):
                return None

        return step

    def _predict_with_hooks(self) -> Iterator[Any]:
        """The predictions of every element, from a `MonitoredSession`, which calls the hooks."""
        with self._graph.as_default(), quiet():
            creator = session_creator(self._scaffold, self.checkpoint, self._options)
            session = tf.compat.v1.train.MonitoredSession(creator, [*self._input_hooks, *self.hooks])
        # Hooks use the default graph. Between two predictions, the default graph must be the caller's.
        try:
            while True:
                with self._graph.as_default():
                    if session.should_stop():
                        break
                    predictions = session.run(self.predictions)
                yield predictions
        except BaseException as error:
            with self._graph.as_default():
                is_the_end = session.__exit__(type(error), error, error.__traceback__)
            if not is_the_end:
                raise
        else:
            with self._graph.as_default():
                session.__exit__(None, None, None)


_NEXT = ("IteratorGetNext", "QueueDequeue", "ReaderRead", "MultiDeviceIteratorGetNext")


def _never_ends(graph: Any) -> bool:
    """Whether no operation in the graph can signal the end of the input."""
    if graph.get_collection("queue_runners"):
        return False
    return not any(operation.type.startswith((*_NEXT, *_PYTHON)) for operation in graph.get_operations())


def _specs(features: Any) -> Any:
    """The structure of the features, with specs in place of tensors; None if they cannot be sent to other processes."""
    leaves = tf.nest.flatten(features)
    if not leaves:
        raise ModelError("input_fn gives no features", received=repr(features)[:200])
    tensors = [leaf for leaf in leaves if tf.is_tensor(leaf)]
    if not tensors or any(isinstance(leaf, tf.Variable) or _is_eager(leaf) for leaf in tensors):
        return None
    try:
        specs = [tf.type_spec_from_value(leaf) if tf.is_tensor(leaf) else leaf for leaf in leaves]
    except TypeError:
        return None
    return tf.nest.pack_sequence_as(features, specs)


def _is_eager(tensor: Any) -> bool:
    """Whether a tensor was made outside the graph, which cannot fetch it."""
    return hasattr(tensor, "numpy") and not hasattr(tensor, "row_splits")


_PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc", "GeneratorDataset"}


def _calls_python(graph: Any) -> bool:
    """Whether the input of a graph runs Python code. Such code may depend on anything, even on earlier predictions."""
    if any(operation.type in _PYTHON for operation in graph.get_operations()):
        return True
    functions = getattr(graph, "_functions", {}).values()
    return any(node.op in _PYTHON for function in functions for node in function.cached_definition.node_def)
