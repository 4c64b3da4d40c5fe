"""What a remote store answers, told as a matter of the output."""

from __future__ import annotations

import sys

from penstock.core.retrying import may_pass
from penstock.errors import OutputError

RESUMABLE = "what is committed stays: mend it and run the same command again"


def explained(error: Exception, address: str) -> OutputError:
    """The problem, the address, what the store said, and what to do about it."""
    said = f"{address}: {error or type(error).__name__}"
    if isinstance(error, _types("botocore.exceptions", "NoCredentialsError", "PartialCredentialsError")):
        return OutputError(
            "there are no credentials for the output",
            received=said,
            hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
        )
    if isinstance(error, PermissionError):
        return OutputError(
            "there is no permission to write to the output",
            received=said,
            hint="the credentials must be allowed to list, get, put and delete objects there",
        )
    if isinstance(error, FileNotFoundError):
        return OutputError(
            "the bucket of the output does not exist", received=said, hint="make it first, or check its name"
        )
    if isinstance(error, NotImplementedError):
        return OutputError("the output cannot be written to a place of this kind", received=said)
    problem = "the output cannot be reached" if may_pass(error) else "the output cannot be written"
    return OutputError(problem, received=said, hint=RESUMABLE)


def _types(module: str, *names: str) -> tuple[type[BaseException], ...]:
    """Types of a module that may not be installed; one that is not loaded cannot have raised anything."""
    found = sys.modules.get(module)
    return tuple(getattr(found, name) for name in names) if found is not None else ()
