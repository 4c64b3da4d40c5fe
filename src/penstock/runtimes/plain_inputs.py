"""The inputs and outputs that a plain model file declares, and how arrays on the host become its inputs.

It decides which inputs are columns, which are one value for the whole job, and how many rows the model takes at once.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.core.columns import to_lists
from penstock.core.records import STRING, Array, Column, Columns, ModelFile, Shape, Signature, TensorSpec
from penstock.core.scaling import scaled_inputs
from penstock.errors import ModelError, UsageError

BFLOAT16 = "bfloat16"
_YES, _NO = ("true", "yes", "1"), ("false", "no", "0")


@dataclass(frozen=True)
class Declared:
    """An input or output as a file declares it: `shape` still has the batch dimension, and is None where the rank is
    unknown."""

    name: str
    dtype: str
    shape: Shape | None

    def as_rows(self) -> TensorSpec:
        return TensorSpec(self.name, self.dtype, None if self.shape is None else self.shape[1:])

    def __str__(self) -> str:
        return f"{self.name} {TensorSpec(self.name, self.dtype, self.shape)}"


@dataclass(frozen=True)
class Inputs:
    """The inputs of a file: those that are fed rows, and the values of those that are not."""

    rows: tuple[Declared, ...]
    constants: Columns

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        return tuple(each.as_rows() for each in self.rows)


def divide_inputs(file: ModelFile, declared: Sequence[Declared]) -> Inputs:
    """Divide the declared inputs into those that are fed rows, and those that have one value for the whole job.

    Raises:
        UsageError: A value was given for an input that does not exist, or it is not of the input's dtype or shape.
        ModelError: An input has no batch dimension, and no value was given for it.
    """
    names = [each.name for each in declared]
    unknown = [name for name in file.constants if name not in names]
    if unknown:
        raise UsageError(
            "the model has no such input",
            received=f"--constant {unknown[0]}={file.constants[unknown[0]]}",
            allowed=", ".join(map(str, declared)),
        )
    rows = tuple(each for each in declared if each.name not in file.constants)
    for each in rows:
        if each.shape == ():
            raise ModelError(
                "an input of this model has no batch dimension",
                received=str(each),
                allowed="inputs with rows first, or one value for the whole job",
                hint=f"--constant {each.name}=VALUE",
            )
    if not rows:
        raise ModelError("the model takes no rows", received=", ".join(map(str, declared)) or "no inputs at all")
    return Inputs(rows, {e.name: parse_constant(e, file.constants[e.name]) for e in declared if e not in rows})


def parse_constant(declared: Declared, text: str) -> Array:
    """The value of an input from text: one value, or several with commas between them where the input takes several.

    Several values fill the shape of the input in C order. Where the rank is unknown, several numbers are a vector, and
    text is one text, also with commas in it.

    Raises:
        UsageError: It is not of the input's dtype, out of its range, or not as many as the input takes.
    """
    shape, is_text = declared.shape, declared.dtype == STRING
    pieces = [text] if shape == () or (shape is None and is_text) else text.split(",")
    if shape is None:
        shape = () if len(pieces) == 1 else (None,)
    try:
        values = _parse(declared.dtype, [piece if is_text else piece.strip() for piece in pieces])
        return values.reshape([-1 if length is None else length for length in shape])
    except (ValueError, OverflowError, TypeError):
        raise UsageError(
            "this is not a value of that input",
            received=f"--constant {declared.name}={text}",
            allowed=str(declared),
        ) from None


def _parse(dtype: str, pieces: Sequence[str]) -> Array:
    if dtype == STRING:
        return np.array([piece.encode() for piece in pieces], dtype=object)
    if dtype == "bool":
        if any(piece.lower() not in (*_YES, *_NO) for piece in pieces):
            raise ValueError(pieces)
        return np.array([piece.lower() in _YES for piece in pieces])
    if "int" in dtype:
        return np.array([int(piece) for piece in pieces], dtype=dtype)
    given = [float(piece) for piece in pieces]
    with np.errstate(over="ignore"):
        values = np.array(given, dtype=np.float32 if dtype == BFLOAT16 else dtype)
    if not np.array_equal(np.isinf(values), np.isinf(given)):
        raise OverflowError(pieces)
    return values


def rows_at_once(rows: Iterable[Declared]) -> int | None:
    """The only batch size that the inputs allow; None where they leave it open.

    Raises:
        ModelError: They declare different batch sizes, so at least one of them is not rows.
    """
    sizes = {each.name: each.shape[0] for each in rows if each.shape}
    fixed = {name: size for name, size in sizes.items() if size is not None}
    if len(set(fixed.values())) > 1:
        smallest = min(fixed, key=lambda name: fixed[name] or 0)
        raise ModelError(
            "the inputs of this model ask for different numbers of rows",
            received=", ".join(f"{name}: {size}" for name, size in fixed.items()),
            allowed="inputs with rows first",
            hint=f"if one of them is the same for all rows: --constant {smallest}=VALUE,VALUE,…",
        )
    return next(iter(fixed.values()), None)


class HostInputs:
    """Arrays as they come from loaders, scaled and cast to what the model takes, on the host."""

    def __init__(self, file: ModelFile, signature: Signature) -> None:
        self._scaling = file.scaling
        self._scaled = scaled_inputs(file.scaling, signature) if file.scaling is not None else ()
        self._dtypes = {spec.name: spec.dtype for spec in signature.inputs}

    def scale(self, name: str, array: Array) -> Array:
        """The input, scaled if the user asked for it."""
        if self._scaling is None or name not in self._scaled:
            return array
        return np.asarray(self._scaling.apply(array.astype(np.float32)))

    def prepare(self, name: str, array: Array) -> Array:
        """The input, scaled and cast. A bfloat16 input becomes float32: numpy has no bfloat16."""
        wanted = self._dtypes.get(name, STRING)
        if wanted == STRING:
            return array
        kind = np.dtype(np.float32 if wanted == BFLOAT16 else wanted)
        return np.ascontiguousarray(self.scale(name, array), dtype=kind)


class OneByOne:
    """A model whose file takes one row: a larger batch is fed to it row by row inside one call.

    Batches of one row would cost more on their way than in the model. All that such a model gives is the answer for its
    row, so an output needs no batch dimension. Where the length of an answer is open, such as the number of things that
    a detector finds, the answer is a list. Only the declaration in the file decides this: the form of an answer must
    not depend on the other rows of its batch.

    Args:
        outputs: The outputs that the file declares.
        has_open_batch: Whether the file leaves the number of rows open, although the model does not take two. An open
            first dimension is then the batch.
    """

    def __init__(self, outputs: Iterable[Declared], *, has_open_batch: bool = False) -> None:
        self._declared = {each.name: each for each in outputs}
        self._has_open_batch = has_open_batch

    def spec(self, declared: Declared) -> TensorSpec:
        if declared.shape is None or self._has_batch(declared.shape):
            return declared.as_rows()
        return TensorSpec(declared.name, declared.dtype, declared.shape)

    def run(self, run: Callable[[Columns], Columns], batch: Columns) -> dict[str, Column]:
        rows = len(next(iter(batch.values())))
        answers = [run({name: array[row : row + 1] for name, array in batch.items()}) for row in range(rows)]
        return {name: self._stack(name, [answer[name] for answer in answers]) for name in answers[0]}

    def _has_batch(self, shape: Shape) -> bool:
        return shape[:1] == (1,) or (shape[:1] == (None,) and self._has_open_batch)

    def _stack(self, name: str, answers: Sequence[Array]) -> Column:
        declared = self._declared.get(name)
        shape = declared.shape if declared is not None else None
        shapes = {answer.shape for answer in answers}
        # An output that the file does not declare is judged by the shapes of its answers.
        is_one_row = all(each[:1] == (1,) for each in shapes)
        has_batch = self._has_batch(shape) if shape is not None else is_one_row
        if has_batch and not is_one_row:
            raise ModelError(
                "an output of the model does not have one row for each row of the input",
                received=f"{name}: {', '.join(map(str, sorted(shapes)[:3]))} for one row",
                allowed="(1, …)",
            )
        if shape is not None and not has_batch and shape[:1] == (None,):
            return to_lists([answer[None] for answer in answers])
        if len(shapes) == 1:
            return np.concatenate(answers) if has_batch else np.stack(answers)
        if shape is not None and None in shape[1:] and len({len(each) for each in shapes}) == 1:
            return to_lists(answers if has_batch else [answer[None] for answer in answers])
        raise ModelError(
            "an output of the model has another shape from row to row",
            received=f"{name}: {', '.join(map(str, sorted(shapes)[:3]))}",
            allowed="one shape for all rows, or an output whose declared shape is open",
        )


def describe_file(inputs: Inputs, outputs: Iterable[Declared], loop: OneByOne | None, writer: str) -> Signature:
    """What a file takes and gives for each row. With `loop`, rows go in one by one."""
    fixed = rows_at_once(inputs.rows)
    specs = tuple(each.as_rows() if loop is None else loop.spec(each) for each in outputs)
    return Signature(
        inputs.specs,
        specs,
        structure="single" if len(specs) == 1 else "dict",
        fixed_batch=fixed if fixed != 1 else None,
        writer=writer,
        notes=() if loop is None else ("the file takes one row at a time: batches are fed to it row by row",),
    )
