"""How fast a step is at one batch size, measured in a process that can be thrown away."""

import threading
import time

import numpy as np

from penstock.core.messages import Measure, Measured
from penstock.core.protocols import Gauged, Replica
from penstock.core.records import Columns
from penstock.errors import OutOfMemory, one_line
from penstock.pool.devices.memory import forget_peak, peak_bytes

_LEAST_CALLS = 2


def measure(replica: Replica, first_rows: Columns, order: Measure) -> Measured:
    """Run the step as the lanes of a job would, on batches made of the first rows, until the time is up."""
    if not first_rows:
        return Measured(order.batch_size, problem="every one of the first rows fails")
    batch = sized(first_rows, order.batch_size)
    if not order.is_warm:
        forget_peak()
    if order.room_bytes is not None and isinstance(replica, Gauged):
        needed = replica.predicted_bytes(batch)
        if needed is not None and needed > order.room_bytes:
            problem = f"it would take {needed / 2**30:.1f} GiB of {order.room_bytes / 2**30:.1f}"
            return Measured(order.batch_size, peak_bytes=_peak(replica), problem=problem)
    try:
        began = time.perf_counter()
        if not order.is_warm:
            replica.predict(dict(batch))
        rows, seconds = _run_lanes(replica, batch, order, time.perf_counter() - began)
    except OutOfMemory as error:
        return Measured(order.batch_size, peak_bytes=_peak(replica), problem=f"out of memory: {error.received}")
    except MemoryError:
        raise  # at the end of its own memory a process cannot be trusted any more
    except Exception as error:
        return Measured(order.batch_size, peak_bytes=_peak(replica), problem=one_line(error))
    return Measured(order.batch_size, rows, seconds, _peak(replica))


def sized(first_rows: Columns, batch_size: int) -> Columns:
    """A batch of this size: the first rows, repeated."""
    have = len(next(iter(first_rows.values())))
    places = np.arange(batch_size) % have
    return {name: np.ascontiguousarray(array[places]) for name, array in first_rows.items()}


def _run_lanes(replica: Replica, batch: Columns, order: Measure, warm_s: float) -> tuple[int, float]:
    """Rows and seconds of all lanes together; each ends its last call, which is then counted whole."""
    least = 1 if warm_s > order.seconds else _LEAST_CALLS
    calls = [0] * order.lanes
    errors: list[BaseException] = []
    began = time.perf_counter()
    until = began + order.seconds

    def run(lane: int) -> None:
        try:
            while calls[lane] < least or time.perf_counter() < until:
                replica.predict(dict(batch))
                calls[lane] += 1
        except BaseException as error:
            errors.append(error)

    lanes = [threading.Thread(target=run, args=(lane,), daemon=True) for lane in range(order.lanes)]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    if errors:
        raise errors[0]
    return sum(calls) * order.batch_size, time.perf_counter() - began


def _peak(replica: Replica) -> int:
    on_device = replica.peak_bytes() if isinstance(replica, Gauged) else None
    return peak_bytes() if on_device is None else on_device
