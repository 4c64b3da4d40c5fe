"""TensorFlow: Keras models on the TensorFlow backend, SavedModels and frozen graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from penstock.core.kinds import Package, RuntimeEntry
from penstock.core.output_selection import Answers
from penstock.core.protocols import StepNotKept
from penstock.core.records import STRING, Binding, Columns, Device, ModelFile, Signature
from penstock.core.state import State
from penstock.core.tracing import COMPILE, DEVICE, IMPORT, MODEL, Mark
from penstock.errors import RefusedByRuntime, one_line
from penstock.runtimes import kept_steps, start_steps
from penstock.runtimes.cuda_feed import CudaFeed, feed_to_tensorflow
from penstock.runtimes.environment import lean_imports, pinned, without_gpu, xla_flags
from penstock.runtimes.frameworks import tf
from penstock.runtimes.keras.call import KerasCall, call_keras_model
from penstock.runtimes.keras.call_state import CallState
from penstock.runtimes.keras.precision import STRICT_FLOAT32, check_kind
from penstock.runtimes.memory_limit import within_memory
from penstock.runtimes.registered_memory import register
from penstock.runtimes.tensorflow import frozen_graph, saved_model
from penstock.runtimes.tensorflow.float64 import run_in_float64
from penstock.runtimes.tensorflow.graph_arguments import Step
from penstock.runtimes.tensorflow.graph_changes import Changes, changes_of, has_loops
from penstock.runtimes.tensorflow.outputs import kept, to_host
from penstock.runtimes.tensorflow.to_onnx import export_step


@dataclass(frozen=True)
class TensorFlowRuntime:
    """The model as a `tf.function`, compiled by XLA on a GPU only.

    XLA is 3.3 times faster on a GPU, and can be 7 times slower on a CPU (depthwise convolutions). With `is_xla`, XLA
    compiles everywhere, and a model that XLA rejects is refused.
    """

    is_xla: bool = False

    @property
    def name(self) -> str:
        return "tensorflow-xla" if self.is_xla else "tensorflow"

    def environment(self, device: Device, threads: int) -> dict[str, str]:
        return (
            STRICT_FLOAT32
            | pinned(device, threads)
            | {
                "KERAS_BACKEND": "tensorflow",
                "XLA_FLAGS": xla_flags(device, threads),
                "TF_FORCE_GPU_ALLOW_GROWTH": "true",
                "TF_NUM_INTRAOP_THREADS": str(threads),
                "TF_NUM_INTEROP_THREADS": str(threads),
            }
        )

    def load(self, model: ModelFile, device: Device, threads: int) -> TensorFlowReplica:
        check_kind(model, self.name)
        start_steps.open_gpu(device)
        kept_steps.keep_tensorflow_steps(self.name, model, device)
        with start_steps.step(IMPORT), lean_imports(model, "tensorflow"):
            import keras  # noqa: F401 - TensorFlow imports it in any case; here it is imported leanly
            import tensorflow  # noqa: F401

        with start_steps.step(DEVICE):
            prepare_tensorflow(device, threads, others=[name for name in model.runtimes if name == "jax"])
        with start_steps.step(MODEL):
            return self._load(model, f"/{device.kind.upper()}:0")

    def _load(self, model: ModelFile, device_name: str) -> TensorFlowReplica:
        if model.kind == "saved_model":
            signature, step = saved_model.load(model)
            return replica_on(device_name, signature, step, answers=model.answers, needs_xla=self.is_xla)
        if model.kind == "frozen_graph":
            signature, step = frozen_graph.load(model)
            # The graph is cut at the chosen outputs already; their names here may differ from those that the user gave.
            answers = replace(model.answers, outputs=()) if model.answers is not None else None
            return replica_on(device_name, signature, step, answers=answers, needs_xla=self.is_xla)
        return wrap(call_keras_model(model), device_name, model.answers, needs_xla=self.is_xla)


def prepare_tensorflow(device: Device, threads: int, *, others: Sequence[str] = ()) -> None:
    """Set TensorFlow's threads and its share of the GPU, and check that it sees the GPU. Must run before anything else.

    Args:
        device: Where the model will run.
        threads: For one operation, and for operations at the same time.
        others: Runtimes that could run the model instead; the error names them.

    Raises:
        DeviceError: TensorFlow does not see the GPU.
    """
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    if device.kind != "gpu":
        return
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        ways = ["pip install 'tensorflow[and-cuda]'", "--devices cpu", *(f"--runtime {name}" for name in others)]
        raise without_gpu("TensorFlow", tf.__version__, device, *ways)
    if device.memory_limit:
        # This is a limit: with TF_FORCE_GPU_ALLOW_GROWTH, memory is taken as it is needed.
        share = tf.config.LogicalDeviceConfiguration(memory_limit=max(1, device.memory_limit >> 20))
        tf.config.set_logical_device_configuration(gpus[0], [share])


def wrap(
    call: KerasCall, device_name: str, answers: Answers | None = None, *, needs_xla: bool = False
) -> TensorFlowReplica:
    """A Keras model on the TensorFlow backend as a replica on a device, such as `/GPU:0`."""
    model = call.model

    def step(tensors: dict[str, Any]) -> dict[str, Any]:
        scaled = {name: call.scale(name, tensor, _to_float32) for name, tensor in tensors.items()}
        packed = call.pack(_cast(scaled, call.signature))
        is_own = call.has_own_step
        outputs = model.predict_step(call.data_of_step(packed)) if is_own else model(packed, **call.options)
        return call.name_outputs(outputs)

    return replica_on(device_name, call.signature, step, call, answers, needs_xla=needs_xla)


def replica_on(
    device_name: str,
    signature: Signature,
    step: Step,
    call: KerasCall | None = None,
    answers: Answers | None = None,
    *,
    needs_xla: bool = False,
) -> TensorFlowReplica:
    """A replica on a device; on a GPU it can report the GPU memory that it has used."""
    kind = TensorFlowOnGpu if device_name.startswith("/GPU") else TensorFlowReplica
    return kind(signature, step, device_name, call, answers, needs_xla=needs_xla)


def _to_float32(tensor: Any) -> Any:
    return tf.cast(tensor, tf.float32)


def _cast(tensors: dict[str, Any], signature: Signature) -> dict[str, Any]:
    """Every tensor in the dtype that the model takes: this is where a uint8 pixel becomes a float."""
    wanted = {spec.name: spec.dtype for spec in signature.inputs if spec.dtype != STRING}
    return {
        name: tf.cast(tensor, wanted[name]) if name in wanted and tensor.dtype.name != wanted[name] else tensor
        for name, tensor in tensors.items()
    }


class TensorFlowReplica:
    """A model on one device of this process.

    Args:
        signature: What it takes and gives.
        step: From tensors by input name to tensors by output name; it is traced and compiled.
        device_name: A device such as `/GPU:0`.
        call: The Keras model behind it, if there is one.
        answers: Which of the outputs are kept, and in what form.
        needs_xla: Whether XLA must compile the step, on a CPU too; a model that XLA rejects is refused.
    """

    def __init__(
        self,
        signature: Signature,
        step: Step,
        device_name: str,
        call: KerasCall | None = None,
        answers: Answers | None = None,
        *,
        needs_xla: bool = False,
    ) -> None:
        def answering(tensors: dict[str, Any]) -> dict[str, Any]:
            return kept(answers, step(tensors))

        self.signature = signature
        self.call = call
        self._device_name = device_name
        self._plain = tf.function(answering, autograph=False)
        self._for_any_rows: dict[tuple[Any, ...], Any] = {}
        self._needs_xla = needs_xla
        if device_name.startswith("/GPU"):
            self._step = _compiled_for_gpu(answering)
        else:
            self._step = tf.function(answering, jit_compile=True, autograph=False) if needs_xla else None
        self._to_device = _feeder(device_name)
        self._call_state = CallState()
        self._looked_at: dict[tuple[Any, ...], State] = {}
        self._run_before: set[tuple[Any, ...]] = set()

    def predict(self, batch: Columns) -> Columns:
        return within_memory(batch, self._predict, (tf.errors.ResourceExhaustedError,), let_go=self._let_go)

    def look(self, batch: Columns) -> State:
        """See `protocols.Stateful`. The step is traced for this, which its first batch would do otherwise."""
        key = tuple((name, array.dtype, array.shape[1:]) for name, array in batch.items())
        if key not in self._looked_at:
            with tf.device(self._device_name):
                tensors = {name: self._to_device(array) for name, array in batch.items()}
                changes = self._changes(tensors)
            is_drawing_only = changes.drawing and not changes.variables and not changes.lost
            if is_drawing_only and self._repeats_itself(batch):
                # The random operations stand in a branch for training that is never taken.
                changes = replace(changes, drawing=())
            changes.tell(self._call_state)
            self._looked_at[key] = changes.state
        return self._looked_at[key]

    def hold(self, seed: int | None) -> None:
        self._call_state.hold(seed)

    def restore(self) -> None:
        self._call_state.restore()

    def turn(self, row: int) -> None:
        self._call_state.turn(row)

    def export(self, folder: str, bindings: Sequence[Binding]) -> str | None:
        return export_step(self._plain, self.signature, bindings, folder)

    def predict_exactly(self, batch: Columns) -> Columns:
        return run_in_float64(self._plain, batch)

    def has_loops(self, batch: Columns) -> bool:
        with tf.device(self._device_name):
            tensors = {name: self._to_device(array) for name, array in batch.items()}
            try:
                return has_loops(self._concrete(tensors).graph.as_graph_def())
            except Exception:  # what cannot be traced may have any
                return True

    def take_marks(self) -> tuple[Mark, ...]:
        return start_steps.take_marks()

    def take_any_size(self) -> None:
        if not self._needs_xla:
            self._step = None

    def close(self) -> None:
        self._step = None

    def _predict(self, batch: Columns) -> Columns:
        with tf.device(self._device_name):
            # `tensors` must live until the outputs are on the host: another stream reuses memory that came by DLPack as
            # soon as its tensor is dropped, while the kernels that read it may still be queued.
            tensors = {name: self._to_device(array) for name, array in batch.items()}
            with self._call_state.call():
                outputs = self._run(tensors)
            return {name: to_host(name, tensor) for name, tensor in outputs.items()}

    def _let_go(self) -> None:
        """Give back the memory that is kept for the next batch."""

    def _run(self, tensors: dict[str, Any]) -> dict[str, Any]:
        if self.call is not None and getattr(self.call.model, "run_eagerly", False):
            return dict(self._plain.python_function(tensors))
        step = self._step
        if step is not None:
            try:
                return dict(step(tensors) if self._has_run(tensors) else self._first_call(step, tensors))
            except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
                # Strings and lookups have no XLA kernels. Anything else fails again below, with its own message.
                outputs = self._run_plain(tensors)
                if self._needs_xla:
                    raise RefusedByRuntime(
                        "XLA does not compile this model", received=one_line(error), hint="--runtime tensorflow"
                    ) from None
                print(f"penstock: without XLA, because it rejects this model: {one_line(error)}", flush=True)
                self._step = None
                return outputs
        return self._run_plain(tensors)

    def _has_run(self, tensors: dict[str, Any]) -> bool:
        """Whether the step has run with tensors of these shapes before. From now on, it counts as having run."""
        key = tuple((tensor.dtype, *tensor.shape) for tensor in tensors.values())
        has_run = key in self._run_before
        self._run_before.add(key)
        return has_run

    def _first_call(self, step: Any, tensors: dict[str, Any]) -> Any:
        """Compile the step and run it.

        Raises:
            StepNotKept: TensorFlow can neither read nor write the compiled step; only a process that keeps no steps can
                go on.
        """
        try:
            with start_steps.step(COMPILE):
                outputs = step(tensors)
        except tf.errors.OpError as error:
            is_memory = isinstance(error, tf.errors.ResourceExhaustedError) and "No space left" not in str(error)
            if is_memory or not kept_steps.give_up(str(error)):
                raise
            raise StepNotKept("TensorFlow cannot keep the compiled step", received=one_line(error)) from None
        kept_steps.seal()
        return outputs

    def _run_plain(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Run the step without XLA.

        As in `model.predict`, it is traced once for any number of rows and for all sizes that the model leaves open,
        since tracing takes seconds. A model that does not take open sizes is traced for each size.
        """
        return dict(self._plain_for(tensors)(tensors))

    def _plain_for(self, tensors: dict[str, Any]) -> Any:
        shapes = {name: tuple(tensor.shape[1:]) for name, tensor in tensors.items()}
        opened = {name: self._opened(name, shape) for name, shape in shapes.items()}
        for lengths in (opened, shapes):
            key = tuple((name, tensor.dtype, lengths[name]) for name, tensor in tensors.items())
            if key not in self._for_any_rows:
                self._for_any_rows[key] = self._traced(tensors, lengths)
            if (function := self._for_any_rows[key]) is not None:
                return function
        return self._plain

    def _opened(self, name: str, shape: tuple[int, ...]) -> tuple[int | None, ...]:
        """The shape of rows, open where the model leaves it open."""
        declared = next((spec.shape for spec in self.signature.inputs if spec.name == name), None)
        if declared is None or len(declared) != len(shape):
            return shape
        return tuple(None if free is None else length for free, length in zip(declared, shape, strict=True))

    def _traced(self, tensors: dict[str, Any], lengths: dict[str, tuple[int | None, ...]]) -> Any:
        """The step for any number of rows of these lengths; None where the model takes no such batches."""
        if self.signature.fixed_batch is not None:
            return None
        specs = {name: tf.TensorSpec((None, *lengths[name]), t.dtype) for name, t in tensors.items()}
        traced = tf.function(self._plain.python_function, autograph=False, input_signature=[specs])
        try:
            traced.get_concrete_function()
        except Exception:  # if open lengths are not the reason, the run raises this error again
            return None
        return traced

    def _changes(self, tensors: dict[str, Any]) -> Changes:
        """What the step changes, as its graph shows. Nothing for a step that cannot be traced: its run will fail."""
        try:
            return changes_of(self._concrete(tensors))
        except Exception:
            return Changes()

    def _concrete(self, tensors: dict[str, Any]) -> Any:
        step = self._step if self._step is not None else self._plain_for(tensors)
        return step.get_concrete_function(tensors)

    def _repeats_itself(self, batch: Columns) -> bool:
        """Whether two runs of a batch give the same answers, bit for bit."""
        try:
            first, second = self.predict(batch), self.predict(batch)
        except Exception:  # the run raises it again
            return True
        return all(_bits(first[name]) == _bits(second[name]) for name in first)


