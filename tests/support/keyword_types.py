"""Writes the types of the keywords of `predict`, `evaluate` and `fit` from the table of options.

python -m tests.support.keyword_types
"""

from __future__ import annotations

from pathlib import Path

from penstock.commands import keyword_types
from penstock.options.fit_records import FIT_OPTIONS, FITTED_WITH
from penstock.options.records import OPTIONS
from penstock.options.training_records import EVALUATE_OPTIONS, EVALUATED_WITH

_HEAD = '''"""Types of the keywords of the Python twins, for editors and type checkers.

Written from the table of options: python -m tests.support.keyword_types
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from penstock.core.plans import Plan


class PredictKeywords(TypedDict, total=False):
    """The options of `predict`, as its command has them, without what it takes by position."""

'''
_TAIL = '''

class Keywords(PredictKeywords, total=False):
    """The options of `predict`, `stream` and `plan`, as their commands have them."""

'''
_EVALUATE = '''

class EvaluateKeywords(TypedDict, total=False):
    """The options of `evaluate`, as its command has them, without what it takes by position."""

'''
_FIT = '''

class FitFileKeywords(TypedDict, total=False):
    """The options of `fit` on files, as its command has them, without those that `fit` takes for live models, too."""

'''
_OF_LIVE_MODELS = (
    "batch_size",
    "epochs",
    "accumulate",
    "on_nan",
    "scale_lr",
    "step",
    "all_reduce",
    "validation_split",
    "shuffle",
)


def source() -> str:
    lines = {name: f"    {name}: {option.kind.python}\n" for name, option in OPTIONS.items()}
    measured = {name: f"    {name}: {option.kind.python}\n" for name, option in EVALUATE_OPTIONS.items()}
    batch_size = lines.pop("batch_size")
    evaluated = [line for name, line in lines.items() if name in EVALUATED_WITH]
    evaluate = _EVALUATE + "".join([*measured.values(), *evaluated])
    trained = {**FIT_OPTIONS, **{name: OPTIONS[name] for name in FITTED_WITH}}
    fit = [f"    {name}: {each.kind.python}\n" for name, each in trained.items() if name not in _OF_LIVE_MODELS]
    return _HEAD + "".join(lines.values()) + _TAIL + batch_size + evaluate + _FIT + "".join(fit)


if __name__ == "__main__":
    Path(keyword_types.__file__).write_text(source(), encoding="utf-8")
