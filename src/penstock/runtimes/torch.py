"""Keras models on the torch backend."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from penstock.core.kinds import Package, RuntimeEntry
from penstock.core.output_selection import Answers, keep
from penstock.core.records import STRING, Columns, Device, ModelFile
from penstock.core.state import NONE, SEEDS, STATELESS, VARIABLES, State
from penstock.errors import RefusedByRuntime, one_line
from penstock.runtimes.environment import lean_imports, pinned, without_gpu
from penstock.runtimes.frameworks import keras, torch
from penstock.runtimes.keras.call import KerasCall, call_keras_model
from penstock.runtimes.keras.call_state import SEED_NAME, CallState
from penstock.runtimes.keras.precision import STRICT_FLOAT32, check_kind
from penstock.runtimes.memory_limit import memory_fraction, ran_out, within_memory

_WIDER = {"uint16": np.int32, "uint32": np.int64, "uint64": np.int64}


@dataclass(frozen=True)
class TorchRuntime:
    """Runs the model without gradients. With `is_compiled`, `torch.compile` compiles it, or the model is refused."""

    is_compiled: bool = False

    @property
    def name(self) -> str:
        return "torch-compiled" if self.is_compiled else "torch"

    def environment(self, device: Device, threads: int) -> dict[str, str]:
        return (
            STRICT_FLOAT32
            | pinned(device, threads)
            | {
                "KERAS_BACKEND": "torch",
                "MKL_NUM_THREADS": str(threads),
                # For a GPU a model becomes many small kernels; for a CPU it becomes one file for the C++ compiler.
                "TORCHINDUCTOR_COMPILE_THREADS": str(threads) if device.kind == "gpu" else "1",
            }
        )

    def load(self, model: ModelFile, device: Device, threads: int) -> TorchReplica:
        check_kind(model, self.name)
        with lean_imports(model, "torch", "scipy"):
            import keras  # noqa: F401 - imported here so that it is imported leanly
            import torch

        torch.set_num_threads(threads)
        if device.kind != "gpu":
            return TorchReplica(call_keras_model(model), "cpu", model.answers, is_compiled=self.is_compiled)
        if not torch.cuda.is_available():
            raise without_gpu("torch", torch.__version__, device, "install a CUDA build of torch", "--devices cpu")
        fraction = memory_fraction(device)
        if fraction is not None:
            torch.cuda.set_per_process_memory_fraction(fraction)
        return TorchOnGpu(call_keras_model(model), "cuda", model.answers, is_compiled=self.is_compiled)


class TorchReplica:
    """A model on one torch device of this process."""

    def __init__(
        self, call: KerasCall, target: str, answers: Answers | None = None, *, is_compiled: bool = False
    ) -> None:
        self.signature = call.signature
        self.call = call
        self._target = target
        self._step = _make_step(call, answers)
        self._is_compiled = is_compiled
        self._compiled: dict[tuple[Any, ...], Any] = {}
        self._compiling = threading.Lock()
        self._call_state = CallState()
        self._looked_at: dict[tuple[Any, ...], State] = {}

    def look(self, batch: Columns) -> State:
        """See `protocols.Stateful`. The model is called once, in a scope in which nothing is changed.

        Raises:
            RefusedByRuntime: A compiled step would freeze what changes.
        """
        key = tuple((name, array.dtype, array.shape[1:]) for name, array in batch.items())
        if key not in self._looked_at:
            self._looked_at[key] = self._changes(batch)
        state = self._looked_at[key]
        if self._is_compiled and state.kind != NONE:
            raise RefusedByRuntime(
                "torch does not compile a model that changes when it is called",
                received=str(state),
                hint="--runtime torch",
            )
        return state

    def hold(self, seed: int | None) -> None:
        self._call_state.hold(seed)

    def restore(self) -> None:
        self._call_state.restore()

    def turn(self, row: int) -> None:
        self._call_state.turn(row)

    def predict(self, batch: Columns) -> Columns:
        return within_memory(batch, self._predict, (torch.OutOfMemoryError,), let_go=self._let_go)

    def close(self) -> None:
        self._compiled = {}

    def _predict(self, batch: Columns) -> Columns:
        with torch.no_grad(), self._call_state.call():
            tensors = {name: self._to_device(array) for name, array in batch.items()}
            outputs = self._run_compiled(tensors) if self._is_compiled else self._step(tensors)
            return {name: _to_numpy(tensor) for name, tensor in outputs.items()}

    def _changes(self, batch: Columns) -> State:
        """What the model changes when it is called with this batch; no changes for a batch that it rejects."""
        generator = _Generator(self._target)
        before = generator.numpy()
        try:
            with torch.no_grad(), _noting_scope() as noted:
                self._step({name: self._to_device(array) for name, array in batch.items()})
        except Exception:
            return STATELESS
        variables: list[Any] = list({id(variable): variable for variable in noted}.values())
        if not np.array_equal(before, generator.numpy()):
            generator.assign(before)
            variables.append(generator)
        if not variables:
            return STATELESS
        is_seed = [str(variable.path).endswith(SEED_NAME) for variable in variables]
        state = State(SEEDS if all(is_seed) else VARIABLES, tuple(variable.path for variable in variables))
        self._call_state.note(variables, is_seed, state)
        return state

    def _let_go(self) -> None:
        """Give back the memory that is kept for the next batch."""

    def _run_compiled(self, tensors: dict[str, Any]) -> dict[str, Any]:
        key = tuple((name, tensor.shape, tensor.dtype) for name, tensor in tensors.items())
        step = self._compiled.get(key)
        if step is not None:
            return dict(step(tensors))
        with self._compiling:
            if key not in self._compiled:
                return self._compile(key, tensors)
        return dict(self._compiled[key](tensors))

    def _compile(self, key: tuple[Any, ...], tensors: dict[str, Any]) -> dict[str, Any]:
        """Compile the step for tensors of these shapes, and run it.

        The step is exported first, so that only its operations are compiled. With the Python of Keras around them,
        compiling takes ten times as long, and most of it runs uncompiled in the end.
        """
        try:
            exported = torch.export.export(self._step, (tensors,), strict=False).module()
            step = torch.compile(exported, fullgraph=True, dynamic=False)
            outputs = dict(step(tensors))
        except Exception as error:
            if isinstance(error, torch.OutOfMemoryError) or ran_out(error):
                raise
            refusal = one_line(error)
        else:
            self._compiled[key] = step
            return outputs
        self._step(tensors)  # if these rows are at fault, this raises their own error
        raise RefusedByRuntime("torch does not compile this model", received=refusal, hint="--runtime torch")

    def _to_device(self, array: Any) -> Any:
        if array.dtype.name in _WIDER:
            array = array.astype(_WIDER[array.dtype.name])
        if not array.flags.writeable:
            array = array.copy()  # torch has no read-only tensors
        return torch.from_numpy(array).to(self._target)


class _Generator:
    """Torch's own random generator, with the methods of a variable: dropout without a seed draws from it."""

    path = f"torch/{SEED_NAME}"
    shape = (1,)
    dtype = "int64"

    def __init__(self, target: str) -> None:
        self._of_device = torch if target == "cpu" else torch.cuda

    def numpy(self) -> Any:
        return self._of_device.get_rng_state().numpy().copy()

    def assign(self, value: Any) -> None:
        """Set its seed, or its whole state as `numpy` returned it."""
        if value.shape == self.shape:
            torch.manual_seed(int(value[0]))
        else:
            self._of_device.set_rng_state(torch.from_numpy(value))


