"""The loader processes of the local engine: their slots, the first batch, and their timings of finished spans."""

import math
from dataclasses import replace

from penstock.core.division import SPAN_BATCHES
from penstock.core.job import Job
from penstock.core.messages import Chunk, Filled, LoadedData, Prepare, SpanLoaded
from penstock.core.records import STRING, Placement, Span, Timings
from penstock.core.stillness import Timeouts
from penstock.pool.processes.loader_pool import Deliver, LoaderPool
from penstock.pool.processes.supervisor import Launch
from penstock.pool.transfer.batches import bytes_needed
from penstock.pool.transfer.slots import Slots

_WARM = -1
_SLOTS_OF_A_LOADER = 2
_SPANS_AHEAD = 2
_SLOW_S = 1.0
_AHEAD_BYTES = 64 << 20
_KEPT_ROW_BYTES = 512
_LEAST_SLOT_BYTES = 1 << 20


class LoaderFeed:
    """Loader processes, and the first batch, with which every replica warms up.

    Args:
        launch: What processes are started with.
        deliver: Takes the messages that are for a replica.
        timeouts: How long processes may take.
    """

    def __init__(self, launch: Launch, deliver: Deliver, timeouts: Timeouts) -> None:
        self._launch = launch
        self._deliver = deliver
        self.pool = LoaderPool(launch, self._take, timeouts)
        self.warm: Filled | None = None
        self.rows_loaded_per_s: float | None = None
        """The speed of one loader; known when all of the first rows are read."""
        self.warm_chunks: list[tuple[Chunk, bytes]] = []
        self._slots: Slots | None = None
        self._sample: Span | None = None
        self._is_timed = False
        self.slot_bytes = self.slot_count = 0
        self._waited: dict[int, float] = {}

    def begin(self, job: Job, placement: Placement, sample: Span, *, is_timed: bool = False) -> None:
        """Start the loaders and have the first batch read, with which every replica warms up; time it if asked."""
        self.warm, self.warm_chunks, self.rows_loaded_per_s = None, [], None
        self.slot_bytes = slot_bytes_of(job)
        self.slot_count = _slots_for(placement, self.slot_bytes)
        self.pool.begin(job, placement.loaders, self.slot_bytes, self.slot_count)
        self._slots = Slots(self._launch.batch_slots, self.slot_count, self.slot_bytes)
        self._sample, self._is_timed = replace(sample, index=_WARM), is_timed
        self.pool.submit(self._sample)

    def with_first_batch(self, prepare: Prepare) -> Prepare:
        """The order, with what a replica needs to take batches from loader processes and to warm up with the first."""
        return replace(
            prepare,
            loaders=0,
            slot_bytes=self.slot_bytes,
            slot_count=self.slot_count,
            warm=self.warm,
            warm_chunks=tuple(self.warm_chunks),
        )

    def finish(self, span: int, timings: Timings) -> None:
        """A replica has delivered a span; add to its timings what the loaders measured."""
        self.pool.forget(span)
        timings.wait_for_room += self._waited.pop(span, 0.0)
        timings.marks += self.pool.take_marks()

    def _take(self, message: LoadedData) -> None:
        if (message.key[0] if isinstance(message, Chunk) else message.span) == _WARM:
            self._keep_warm(message)
            return
        if isinstance(message, SpanLoaded):
            self._waited[message.span] = message.waited_s
        self._deliver(message)

    def _keep_warm(self, message: LoadedData) -> None:
        """The first batch stays in its slot: replicas that start later warm up with it, too.

        Its chunks are copied out of their slots: there may be more chunks than slots.
        """
        if isinstance(message, Chunk):
            if self.warm is None and message.key[1] == 0:
                assert self._slots is not None
                self.warm_chunks.append((message, bytes(self._slots.view(message.slot, message.nbytes))))
            self.pool.release(message.slot)
        elif isinstance(message, SpanLoaded):
            self._time(message.read_s)
        elif self.warm is None:
            self.warm = message
        elif message.slot is not None:
            self.pool.release(message.slot)

    def _time(self, read_s: float) -> None:
        """Note how fast one loader reads. At first it also imports what it needs, so the same rows are read again."""
        assert self._sample is not None
        if read_s < _SLOW_S and self._is_timed:
            self._is_timed = False
            self.pool.submit(self._sample)
        else:
            self.rows_loaded_per_s = self._sample.rows / max(read_s, 1e-6)


def _slots_for(placement: Placement, slot_bytes: int) -> int:
    """How many slots are made: those in use, one for the first batch, and some for batches that are read ahead.

    A loader reads span by span. Without room for whole spans, replicas would wait for each other: MobileNetV2 from
    photos on two cores, 12 % of the time of two replicas.
    """
    in_use = _SLOTS_OF_A_LOADER * placement.most_loaders + placement.replicas * (placement.lanes + 2) + 1
    return in_use + min(_SPANS_AHEAD * SPAN_BATCHES * placement.replicas, _AHEAD_BYTES // slot_bytes)


def slot_bytes_of(job: Job) -> int:
    """A slot holds one batch of inputs, at the largest size that was planned for, and a few kept columns."""
    shapes = {}
    for binding in job.bindings:
        sizes = iter(job.buckets.get(binding.mask_of or binding.input, ()))
        shape = tuple(next(sizes)[-1] if length is None else length for length in binding.shape)
        shapes[binding.input] = ((job.batch_size, *shape), object if binding.dtype == STRING else binding.dtype)
    kept = _KEPT_ROW_BYTES * job.batch_size * len(job.keep)
    page = 1 << 16
    return math.ceil(max(_LEAST_SLOT_BYTES, bytes_needed(shapes) + kept) / page) * page
