"""The arguments of a TensorFlow graph: dense, sparse and ragged tensors of rows, and values that are no rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.core.records import STRING, ModelFile, Signature, TensorSpec
from penstock.core.scaling import scaled_inputs
from penstock.errors import ModelError, UsageError
from penstock.runtimes.frameworks import tf
from penstock.runtimes.plain_inputs import Declared, parse_constant

Step = Callable[[dict[str, Any]], dict[str, Any]]
"""From tensors by input name to tensors by output name; traced into the compiled step."""

_TRAINING = ("training", "is_training", "learning_phase", "keras_learning_phase")


@dataclass(frozen=True)
class Argument:
    """One argument of the graph: the inputs that it is made of, and how.

    `make` takes their tensors in order. An argument that is one value for the whole job has no inputs.
    """

    inputs: tuple[TensorSpec, ...]
    make: Callable[..., Any]
    batch: int | None = None
    note: str | None = None


@dataclass(frozen=True)
class Arguments:
    """All arguments by name."""

    by_name: Mapping[str, Argument]

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return tuple(spec for argument in self.by_name.values() for spec in argument.inputs)

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(argument.note for argument in self.by_name.values() if argument.note is not None)

    @property
    def fixed_batch(self) -> int | None:
        sizes = {argument.batch for argument in self.by_name.values()} - {None}
        return sizes.pop() if len(sizes) == 1 else None

    def make(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of the graph. This runs while a step is traced."""
        return {
            name: argument.make(*(tensors[spec.name] for spec in argument.inputs))
            for name, argument in self.by_name.items()
        }


@dataclass(frozen=True)
class Given:
    """What is known of arguments besides their specs: the user's constants, and the defaults that a graph has."""

    constants: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def check(self, names: Mapping[str, Any]) -> None:
        """Check the names of the constants.

        Raises:
            UsageError: A constant was given for a name that is no input.
        """
        for name, text in self.constants.items():
            if name not in names:
                raise UsageError(
                    "the model has no such input", received=f"--constant {name}={text}", allowed=", ".join(names)
                )


def arguments(specs: Mapping[str, Any], given: Given, *, is_described_only: bool = False) -> Arguments:
    """How every argument is made.

    Args:
        specs: Names to TensorFlow's `TensorSpec`, `SparseTensorSpec` or `RaggedTensorSpec`.
        given: The constants and defaults, which are not fed from rows.
        is_described_only: Whether the graph is only described, and never called: then no constant needs to be given.

    Raises:
        ModelError: An argument cannot be made of rows, and no constant was given for it.
        UsageError: A constant cannot be read.
    """
    names = set(specs)
    made: dict[str, Argument] = {}
    for name, spec in specs.items():
        if _is_one_for_all(spec, specs) and name not in given.constants:
            made[name] = _left_alone(name, spec, given, is_described_only)
        else:
            made[name] = _argument(name, spec, given, names)
    return Arguments(made)


def _is_one_for_all(spec: Any, specs: Mapping[str, Any]) -> bool:
    """Whether an argument is no rows: a single value, or a vector of fixed length where another takes any batch."""
    rank = spec.shape.rank
    if rank != 1 or spec.shape[0] is None:
        return bool(rank == 0)
    return any(other.shape.rank and other.shape[0] is None for other in specs.values())


def scaler(file: ModelFile, signature: Signature) -> Step:
    """A function that scales the inputs that the user asked to scale, and leaves the others as they are."""
    scaling = file.scaling
    if scaling is None:
        return lambda tensors: tensors
    names = scaled_inputs(scaling, signature)
    return lambda tensors: {
        name: scaling.apply(tf.cast(tensor, tf.float32)) if name in names else tensor
        for name, tensor in tensors.items()
    }


def output_spec(name: str, spec: Any) -> TensorSpec:
    """What an output is, from TensorFlow's spec of it or from the tensor itself."""
    return TensorSpec(name, _kind(spec.dtype), None if spec.shape.rank is None else tuple(spec.shape.as_list()[1:]))


def _argument(name: str, spec: Any, given: Given, names: set[str]) -> Argument:
    if name in given.constants and not isinstance(spec, tf.TensorSpec):
        raise UsageError(
            "only dense tensors can be constants",
            received=f"--constant {name}={given.constants[name]}, for a {type(spec).__name__}",
        )
    if isinstance(spec, tf.SparseTensorSpec):
        return _sparse(name, spec, names)
    if isinstance(spec, tf.RaggedTensorSpec):
        return _ragged(name, spec, names)
    if not isinstance(spec, tf.TensorSpec):
        raise ModelError(
            "the model takes something that cannot be made of columns",
            received=f"{name}: {type(spec).__name__}",
            allowed="dense, sparse and ragged tensors",
        )
    declared = Declared(name, _kind(spec.dtype), None if spec.shape.rank is None else tuple(spec.shape.as_list()))
    if name in given.constants:
        return _constant(parse_constant(declared, given.constants[name]).tolist(), spec)
    return Argument((declared.as_rows(),), _caster(spec.dtype), spec.shape[0] if spec.shape.rank else None)


