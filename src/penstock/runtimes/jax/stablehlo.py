"""Functions that JAX exported, and StableHLO modules of any origin; both run by JAX."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from penstock.core.kinds import RuntimeEntry
from penstock.core.output_selection import keep, numpy_top_k
from penstock.core.records import Columns, Device, ModelFile
from penstock.core.scaling import scaled_inputs
from penstock.core.tracing import DEVICE, IMPORT, Mark
from penstock.errors import DeviceError, ModelError, one_line
from penstock.runtimes import kept_steps, start_steps
from penstock.runtimes.environment import does_not_start
from penstock.runtimes.frameworks import jax
from penstock.runtimes.jax.runtime import (
    GPU_PROBE,
    PACKAGE,
    find_device,
    jax_top_k,
    peak_on,
    to_numpy,
    xla_environment,
)
from penstock.runtimes.keras.precision import check_kind
from penstock.runtimes.memory_limit import within_memory
from penstock.runtimes.plain_inputs import BFLOAT16, Declared, OneByOne, describe_file, divide_inputs, rows_at_once

_CALLBACKS = (b"xla_python_cpu_callback", b"xla_python_gpu_callback", b"xla_ffi_python_", b"xla_ffi_partitioned_python")


class StableHloRuntime:
    """The exported function under `jit`, with casting, scaling and ranking around it in the same step."""

    name = "stablehlo"

    def environment(self, device: Device, threads: int) -> dict[str, str]:
        return xla_environment(device, threads)

    def load(self, model: ModelFile, device: Device, threads: int) -> StableHloReplica:
        check_kind(model, self.name)
        start_steps.open_gpu(device)
        kept_steps.keep_jax_steps(self.name, model, device)
        try:
            with start_steps.step(IMPORT):
                import jax
        except ImportError as error:
            raise does_not_start("jax", model, error, PACKAGE.install) from None
        # 64-bit inputs keep their 64 bits: without this, JAX would cut them to 32.
        jax.config.update("jax_enable_x64", True)
        with start_steps.step(DEVICE):
            target = find_device(device)
        return StableHloReplica(_read(model, "cuda" if device.kind == "gpu" else "cpu"), model, target)


def _read(model: ModelFile, platform: str) -> Any:
    """The content of the file as an object of `jax.export`."""
    from jax import export

    with open(model.location, "rb") as file:
        raw = file.read()
    try:
        if model.kind == "jax_export":
            exported: Any = export.deserialize(bytearray(raw))
        else:
            from penstock.runtimes.jax.stablehlo_module import as_exported

            exported = as_exported(raw, platform)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            "the file is damaged, or was written by a newer version of JAX or StableHLO",
            received=f"{model.location}: {one_line(error)}",
        ) from None
    _check(exported, model, platform)
    return exported


def _check(exported: Any, model: ModelFile, platform: str) -> None:
    if platform not in exported.platforms:
        raise DeviceError(
            "the function was exported for another platform",
            received=f"{model.location}: for {', '.join(exported.platforms)}; this is {platform}",
            hint=f"export it with platforms=[…, {platform!r}], or run it on a device of its platform with --devices",
        )
    if exported.nr_devices != 1:
        raise ModelError(
            "the function was exported for several devices at once",
            received=f"{model.location}: {exported.nr_devices} devices",
            allowed="functions for one device; penstock divides the rows among devices itself",
        )
    callbacks = [name for name in _CALLBACKS if name in exported.mlir_module_serialized]
    if callbacks:
        raise ModelError(
            "the function calls back into the Python process that exported it",
            received=f"{model.location}: {callbacks[0].decode()}",
            hint="export it without pure_callback, io_callback and jax.debug",
        )


class StableHloReplica:
    """An exported function on one JAX device of this process."""

    def __init__(self, exported: Any, file: ModelFile, target: Any) -> None:
        self._target = target
        self._exported: Any = exported
        self._answers, self._scaling = file.answers, file.scaling
        self._input_names = _names(exported.in_tree, len(exported.in_avals), "input")
        self._output_names = _names(exported.out_tree, len(exported.out_avals), "output")
        inputs = divide_inputs(file, _declared(self._input_names, exported.in_avals))
        self._dtypes = dict(zip(self._input_names, (aval.dtype for aval in exported.in_avals), strict=True))
        self._constants = {
            name: jax.device_put(array.astype(self._dtypes[name]), target) for name, array in inputs.constants.items()
        }
        outputs = _declared(self._output_names, exported.out_avals)
        self._one_by_one = OneByOne(outputs) if rows_at_once(inputs.rows) == 1 else None
        self.signature = replace(
            describe_file(inputs, outputs, self._one_by_one, _writer(exported)),
            structure=_structure(exported.out_tree, outputs),
            name=str(exported.fun_name) if exported.fun_name else None,
        )
        self._scaled = scaled_inputs(file.scaling, self.signature) if file.scaling is not None else ()
        self._step = jax.jit(self._trace)

    def predict(self, batch: Columns) -> Columns:
        try:
            return within_memory(batch, self._predict, reason=one_line)
        except jax.errors.JaxRuntimeError as error:
            if "custom call" in str(error) and "No registered implementation" in str(error):
                raise ModelError(
                    "the module calls a function that this JAX does not have",
                    received=one_line(error),
                    hint="export it without custom calls",
                ) from None
            raise

    def peak_bytes(self) -> int | None:
        return peak_on(self._target)

    def take_marks(self) -> tuple[Mark, ...]:
        # `jit` compiles the step in its first call and does not report it; by now that call is over.
        kept_steps.seal()
        return start_steps.take_marks()

    def predicted_bytes(self, batch: Columns) -> int | None:
        return None

    def close(self) -> None:
        self._constants = {}

    def _predict(self, batch: Columns) -> Columns:
        if self._one_by_one is None:
            return self._run(batch)
        return keep(self._answers, self._one_by_one.run(self._run, batch), numpy_top_k)

    def _run(self, batch: Columns) -> Columns:
        tensors = {name: jax.device_put(array, self._target) for name, array in batch.items()}
        return {name: to_numpy(array) for name, array in self._step(tensors, self._constants).items()}

    def _trace(self, tensors: dict[str, Any], constants: dict[str, Any]) -> dict[str, Any]:
        cast = {name: self._scale(name, tensor).astype(self._dtypes[name]) for name, tensor in tensors.items()}
        given = cast | constants
        args, kwargs = jax.tree_util.tree_unflatten(self._exported.in_tree, [given[name] for name in self._input_names])
        outputs = jax.tree_util.tree_leaves(self._exported.call(*args, **kwargs))
        answers = self._answers if self._one_by_one is None else None
        return keep(answers, dict(zip(self._output_names, outputs, strict=True)), jax_top_k)

    def _scale(self, name: str, tensor: Any) -> Any:
        if self._scaling is None or name not in self._scaled:
            return tensor
        return self._scaling.apply(tensor.astype("float32"))


def _names(tree: Any, count: int, what: str) -> list[str]:
    """A name for every leaf: the keys and attributes that lead to it, else its number."""
    leaves = jax.tree_util.tree_unflatten(tree, list(range(count)))
    names: list[str] = []
    for index, (path, _) in enumerate(jax.tree_util.tree_flatten_with_path(leaves)[0]):
        keys = [getattr(key, "key", getattr(key, "name", None)) for key in path]
        spoken = [str(key) for key in keys if isinstance(key, str)]
        name = "/".join(spoken) or (what if count == 1 else f"{what}_{index}")
        names.append(name if name not in names else f"{name}_{index}")
    return names


def _declared(names: list[str], avals: Any) -> list[Declared]:
    """The arrays as declared; symbolic dimensions are those that vary."""
    declared = []
    for name, aval in zip(names, avals, strict=True):
        shape = tuple(length if isinstance(length, int) else None for length in aval.shape)
        kind = np.dtype(aval.dtype)
        if kind.name != BFLOAT16 and kind.kind not in "fiub":
            raise ModelError(
                "penstock cannot use a tensor of this type",
                received=f"{name}: {kind.name}",
                allowed="numbers or booleans",
            )
        declared.append(Declared(name, kind.name, shape))
    return declared


def _structure(tree: Any, outputs: list[Declared]) -> str:
    answer = jax.tree_util.tree_unflatten(tree, list(range(len(outputs))))
    if isinstance(answer, dict):
        return "dict"
    return "list" if isinstance(answer, (list, tuple)) else "single"


def _writer(exported: Any) -> str:
    """The producer, which the serialized module names at its start."""
    raw = bytes(exported.mlir_module_serialized[:64])
    producer = raw[5:].partition(b"\0")[0].decode("ascii", "replace")
    return f"{producer.replace('_v', ' ')} for {', '.join(exported.platforms)}"


RUNTIME = RuntimeEntry(StableHloRuntime, PACKAGE, gpu_probe=GPU_PROBE, compiles_each_size=True)