def _bits(output: Any) -> object:
    is_plain = isinstance(output, np.ndarray) and output.dtype != object
    return output.tobytes() if is_plain else repr(output)


class TensorFlowOnGpu(TensorFlowReplica):
    """A model on a GPU, where the process's own memory says nothing."""

    def copied_s(self) -> float:
        """See `protocols.Copying`; it is 0 where TensorFlow copies by itself, and the time is not known."""
        return self._to_device.copied_s() if isinstance(self._to_device, CudaFeed) else 0.0

    def register(self, memory: memoryview) -> Callable[[], None] | None:
        return register(memory) if isinstance(self._to_device, CudaFeed) else None

    def takes_over(self) -> bool:
        return isinstance(self._to_device, CudaFeed)

    def peak_bytes(self) -> int:
        peak = int(tf.config.experimental.get_memory_info(self._device_name.removeprefix("/"))["peak"])
        return peak + (self._to_device.held_bytes() if isinstance(self._to_device, CudaFeed) else 0)

    def predicted_bytes(self, batch: Columns) -> int | None:
        return None

    def _let_go(self) -> None:
        if isinstance(self._to_device, CudaFeed):
            self._to_device.let_go()


def _compiled_for_gpu(step: Step) -> Any:
    """The step compiled by XLA, in a function that also copies its outputs to the host.

    A thread that waits for the GPU in `tensor.numpy()` holds the GIL and stops all other lanes. A thread that waits
    inside a call of a `tf.function` does not.
    """
    compiled = tf.function(step, jit_compile=True, autograph=False)

    def to_host(tensors: dict[str, Any]) -> dict[str, Any]:
        outputs = compiled(tensors)
        with tf.device("/CPU:0"):
            return {name: tf.identity(output) for name, output in outputs.items()}

    return tf.function(to_host, autograph=False)


def _feeder(device_name: str) -> Callable[[Any], Any]:
    feed = feed_to_tensorflow() if device_name == "/GPU:0" else None
    return feed or tf.constant


PACKAGE = Package(("tensorflow",), ("tensorflow",), "pip install 'penstock[tensorflow]'")
GPU_PROBE = "import tensorflow as f; print(len(f.config.list_physical_devices('GPU')))"
RUNTIME = RuntimeEntry(TensorFlowRuntime, PACKAGE, gpu_probe=GPU_PROBE, loader="keras", writes_steps=True)
RUNTIME_XLA = RuntimeEntry(
    partial(TensorFlowRuntime, is_xla=True),
    PACKAGE,
    device_kinds=("cpu",),
    variant_of="tensorflow",
    rank={"cpu": 40},
    usual_gain={"images": 0.5, "sequences": 1.0, "tables": 1.0},
    loader="keras",
    compiles_each_size=True,
)
