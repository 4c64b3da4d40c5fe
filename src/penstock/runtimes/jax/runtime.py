"""Keras models on the JAX backend."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.core.kinds import Package, RuntimeEntry
from penstock.core.output_selection import Answers, keep
from penstock.core.records import Array, Columns, Device, ModelFile
from penstock.core.state import NONE, SEEDS, VARIABLES, State, derived_seed
from penstock.core.tracing import COMPILE, DEVICE, IMPORT, MODEL, Mark
from penstock.errors import RefusedByRuntime, one_line
from penstock.runtimes import kept_steps, start_steps
from penstock.runtimes.cuda_feed import CudaFeed, feed_to_jax
from penstock.runtimes.environment import lean_imports, pinned, without_gpu, xla_flags
from penstock.runtimes.frameworks import jax
from penstock.runtimes.keras.call import KerasCall, call_keras_model
from penstock.runtimes.keras.call_state import SEED_NAME
from penstock.runtimes.keras.precision import AS_MADE, STRICT_FLOAT32, check_kind
from penstock.runtimes.memory_limit import memory_fraction, within_memory
from penstock.runtimes.registered_memory import register

_WIDE = ("int64", "uint64", "uint32", "float64")


def xla_environment(device: Device, threads: int) -> dict[str, str]:
    """The variables that pin a process in which JAX runs."""
    own = {
        "JAX_PLATFORMS": "cuda,cpu" if device.kind == "gpu" else "cpu",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "XLA_FLAGS": xla_flags(device, threads),
        # The CPU client of JAX takes the size of its thread pool from this.
        "NPROC": str(threads),
    }
    return STRICT_FLOAT32 | pinned(device, threads) | own | _memory_share(device)


def find_device(device: Device) -> Any:
    """The device as JAX names it.

    Raises:
        DeviceError: This JAX has no such device.
    """
    try:
        return jax.devices("cuda" if device.kind == "gpu" else "cpu")[0]
    except RuntimeError as error:
        version = f"{jax.__version__}: {one_line(error)}"
        raise without_gpu("JAX", version, device, "pip install 'jax[cuda12]'", "--devices cpu") from None


def _memory_share(device: Device) -> dict[str, str]:
    """The variable that limits JAX to a fraction of the whole GPU, also where no memory is allocated beforehand.

    jaxlib refuses to start if the older name of the variable is set as well; not all of its allocators have a limit.
    """
    fraction = memory_fraction(device)
    if fraction is None:
        return {}
    return {
        "XLA_CLIENT_MEM_FRACTION": f"{fraction:.5f}",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "",
        "XLA_PYTHON_CLIENT_ALLOCATOR": "bfc",
    }


class JaxRuntime:
    """The model as one jitted function of its weights and a batch."""

    name = "jax"

    def environment(self, device: Device, threads: int) -> dict[str, str]:
        return {"KERAS_BACKEND": "jax"} | xla_environment(device, threads)

    def load(self, model: ModelFile, device: Device, threads: int) -> JaxReplica:
        check_kind(model, self.name)
        start_steps.open_gpu(device)
        kept_steps.keep_jax_steps(self.name, model, device)
        with start_steps.step(IMPORT), lean_imports(model, "jax", "scipy"):
            import jax

            if device.kind == "gpu":
                start_steps.beside("client", jax.devices)
            import keras  # noqa: F401 - imported here so that it, too, is imported leanly

        with start_steps.step(DEVICE):
            target = find_device(device)
        with start_steps.step(MODEL):
            call = call_keras_model(model)
        call.signature = replace(call.signature, notes=(*call.signature.notes, *_lost_states(call.model)))
        is_wide = any(spec.dtype in _WIDE for spec in (*call.signature.inputs, *call.signature.outputs))
        if is_wide:
            # Without this, JAX cuts 64-bit values to 32 bits.
            jax.config.update("jax_enable_x64", True)
        feed = feed_to_jax(target) if device.kind == "gpu" else None
        if feed is not None:
            return FedReplica(call, target, model.answers, feed, may_widen=not is_wide)
        return JaxReplica(call, target, model.answers, may_widen=not is_wide)


def _lost_states(model: Any) -> list[str]:
    """Notes for the user on layers whose state Keras does not carry from batch to batch on JAX."""
    layers = [layer.name for layer in model._flatten_layers() if getattr(layer, "stateful", False)]
    remark = "on JAX, Keras begins each batch without the state of the last; --runtime tensorflow keeps it"
    return [f"{', '.join(layers)}: {remark}"] if layers else []


class JaxReplica:
    """A model on one JAX device of this process, compiled once for each shape of a batch.

    Args:
        call: The Keras model.
        target: The device.
        answers: Which of its outputs are kept, and in what form.
        may_widen: Whether JAX may be switched to 64 bits where the model itself asks for them. The switch holds for
            the whole process.
    """

    def __init__(
        self, call: KerasCall, target: Any, answers: Answers | None = None, *, may_widen: bool = False
    ) -> None:
        self._may_widen = may_widen
        self._answers = answers
        self.signature = call.signature
        self.call = call
        self._target = target
        self._to_device: Callable[[Array], Any] = lambda array: jax.device_put(array, target)
        self._weights: Any = None
        self._steps: dict[tuple[Any, ...], Any] = {}
        self._compiling = threading.Lock()
        self._changed: set[int] = set()
        """Indices of the non-trainable variables that a call changes, in the steps that were traced so far."""
        self._held: dict[int, Any] = {}
        self._seed: int | None = None
        self._row = threading.local()
        self._order: tuple[str, ...] = ()
        self.refresh()

    def refresh(self) -> None:
        """Take the model's weights as they are now."""
        model = self.call.model
        weights = ([v.value for v in model.trainable_variables], [v.value for v in model.non_trainable_variables])
        self._weights = jax.device_put(weights, self._target)

    def look(self, batch: Columns) -> State:
        """See `protocols.Stateful`. A step that does not compile raises its error later, when it is run."""
        with contextlib.suppress(Exception):
            self._compiled(batch)
        return self._state()

    def hold(self, seed: int | None) -> None:
        self._seed = seed
        values = self._weights[1]
        self._held = {index: values[index] for index in self._changed}
        if seed is not None and self._state().kind == VARIABLES:
            self._held |= {index: self._drawn(index, 0) for index in self._changed if self._is_seed(index)}

    def restore(self) -> None:
        self._update(self._held)

    def turn(self, row: int) -> None:
        self._row.number = row

    def predict(self, batch: Columns) -> Columns:
        return within_memory(batch, self._predict, let_go=self._let_go)

    def peak_bytes(self) -> int | None:
        return peak_on(self._target)

    def take_marks(self) -> tuple[Mark, ...]:
        return start_steps.take_marks()

    def predicted_bytes(self, batch: Columns) -> int | None:
        """Memory of the weights, the batch, the answers and everything in between, as the compiler laid it out.

        On a CPU this is a lower bound: the compiler does not count what the libraries for matrix products allocate.
        """
        try:
            analysis = self._compiled(batch).memory_analysis()
        except Exception:  # a step that does not compile raises this error again when it runs
            return None
        if analysis is None:
            return None
        sizes = (analysis.argument_size_in_bytes, analysis.output_size_in_bytes, analysis.temp_size_in_bytes)
        return int(sum(sizes) - analysis.alias_size_in_bytes)

    def close(self) -> None:
        self._weights = None
        self._steps = {}

    def _predict(self, batch: Columns) -> Columns:
        step = self._compiled(batch)
        # `tensors` must live until the outputs are on the host: see `TensorFlowReplica._predict`.
        tensors = {name: self._to_device(array) for name, array in batch.items()}
        outputs, updated = step(self._weights_for_this_call(), tensors)
        # Compiled steps return their outputs sorted by name.
        answers = {name: to_numpy(outputs[name]) for name in self._order}
        if updated and not self._is_drawn_by_row():
            self._update(updated)
        return answers

    def _let_go(self) -> None:
        """Give back the memory that is kept for the next batch."""

    def _weights_for_this_call(self) -> Any:
        if not self._is_drawn_by_row():
            return self._weights
        trained, others = self._weights
        row = getattr(self._row, "number", 0)
        return trained, [self._drawn(i, row) if i in self._changed else value for i, value in enumerate(others)]

    def _is_drawn_by_row(self) -> bool:
        """Whether each batch draws random numbers by its own seed, so that earlier batches do not matter."""
        return self._seed is not None and self._state().kind == SEEDS

    def _drawn(self, index: int, row: int) -> Any:
        assert self._seed is not None
        value = self._weights[1][index]
        drawn = derived_seed(self._seed, sorted(self._changed).index(index), row, value.shape, value.dtype)
        return jax.device_put(drawn, self._target)

    def _update(self, values: Mapping[int, Any]) -> None:
        """Change the variables here and in the model, as `model.predict` does."""
        variables = self.call.model.non_trainable_variables
        for index, value in values.items():
            self._weights[1][index] = value
            variables[index].assign(value)

    def _state(self) -> State:
        if not self._changed:
            return State(NONE)
        kind = SEEDS if all(map(self._is_seed, self._changed)) else VARIABLES
        variables = self.call.model.non_trainable_variables
        return State(kind, tuple(variables[index].path for index in sorted(self._changed)))

    def _is_seed(self, index: int) -> bool:
        return str(self.call.model.non_trainable_variables[index].path).endswith(SEED_NAME)

    def _compiled(self, batch: Columns) -> Any:
        """The step for batches of this shape. It is compiled before it runs: only so does JAX report its memory."""
        key = tuple((name, array.shape, array.dtype) for name, array in batch.items())
        step = self._steps.get(key)
        if step is not None:
            return step
        with self._compiling:
            if key not in self._steps:
                self._steps[key] = self._trace if self._is_eager else _compile(self._lowered(batch))
            return self._steps[key]

    @property
    def _is_eager(self) -> bool:
        """Whether the model is called without `jit`: lookups and hashing run outside of JAX."""
        model = self.call.model
        return bool(getattr(model, "run_eagerly", False)) or not getattr(model, "jit_compile", True)

    def _lowered(self, batch: Columns) -> Any:
        like = {name: self._like(array) for name, array in batch.items()}
        try:
            with warnings.catch_warnings():
                if self._may_widen:
                    warnings.filterwarnings("error", message="Explicitly requested dtype")
                return jax.jit(self._trace).lower(self._weights, like)
        except UserWarning:
            if not self._may_widen:
                raise
            self._may_widen = False
            jax.config.update("jax_enable_x64", True)
            return self._lowered(batch)
        except (ValueError, NotImplementedError) as error:
            if self.call.precision == AS_MADE:
                raise
            # Not every operation exists in every precision: on a CPU there is no attention in float16.
            raise RefusedByRuntime(
                f"JAX does not run this model in {self.call.precision}", received=one_line(error)
            ) from None

    def _like(self, array: Array) -> Any:
        sharding = jax.sharding.SingleDeviceSharding(self._target)
        kind = jax.dtypes.canonicalize_dtype(array.dtype)
        return jax.ShapeDtypeStruct(array.shape, kind, sharding=sharding)

    def _trace(self, weights: Any, tensors: dict[str, Any]) -> tuple[dict[str, Any], dict[int, Any]]:
        """The outputs, and the new values of the variables that the call changed, by the indices of the variables."""
        wanted = {spec.name: spec.dtype for spec in self.signature.inputs}
        scaled = {name: self.call.scale(name, tensor, _to_float32) for name, tensor in tensors.items()}
        cast = {
            name: tensor.astype(wanted[name]) if name in wanted and tensor.dtype != wanted[name] else tensor
            for name, tensor in scaled.items()
        }
        packed, model = self.call.pack(cast), self.call.model
        if self.call.has_own_step:
            outputs, after = model.predict_step(weights, self.call.data_of_step(packed))
        else:
            outputs, after = model.stateless_call(*weights, packed, **self.call.options)
        changed = {index: value for index, value in enumerate(after) if value is not weights[1][index]}
        self._changed |= changed.keys()
        kept = keep(self._answers, self.call.name_outputs(outputs), jax_top_k)
        self._order = tuple(kept)
        return kept, changed


