"""What a model file says about itself, and how a file that asks for trust, or is damaged, is refused."""

import os
from collections.abc import Iterable, Sequence

from penstock.errors import ModelError

_MOST_NAMED = 4


class Malformed(ValueError):
    """The bytes do not follow their format."""


def refuse_untrusted(location: str, needs_trust: Sequence[str], trust: bool) -> None:
    """Raise if a model does something that needs trust, and is not trusted."""
    if not needs_trust or trust:
        return
    reasons = "; ".join(needs_trust[:_MOST_NAMED])
    if len(needs_trust) > _MOST_NAMED:
        reasons += f"; and {len(needs_trust) - _MOST_NAMED} more"
    raise ModelError(
        "the model can run code or reach files, and is not trusted",
        received=f"{location}: {reasons}",
        hint="if you trust where it came from: --trust-model",
    )


def damaged(location: str, what: str, why: object, hint: str | None = None) -> ModelError:
    """The error for a file that is not what its name says. `what` is a noun: `a .keras file`."""
    return ModelError(f"the file is damaged or not {what}", received=f"{location}: {why}", hint=hint)


def too_large(path: str) -> ModelError:
    """The error for a file that does not fit into memory, or into what a process may take of it."""
    return ModelError("the model is too large to be read", received=f"{path}: {shown_bytes(os.path.getsize(path))}")


def refuse_signature(kind: str, signature: str | None) -> None:
    """Raise if a signature was asked for: this kind of file has none."""
    if signature is not None:
        raise ModelError(f"{kind} has no signatures", received=f"--signature {signature}")


def require_file(location: str) -> str:
    """The absolute path of a file that must be there and readable."""
    if os.path.isdir(location):
        raise ModelError("this is a folder, and its name is that of a file", received=location)
    if not os.path.isfile(location):
        raise ModelError("no such model file", received=location)
    if not os.access(location, os.R_OK):
        raise ModelError("the model cannot be read", received=f"{location}: permission denied")
    return os.path.abspath(location)


def listed(names: Iterable[str]) -> str:
    """Names for a sentence: each once, in order, and not too many of them."""
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - _MOST_NAMED} more" if len(unique) > _MOST_NAMED else ""
    return ", ".join(unique[:_MOST_NAMED]) + more


def first_bytes(path: str, count: int) -> bytes:
    """How a file begins."""
    with open(path, "rb") as file:
        return file.read(count)


def shown_bytes(count: int) -> str:
    """A size for people."""
    size = float(count)
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