def _kind(dtype: Any) -> str:
    return STRING if dtype.name == "string" else str(dtype.name)


def _caster(dtype: Any) -> Callable[[Any], Any]:
    """A function that casts a tensor to `dtype`: here a uint8 pixel becomes a float."""
    return lambda tensor: tensor if tensor.dtype == dtype else tf.cast(tensor, dtype)


def _constant(value: Any, spec: Any, note: str | None = None) -> Argument:
    return Argument((), lambda: tf.constant(value, spec.dtype), note=note)


def _left_alone(name: str, spec: Any, given: Given, is_described_only: bool) -> Argument:
    """An argument that is not rows, for which the user gave nothing."""
    kind = _kind(spec.dtype)
    shown = kind if spec.shape.rank == 0 else f"{kind}[{spec.shape[0]}]"
    flag = f"--constant {name}=VALUE" + (",…" if spec.shape.rank else "")
    if name in given.defaults:
        value = given.defaults[name]
        return _constant(value, spec, f"the input {name} ({shown}) stays at its default {value}; {flag} sets it")
    if shown == "bool" and name.lower().rpartition("/")[2] in _TRAINING:
        return _constant(False, spec, f"the input {name} is set to False; {flag} sets it")
    if is_described_only:
        return _constant(None, spec, f"the input {name} is one {shown} for all rows: {flag}")
    raise ModelError(
        f"the input {name!r} has no batch dimension: it is one value for all rows, and none was given",
        received=f"{name}: {shown}",
        hint=flag,
    )


def _mask_name(name: str, names: set[str]) -> str:
    mask = f"{name}_mask"
    while mask in names:
        mask += "_"
    return mask


def _sparse(name: str, spec: Any, names: set[str]) -> Argument:
    """A sparse argument.

    Where its width is known, zeros are missing values, as in all sparse tensors. Where the width is not known, a row is
    a list, and all of its values are present, zeros too: a zero may be an id.
    """
    rank = spec.shape.rank
    cast = _caster(spec.dtype)
    lengths = tuple(spec.shape.as_list()[1:]) if rank is not None else (None,)
    if lengths and None not in lengths:
        dense = TensorSpec(name, _kind(spec.dtype), lengths)
        note = f"the input {name} is sparse: its zeros are left out"
        return Argument((dense,), lambda tensor: tf.sparse.from_dense(cast(tensor)), note=note)
    if len(lengths) != 1:
        raise ModelError(
            "a sparse input of this shape cannot be made of columns",
            received=f"{name}: {spec.shape}",
            allowed="(rows, values), or lengths that are known",
        )

    def make(tensor: Any, mask: Any) -> Any:
        indices = tf.where(mask)
        shape = tf.shape(mask, out_type=tf.int64)
        return tf.SparseTensor(indices, tf.gather_nd(cast(tensor), indices), shape)

    inputs = (TensorSpec(name, _kind(spec.dtype), (None,)), TensorSpec(_mask_name(name, names), "bool", (None,)))
    return Argument(inputs, make, note=f"the input {name} is sparse: every value of a row is there, also zeros")


def _ragged(name: str, spec: Any, names: set[str]) -> Argument:
    if spec.ragged_rank != 1:
        raise ModelError(
            "ragged inputs of this depth cannot be made of columns",
            received=f"{name}: ragged rank {spec.ragged_rank}",
            allowed="rows of different lengths (ragged rank 1)",
        )
    cast = _caster(spec.dtype)
    flat = spec.flat_values_spec.shape if spec.flat_values_spec is not None else spec.shape[1:]
    inner = tuple(flat.as_list()[1:]) if flat.rank else ()

    def make(tensor: Any, mask: Any) -> Any:
        lengths = tf.reduce_sum(tf.cast(mask, spec.row_splits_dtype), axis=1)
        return tf.RaggedTensor.from_tensor(cast(tensor), lengths, row_splits_dtype=spec.row_splits_dtype)

    inputs = (TensorSpec(name, _kind(spec.dtype), (None, *inner)), TensorSpec(_mask_name(name, names), "bool", (None,)))
    return Argument(inputs, make, note=f"the input {name} is ragged: its rows may have different lengths")
