"""Estimators: a `model_fn` built in a graph of TensorFlow 1, with the variables of a checkpoint, in a session."""

import hashlib
import itertools
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import cloudpickle
import numpy as np

from penstock.core.columns import describe
from penstock.core.protocols import Replica
from penstock.core.records import Array, Columns, Device, ModelFile, Shape, Signature
from penstock.core.scaling import scaled_inputs
from penstock.errors import ModelError, one_line
from penstock.runtimes.frameworks import tf
from penstock.runtimes.memory_limit import memory_fraction, out_of_memory
from penstock.runtimes.tensorflow.outputs import kept, to_host
from penstock.runtimes.tensorflow.restoring import checkpoint_files, plan_restoring


@runtime_checkable
class MakesReplica(Protocol):
    """A model that makes its replica itself, and is not a `model_fn` for columns."""

    def load(self, device: Device, threads: int) -> Replica: ...


def load(model: ModelFile, device: Device, threads: int) -> Replica:
    """Find the function and its checkpoint. The graph is built when the first batch shows what is fed.

    Raises:
        ModelError: There is no such function or checkpoint.
    """
    assert model.payload is not None
    described = cloudpickle.loads(model.payload)
    function = described.resolved()
    if isinstance(function, MakesReplica):
        return function.load(device, threads)
    checkpoint = function.find_checkpoint()
    options = session_options(function, device, threads)
    # The checkpoint was digested when the model was opened, unless only the function names it.
    is_known = described.checkpoint is not None or checkpoint is None or "://" in checkpoint
    return GraphReplica(function, checkpoint, options, model, None if is_known else _digest(checkpoint))