class FedReplica(JaxReplica):
    """A model on a GPU; batches are copied there by a `CudaFeed` and not by JAX."""

    def __init__(
        self, call: KerasCall, target: Any, answers: Answers | None, feed: CudaFeed, *, may_widen: bool
    ) -> None:
        super().__init__(call, target, answers, may_widen=may_widen)
        self._to_device = self._feed = feed

    def copied_s(self) -> float:
        return self._feed.copied_s()

    def register(self, memory: memoryview) -> Callable[[], None] | None:
        return register(memory)

    def takes_over(self) -> bool:
        return True

    def peak_bytes(self) -> int | None:
        peak = super().peak_bytes()
        return None if peak is None else peak + self._feed.held_bytes()

    def _let_go(self) -> None:
        self._feed.let_go()


def _compile(lowered: Any) -> Any:
    with start_steps.step(COMPILE):
        step = lowered.compile()
    kept_steps.seal()
    return step


def jax_top_k(tensor: Any, k: int) -> tuple[Any, Any]:
    """See `output_selection.TopK`. JAX returns equal values in the order of their places."""
    values, places = jax.lax.top_k(tensor, k)
    return values, places.astype("int32")


def peak_on(target: Any) -> int | None:
    """The most memory that was held on a JAX device; None on a CPU, for which JAX does not count."""
    peak = (target.memory_stats() or {}).get("peak_bytes_in_use")
    return int(peak) if peak is not None else None


def _to_float32(tensor: Any) -> Any:
    return tensor.astype("float32")


def to_numpy(array: Any) -> Any:
    """An array on the host; numpy has no bfloat16 of its own."""
    return np.asarray(array, dtype=np.float32) if array.dtype == "bfloat16" else np.asarray(array)


PACKAGE = Package(("jax",), ("jax",), "pip install 'penstock[jax]'")
GPU_PROBE = "import jax; print(sum(d.platform in ('gpu', 'cuda') for d in jax.devices()))"
RUNTIME = RuntimeEntry(
    JaxRuntime,
    PACKAGE,
    rank={"cpu": 30, "gpu": 10},
    usual_gain={"images": 0.7, "sequences": 1.1, "tables": 1.2},
    gpu_probe=GPU_PROBE,
    loader="keras",
    compiles_each_size=True,
    has_float64=False,
)
