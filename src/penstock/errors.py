"""Every error a user can meet, each with its exit code.

    PenstockError            1  our bug, unless a subclass says better
    ├── UsageError           2  the command or call itself is wrong
    ├── TooManyFailures      4  more rows failed than the job allows
    ├── InputError           5  the data cannot be read, or does not fit the model
    ├── ModelError           6  the model cannot be loaded, or rejects everything
    │   └── RefusedByRuntime 6  this runtime cannot load it; another one may
    ├── OutputError          7  the output folder is locked, foreign or damaged
    ├── DeviceError          8  a device, a runtime or an extra is missing
    │   └── OutOfMemory      8  a batch did not fit; a smaller one may
    ├── WorkersDied          9  replicas kept dying
    └── Interrupted        130  stopped by the user; the folder can be resumed (143 after SIGTERM, 129 after SIGHUP)

A message states the problem, then what was received, then what is allowed, then a hint, each on a line of its own.
"""

from __future__ import annotations

from typing import ClassVar


class PenstockError(Exception):
    """The base of all errors that penstock raises on purpose.

    Args:
        problem: What is wrong, in lower case, without a full stop.
        received: What was given.
        allowed: What would have been accepted.
        hint: What to do next.
    """

    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        problem: str,
        *,
        received: str | None = None,
        allowed: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.problem = problem
        self.received = received
        self.allowed = allowed
        self.hint = hint
        super().__init__(str(self))

    def __str__(self) -> str:
        lines = [self.problem]
        lines += [f"received: {self.received}"] if self.received is not None else []
        lines += [f"allowed: {self.allowed}"] if self.allowed is not None else []
        lines += [f"hint: {self.hint}"] if self.hint is not None else []
        return "\n".join(lines)

    @property
    def in_short(self) -> str:
        """What is wrong and what was given, in one line."""
        return f"{self.problem}: {self.received}" if self.received else self.problem

    def as_json(self) -> dict[str, str | int | None]:
        """The error as `--json` prints it, under the name of its public class."""
        return {
            "error": next(kind.__name__ for kind in type(self).__mro__ if kind.__module__ == __name__),
            "problem": self.problem,
            "received": self.received,
            "allowed": self.allowed,
            "hint": self.hint,
            "code": self.exit_code,
        }

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross from a replica to the coordinator; keyword arguments do not survive the default pickling.
        return _rebuild, (type(self), self.problem, self.received, self.allowed, self.hint, self.exit_code)


def _rebuild(
    kind: type[PenstockError],
    problem: str,
    received: str | None,
    allowed: str | None,
    hint: str | None,
    exit_code: int,
) -> PenstockError:
    error = kind(problem, received=received, allowed=allowed, hint=hint)
    if exit_code != kind.exit_code:
        error.exit_code = exit_code  # type: ignore[misc]
    return error


class UsageError(PenstockError):
    """The command line or the call is wrong."""

    exit_code = 2


class TooManyFailures(PenstockError):
    """More rows failed than the job allows."""

    exit_code = 4


class InputError(PenstockError):
    """The data cannot be read, or does not fit the model."""

    exit_code = 5


class ModelError(PenstockError):
    """The model cannot be loaded, or rejects every row."""

    exit_code = 6


class RefusedByRuntime(ModelError):
    """This runtime cannot load the model, but another one may: the next that the model names is tried."""


class OutputError(PenstockError):
    """The output folder is locked, holds another job, or is damaged."""

    exit_code = 7


class DeviceError(PenstockError):
    """A device, a runtime or an extra is missing or ran out of memory."""

    exit_code = 8


class OutOfMemory(DeviceError):
    """A batch did not fit into the memory of its device. A smaller one may: the run goes on with half of it."""


class WorkersDied(PenstockError):
    """Replicas died again and again without finishing a span in between."""

    exit_code = 9


class Interrupted(PenstockError):
    """The user stopped the run; what was committed stays and can be resumed."""

    exit_code = 130

    @classmethod
    def by_signal(cls, signal_number: int, problem: str, *, hint: str | None = None) -> Interrupted:
        """The error whose exit code is the shell's for `signal_number` (SIGINT 130, SIGTERM 143, SIGHUP 129)."""
        error = cls(problem, hint=hint)
        error.exit_code = 128 + signal_number  # type: ignore[misc]
        return error


_PREAMBLES = (
    "graph execution error",
    "detected at node",
    "in user code",
    "<stack traces",
    "file ",
    "[[{{node",
    "arguments ",
)
_TRACED = ("in user code", "initialization failure from server")
"""The beginnings of errors whose last line is the reason."""


def one_line(error: BaseException, limit: int = 300) -> str:
    """The reason of a framework's error in one line: its class and the line that says something.

    TensorFlow puts headings and stack traces before the reason; Keras puts the reason of a traced function last, and
    Ray that of a failed server.
    """
    try:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    except Exception:  # str() of a user's exception may itself raise
        lines = ["it cannot be shown"]
    telling = [line for line in lines if not line.lower().startswith(_PREAMBLES)] or lines
    is_traced = bool(lines) and lines[0].lower().startswith(_TRACED)
    text = (telling[-1] if is_traced else telling[0]) if telling else ""
    return f"{type(error).__name__}: {text}"[:limit].rstrip(": ")
