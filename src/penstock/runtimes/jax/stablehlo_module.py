"""A bare StableHLO module as a function that `jax.export` can call.

JAX runs only what its own export wrote. An export is a module with a description of its inputs and outputs. So an empty
function with the same inputs and outputs is exported, and the module in that export is replaced.
"""

import dataclasses
from typing import Any

import numpy as np

from penstock.errors import ModelError
from penstock.runtimes.frameworks import jax

_BYTECODE = b"ML\xefR"
_PORTABLE = b"StableHLO_v"
_DTYPES = {
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "bf16": "bfloat16",
    "i1": "bool",
} | {f"{short}{bits}": f"{long}{bits}" for short, long in (("i", "int"), ("ui", "uint")) for bits in (8, 16, 32, 64)}


def as_exported(raw: bytes, platform: str) -> Any:
    """The module in `raw`, a portable artifact, MLIR bytecode or MLIR text, as an exported function.

    Raises:
        ModelError: It has no public function `main` that takes and gives tensors.
    """
    import jax.numpy as jnp
    from jax import export

    inputs, outputs, portable = _read(raw)
    scope = export.SymbolicScope()
    args = [
        jax.ShapeDtypeStruct(export.symbolic_shape(_in_letters(shape, index), scope=scope), dtype)
        for index, (shape, dtype) in enumerate(inputs)
    ]
    rows = next((arg.shape[0] for arg, (shape, _) in zip(args, inputs, strict=True) if shape[:1] == (None,)), None)

    def answer(*_: Any) -> tuple[Any, ...]:
        return tuple(jnp.zeros(_filled(shape, rows), dtype) for shape, dtype in outputs)

    template = export.export(jax.jit(answer), platforms=[platform])(*args)
    return dataclasses.replace(
        template,
        fun_name="main",
        mlir_module_serialized=portable,
        module_kept_var_idx=tuple(range(len(args))),
        uses_global_constants=template.uses_global_constants or rows is not None,
    )


Typed = tuple[tuple[int | None, ...], Any]


def _read(raw: bytes) -> tuple[list[Typed], list[Typed], bytes]:
    """What `main` takes and gives, and the module in the form that `jax.export` keeps."""
    from jax.extend.mlir import ir
    from jax.extend.mlir.dialects import stablehlo

    # A context that JAX made has all dialects in which a module may be written.
    context = jax.jit(lambda value: value).lower(0.0).compiler_ir("stablehlo").context
    is_portable = raw.startswith(_BYTECODE) and _PORTABLE in raw[:32]
    with context:
        module = stablehlo.deserialize_portable_artifact(context, raw) if is_portable else ir.Module.parse(raw)
        inputs, outputs = _types_of_main(module)
        if is_portable:
            return inputs, outputs, raw
        return inputs, outputs, stablehlo.serialize_portable_artifact(module, stablehlo.get_current_version())


def _types_of_main(module: Any) -> tuple[list[Typed], list[Typed]]:
    from jax.extend.mlir import ir

    for operation in module.body.operations:
        attributes = operation.attributes
        if operation.operation.name == "func.func" and ir.StringAttr(attributes["sym_name"]).value == "main":
            types = ir.FunctionType(ir.TypeAttr(attributes["function_type"]).value)
            return [_typed(each) for each in types.inputs], [_typed(each) for each in types.results]
    raise ModelError("the module has no function main", received="a StableHLO module", allowed="one with @main")


def _typed(tensor: Any) -> Typed:
    from jax.extend.mlir import ir

    try:
        ranked = ir.RankedTensorType(tensor)
        name = str(ranked.element_type)
    except (TypeError, ValueError):
        name = ""
    if name not in _DTYPES:
        raise ModelError(
            "the function main of this module takes or gives something else than tensors of numbers",
            received=str(tensor),
        )
    shape = tuple(None if ranked.is_dynamic_dim(i) else ranked.get_dim_size(i) for i in range(ranked.rank))
    return shape, jax.dtypes.bfloat16 if name == "bf16" else np.dtype(_DTYPES[name])


def _in_letters(shape: tuple[int | None, ...], index: int) -> str:
    """A shape in JAX's notation for symbolic ones. An open first dimension is the number of rows of all inputs."""
    names = ["rows" if axis == 0 else f"open_{index}_{axis}" for axis in range(len(shape))]
    return ", ".join(names[axis] if length is None else str(length) for axis, length in enumerate(shape))


def _filled(shape: tuple[int | None, ...], rows: Any) -> tuple[Any, ...]:
    if None in shape[1:] or (shape[:1] == (None,) and rows is None):
        raise ModelError(
            "the module does not say how large its outputs are",
            received=f"an output of {len(shape)} dimensions, of which {shape.count(None)} are open",
            allowed="outputs whose first dimension only is open",
        )
    return tuple(rows if length is None else length for length in shape)