def _digest(checkpoint: str) -> str:
    digest = hashlib.sha256()
    for path in checkpoint_files(checkpoint):
        with open(path, "rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    return digest.hexdigest()[:32]


def session_options(function: Any, device: Device, threads: int) -> Any:
    """The settings of a session on the only device of this process: the user's own settings, as far as they apply."""
    options = function.called.config.session_options()
    options.intra_op_parallelism_threads = options.inter_op_parallelism_threads = threads
    options.allow_soft_placement = True  # what the user placed on several devices lies on this one
    options.gpu_options.visible_device_list = ""
    if device.kind == "cpu":
        options.device_count["GPU"] = 0
    fraction = memory_fraction(device)
    if fraction is not None:
        # The user's own share holds where it is smaller; a share of 0 means all of the memory.
        own = options.gpu_options.per_process_gpu_memory_fraction or 1.0
        options.gpu_options.per_process_gpu_memory_fraction = min(own, fraction)
    return options


@dataclass(frozen=True)
class GraphSession:
    """A built graph with its session. `feed` are the names of tensors; `run` may be called by several threads."""

    session: Any
    feed: tuple[str, ...]
    fetches: Any

    def run(self, values: list[Any]) -> Any:
        return self.session.run(self.fetches, dict(zip(self.feed, values, strict=True)))

    def close(self) -> None:
        self.session.close()


def open_graph(
    graph: Any, feed: list[Any], fetches: Any, scaffold: Any, checkpoint: str | None, options: Any
) -> GraphSession:
    """Restore the variables of the default graph, whose `fetches` are computed from `feed`.

    Raises:
        ModelError: The checkpoint does not fit.
    """
    restoring = plan_restoring(scaffold, checkpoint)
    graph.finalize()
    session = tf.compat.v1.Session(graph=graph, config=options)
    try:
        restoring.run(session)
    except BaseException:
        session.close()
        raise
    return GraphSession(session, tuple(tensor.name for tensor in feed), fetches)


class GraphReplica:
    """A model on one device. Its columns are the features of the `model_fn`, under their names.

    It declares no inputs, because a `model_fn` does not: only a call shows what it takes.
    """

    def __init__(
        self, function: Any, checkpoint: str | None, options: Any, file: ModelFile, weights: str | None
    ) -> None:
        self.signature = Signature(
            (), (), structure="dict", weights=weights, writer=f"a model_fn on TensorFlow {tf.__version__}"
        )
        self._function = function
        self._checkpoint = checkpoint
        self._options = options
        self._file = file
        self._lock = threading.Lock()
        self._shapes: dict[str, Shape] = {}
        self._opened: GraphSession | None = None
        self._users: Counter[int] = Counter()
        """How many threads run each session, by its id. The last thread in a session that was replaced closes it."""

    def predict(self, batch: Columns) -> Columns:
        opened = self._fitting(batch)
        try:
            outputs = opened.run([batch[name] for name in sorted(batch)])
        except tf.errors.ResourceExhaustedError as error:
            raise out_of_memory(batch, one_line(error)) from None
        finally:
            self._leave(opened)
        return {name: to_host(name, _Fetched(output)) for name, output in outputs.items()}

    def close(self) -> None:
        with self._lock:
            opened, self._opened = self._opened, None
            if opened is not None and not self._users[id(opened)]:
                opened.close()

    def _leave(self, opened: GraphSession) -> None:
        with self._lock:
            self._users[id(opened)] -= 1
            if opened is not self._opened and not self._users[id(opened)]:
                del self._users[id(opened)]
                opened.close()

    def _fitting(self, batch: Columns) -> GraphSession:
        """The graph for arrays of these shapes. If a length differs between batches, it is built again with it open."""
        with self._lock:
            shapes = {name: _common(self._shapes.get(name), array.shape[1:]) for name, array in batch.items()}
            if self._opened is None or shapes != self._shapes:
                before = self._opened
                self._opened, self._shapes = self._build(batch, shapes), shapes
                if before is not None and not self._users[id(before)]:
                    before.close()
            self._users[id(self._opened)] += 1
            return self._opened

    def _build(self, batch: Columns, shapes: Mapping[str, Shape]) -> GraphSession:
        """Build the graph. If the `model_fn` rejects integers or a dict of one feature, try floats or the feature."""
        attempts = _attempts(batch)
        refusal: ModelError | None = None
        for as_floats, as_tensor in attempts:
            try:
                opened = self._attempt(batch, shapes, as_floats, as_tensor)
            except ModelError as error:
                refusal = refusal or error
                continue
            if as_floats:
                _say("the model_fn rejects whole numbers: they are cast to float32 before it")
            if as_tensor:
                _say("the model_fn takes no dict: the only column is its features")
            return opened
        assert refusal is not None
        raise refusal

    def _attempt(self, batch: Columns, shapes: Mapping[str, Shape], as_floats: bool, as_tensor: bool) -> GraphSession:
        function = self._function
        with tf.Graph().as_default() as graph:
            function.begin()
            feed = {name: _placeholder(name, batch[name], shapes[name]) for name in sorted(batch)}
            features = self._scaled(batch, feed)
            if as_floats:
                features = {name: _to_float(tensor) for name, tensor in features.items()}
            spec = function.build(next(iter(features.values())) if as_tensor else features)
            fetches = kept(self._file.answers, function.named(spec.predictions))
            if self._checkpoint is None:
                function.start_warm()
            return open_graph(graph, list(feed.values()), fetches, spec.scaffold, self._checkpoint, self._options)

    def _scaled(self, batch: Columns, feed: Mapping[str, Any]) -> dict[str, Any]:
        scaling = self._file.scaling
        if scaling is None:
            return dict(feed)
        # Only numbers are scaled, whole ones as well as floats.
        numbers = {name: array for name, array in batch.items() if array.dtype.kind in "fiu"}
        inputs = tuple(describe(name, array[:0].astype(np.float32)) for name, array in numbers.items())
        names = scaled_inputs(scaling, Signature(inputs, ()))
        return {
            name: scaling.apply(tf.cast(tensor, tf.float32)) if name in names else tensor
            for name, tensor in feed.items()
        }


def _attempts(batch: Columns) -> list[tuple[bool, bool]]:
    """The ways to try, in order: whether whole numbers are cast, and whether an only column is given without a dict."""
    has_integers = any(array.dtype.kind in "iu" for array in batch.values())
    casts = (False, True) if has_integers else (False,)
    packings = (False, True) if len(batch) == 1 else (False,)
    return [(as_floats, as_tensor) for as_tensor, as_floats in itertools.product(packings, casts)]


def _common(known: Shape | None, shape: tuple[int, ...]) -> Shape:
    if known is None or len(known) != len(shape):
        return shape
    return tuple(length if length == other else None for length, other in zip(known, shape, strict=True))


def _placeholder(name: str, array: Array, shape: Shape) -> Any:
    kind = tf.string if array.dtype.kind in "OSU" else tf.as_dtype(array.dtype)
    with tf.device("/cpu:0"):
        return tf.compat.v1.placeholder(kind, (None, *shape))


def _to_float(tensor: Any) -> Any:
    return tf.cast(tensor, tf.float32) if tensor.dtype.is_integer else tensor


class _Fetched:
    """What a session gave, as `to_host` takes it: an array, or the parts of a ragged one."""

    def __init__(self, given: Any) -> None:
        self._array = given
        if hasattr(given, "row_splits"):
            self.row_splits, self.values = _Fetched(given.row_splits), _Fetched(given.values)

    @property
    def dtype(self) -> Any:
        return tf.as_dtype(np.asarray(self._array).dtype)

    def numpy(self) -> Any:
        return self._array


def _say(text: str) -> None:
    print(f"penstock: {text}", flush=True)
