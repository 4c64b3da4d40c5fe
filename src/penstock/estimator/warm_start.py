"""`WarmStartSettings`: beginning training with the variables of another model."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from penstock.estimator.refusals import WrongValue


class _Fields(NamedTuple):
    ckpt_to_initialize_from: str
    vars_to_warm_start: Any
    var_name_to_vocab_info: dict[str, Any]
    var_name_to_prev_var_name: dict[str, str]


class WarmStartSettings(_Fields):
    """Which variables begin with the values of another checkpoint.

    Args:
        ckpt_to_initialize_from: A checkpoint, or a folder of them.
        vars_to_warm_start: A regular expression over trainable variables, a list of such over all variables, a list of
            variables, or None for those with a vocabulary only.
        var_name_to_vocab_info: Variable name to `VocabInfo`, where the vocabulary changed.
        var_name_to_prev_var_name: Variable name to its name in the checkpoint.
    """

    __slots__ = ()

    def __new__(
        cls,
        ckpt_to_initialize_from: Any,
        vars_to_warm_start: Any = ".*",
        var_name_to_vocab_info: dict[str, Any] | None = None,
        var_name_to_prev_var_name: dict[str, str] | None = None,
    ) -> WarmStartSettings:
        if not ckpt_to_initialize_from:
            raise WrongValue("a warm start needs a checkpoint", received=f"{ckpt_to_initialize_from!r}")
        return super().__new__(
            cls,
            ckpt_to_initialize_from,
            vars_to_warm_start,
            var_name_to_vocab_info or {},
            var_name_to_prev_var_name or {},
        )


def settings_of(warm_start_from: Any) -> WarmStartSettings | None:
    """What `Estimator(warm_start_from=…)` means: settings, a checkpoint, a folder of them, or a SavedModel."""
    if warm_start_from is None or isinstance(warm_start_from, WarmStartSettings):
        return warm_start_from
    if not isinstance(warm_start_from, (str, bytes, os.PathLike)):
        raise WrongValue(
            "warm_start_from is not understood",
            received=type(warm_start_from).__name__,
            allowed="a path, or WarmStartSettings",
        )
    path = os.fsdecode(warm_start_from)
    variables = os.path.join(path, "variables", "variables")
    return WarmStartSettings(variables if os.path.exists(variables + ".index") else path)
