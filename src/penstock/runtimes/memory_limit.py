"""A device's memory: the share that a replica may take, and one error for running out of it in any framework."""

import re
from collections.abc import Callable

from penstock.core.memory import speaks_of_memory
from penstock.core.records import Columns, Device
from penstock.errors import OutOfMemory, one_line

_BOLD = re.compile("\x1b\\[[0-9;]*m")


def out_of_memory(batch: Columns, reason: str) -> OutOfMemory:
    """The error for a batch that did not fit; `reason` is the framework's own, in one line."""
    rows = len(next(iter(batch.values())))
    return OutOfMemory(
        "the device ran out of memory",
        received=f"a batch of {rows} rows: {reason}",
        hint=f"try --batch-size {max(1, rows // 2)}",
    )


def ran_out(error: BaseException) -> bool:
    """Whether the text of an error says that memory ran out; for errors whose class does not say it.

    Python's own MemoryError does not count: when the process itself is out of memory, frameworks hang in their
    clean-up, and only another process can go on.
    """
    return not isinstance(error, MemoryError) and speaks_of_memory(str(error))


def what_was_short(error: BaseException) -> str:
    """The framework's reason in one line: the line that speaks of memory, which need not be the first."""
    lines = [_BOLD.sub("", line).strip() for line in str(error).splitlines() if speaks_of_memory(line)]
    return f"{type(error).__name__}: {lines[0]}"[:300] if lines else one_line(error)


def within_memory(
    batch: Columns,
    predict: Callable[[Columns], Columns],
    kinds: tuple[type[Exception], ...] = (),
    *,
    reason: Callable[[Exception], str] = what_was_short,
    let_go: Callable[[], None] | None = None,
) -> Columns:
    """Run a batch. If the device has too little memory for it, turn the framework's error into ours.

    Args:
        batch: The batch.
        predict: Runs the batch.
        kinds: The framework's own classes for such errors.
        reason: Makes one line of the framework's error.
        let_go: Gives back the memory that is kept for the next batch.

    Raises:
        OutOfMemory: The batch did not fit.
    """
    try:
        return predict(batch)
    except Exception as error:
        if not isinstance(error, kinds) and not ran_out(error):
            raise
        received = reason(error)
    # Outside the except block: the traceback of the error holds the tensors, and with them the memory.
    if let_go is not None:
        let_go()
    raise out_of_memory(batch, received)


def memory_fraction(device: Device) -> float | None:
    """The share of all its memory that this replica may take; None where nothing limits it.

    Frameworks count a little less memory as the whole than the driver does, so the share is never exceeded.
    """
    if device.kind != "gpu" or not device.memory_limit or not device.memory_bytes:
        return None
    return min(1.0, device.memory_limit / device.memory_bytes)
