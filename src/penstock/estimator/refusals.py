"""What a wrong call of the doorway gets: penstock's own errors, which code written for the original can still catch.

The original raised `ValueError` and `TypeError`; old code has `except ValueError` around it.
"""

from __future__ import annotations

from penstock.errors import UsageError


class WrongValue(UsageError, ValueError):
    """An argument has a value that the call does not take."""


class WrongType(UsageError, TypeError):
    """An argument is of a kind that the call does not take."""
