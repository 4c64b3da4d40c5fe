"""A `model_fn` on its way to another process, with the flags that the user's script was started with."""

from __future__ import annotations

import importlib
import io
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import cloudpickle

_OF_THE_PROCESS = ("absl.", "tensorflow.")
"""Modules whose flags say how a process itself runs: each has its own."""


class FlagCopy(NamedTuple):
    """A flag of absl: the module that defines it, or, where that is the script itself, what it is made of."""

    name: str
    module: str | None
    kind: type
    state: dict[str, Any]
    value: Any


def pack(function: Any) -> bytes:
    """A `ModelFunction` as it travels: `resolved` of what is unpacked gives it."""
    return _dumps(Travelling(function.checkpoint, _dumps(_copy_flags()), _dumps(function)))


@dataclass(frozen=True)
class Travelling:
    """A `ModelFunction` that is unpacked when all is in place that a module may need when it is imported:
    `tf.estimator`, and the flags."""

    checkpoint: str | None
    flags: bytes
    function: bytes

    def resolved(self) -> Any:
        """Unpack it, in a process of our own."""
        import penstock.estimator as doorway

        doorway.install()
        copies = cloudpickle.loads(self.flags)
        if copies is not None:
            _set_flags(copies)
        return cloudpickle.loads(self.function).resolved()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Knows the flags of absl and of `tf.compat.v1.flags`, which refuse to be pickled: each process has its own."""

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind.__name__ in ("FlagValues", "_FlagValuesWrapper") and value is _flags_of(kind.__module__):
            return _flags_of, (kind.__module__,)
        return super().reducer_override(value)


def _dumps(value: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


def _flags_of(module: str) -> Any:
    """The flags of this process: `absl.flags.FLAGS`, or what TensorFlow puts around them."""
    return importlib.import_module("absl.flags" if module.startswith("absl.") else module).FLAGS


def _copy_flags() -> list[FlagCopy] | None:
    """Every flag of the script, and those of other modules that were set; None where flags are not used."""
    absl = sys.modules.get("absl.flags")
    if absl is None or not absl.FLAGS.is_parsed():
        return None
    copies: list[FlagCopy] = []
    for module, flags in absl.FLAGS.flags_by_module_dict().items():
        is_module = module in sys.modules and module != "__main__"
        if module.startswith(_OF_THE_PROCESS):
            continue
        for flag in flags:
            if is_module and flag.value == flag.default:
                continue
            state = {} if is_module else {**vars(flag), "validators": []}
            copies.append(FlagCopy(flag.name, module if is_module else None, type(flag), state, flag.value))
    return copies


def _set_flags(copies: list[FlagCopy]) -> None:
    from absl import flags

    # Before any module is imported: what reads a flag of the script, or asks whether they are parsed, finds it so.
    flags.FLAGS.mark_as_parsed()
    for copy in copies:
        if copy.module is None and copy.name not in flags.FLAGS:
            flag: Any = object.__new__(copy.kind)
            vars(flag).update(copy.state)
            flags.FLAGS[copy.name] = flag
    for copy in copies:
        if copy.module is not None and copy.name not in flags.FLAGS:
            importlib.import_module(copy.module)
        if copy.name in flags.FLAGS:
            flags.FLAGS[copy.name].value = copy.value