class TorchOnGpu(TorchReplica):
    """A model on a GPU, where the process's own memory says nothing."""

    def peak_bytes(self) -> int:
        return int(torch.cuda.max_memory_allocated())

    def predicted_bytes(self, batch: Columns) -> int | None:
        return None

    def _let_go(self) -> None:
        torch.cuda.empty_cache()


@contextlib.contextmanager
def _noting_scope() -> Iterator[list[Any]]:
    """A scope in which no variable is changed; it yields a list of those that would be."""
    noted: list[Any] = []

    class Noting(keras.StatelessScope):  # type: ignore[misc]
        def add_update(self, update: tuple[Any, Any]) -> None:
            noted.append(update[0])
            super().add_update(update)

    with Noting():
        yield noted


def _make_step(call: KerasCall, answers: Answers | None) -> Any:
    """The step, from tensors by input name to tensors by output name, as a module: only modules can be exported."""
    wanted = {spec.name: getattr(torch, spec.dtype) for spec in call.signature.inputs if spec.dtype != STRING}

    class Step(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = call.model

        def forward(self, tensors: dict[str, Any]) -> dict[str, Any]:
            scaled = {name: call.scale(name, tensor, lambda each: each.float()) for name, tensor in tensors.items()}
            cast = {name: tensor.to(wanted[name]) if name in wanted else tensor for name, tensor in scaled.items()}
            packed = call.pack(cast)
            if call.has_own_step:
                given = self.model.predict_step(call.data_of_step(packed))
            else:
                given = self.model(packed, **call.options)
            return keep(answers, call.name_outputs(given), torch_top_k)

    return Step()


def torch_top_k(tensor: Any, k: int) -> tuple[Any, Any]:
    """See `output_selection.TopK`. `torch.topk` leaves the order of equal values open, so they are sorted."""
    values, places = torch.sort(tensor, dim=-1, descending=True, stable=True)
    return values[..., :k], places[..., :k].to(torch.int32)


def _to_numpy(tensor: Any) -> Any:
    tensor = tensor.detach().cpu()
    return tensor.float().numpy() if str(tensor.dtype) == "torch.bfloat16" else tensor.numpy()


_PACKAGE = Package(("torch",), ("torch",), "pip install 'penstock[torch]'")
_GPU_PROBE = "import torch; print(torch.cuda.device_count())"
RUNTIME = RuntimeEntry(
    TorchRuntime,
    _PACKAGE,
    rank={"cpu": 60, "gpu": 50},
    gpu_probe=_GPU_PROBE,
    loader="keras",
    has_float64=False,
)
RUNTIME_COMPILED = RuntimeEntry(
    partial(TorchRuntime, is_compiled=True),
    _PACKAGE,
    variant_of="torch",
    rank={"cpu": 50, "gpu": 40},
    gpu_probe=_GPU_PROBE,
    loader="keras",
    compiles_each_size=True,
    has_float64=False,
)
