"""Errors for wrong calls of this package. They are Penstock's own, but code for the original can still catch them.

The original raised `ValueError` and `TypeError`, so old code has `except ValueError` around its calls.
"""

from typing import Any

from penstock.errors import ModelError, UsageError


class WrongValue(UsageError, ValueError):
    """An argument has a value that the call does not take."""


class WrongType(UsageError, TypeError):
    """An argument is of a kind that the call does not take."""


def also_model_error(error: Exception, problem: str, received: str) -> ModelError:
    """An error that is a `ModelError`, which says where it arose, and also of the class that the user's code raised.

    >>> made = also_model_error(KeyError("x"), "the model_fn failed", "model.py, line 3: KeyError: 'x'")
    >>> isinstance(made, KeyError)
    True
    """
    kind = type(error)
    if isinstance(error, StopIteration):  # inside a generator, it would signal the end
        return ModelError(problem, received=received)
    try:
        both: Any = type(kind.__name__, (ModelError, kind), {"__module__": kind.__module__, "__reduce__": _as_plain})
        made: ModelError = both.__new__(both, *error.args)
        # The class's `__init__` may take any arguments, so it is not called: the attributes that it has set are copied.
        made.__dict__.update(error.__dict__)
        made.args = error.args
    except Exception:  # a class that cannot be extended
        return ModelError(problem, received=received)
    made.problem, made.received, made.allowed, made.hint = problem, received, None, None
    return made


def _as_plain(error: ModelError) -> tuple[Any, ...]:
    """How to pickle the error: as a plain ModelError, since another process may not have the user's class."""
    return ModelError(error.problem, received=error.received).__reduce__()
