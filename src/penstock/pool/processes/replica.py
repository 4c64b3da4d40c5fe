"""The main of a replica process: `python -m penstock.pool.processes.replica`, with its descriptors as arguments.

Device, memory and threads were pinned in the environment before this process began. It serves the coordinator until
the line is closed, and ends at once when it is: a coordinator that was killed leaves no process behind.
"""

import contextlib
import itertools
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import NoReturn

import numpy as np

from penstock.core import messages
from penstock.core.agreement import ENOUGH_ROWS
from penstock.core.batching import Batch
from penstock.core.columns import take_positions
from penstock.core.decoding import Undecoded
from penstock.core.protocols import Exporting, Noting, Registering, Replica, TakesAnySize, TakingOver
from penstock.core.records import Array, Binding, Columns, Result, Span, Timings
from penstock.core.reordering import answers
from penstock.core.state import NONE
from penstock.core.tracing import ANSWERS, DECODER, FIRST_BATCHES, FIRST_ROWS, LANES, PROCESS, REGISTER, TRACE, Mark
from penstock.errors import OutOfMemory
from penstock.pool.decoding import AHEAD, BatchDecoder
from penstock.pool.devices.memory import available_bytes
from penstock.pool.guard.guarded import GuardedReplica
from penstock.pool.guard.keeping import Keeper, trim
from penstock.pool.guard.noise import find_noise
from penstock.pool.guard.rows_alone import answers_alone, join_answers
from penstock.pool.guard.step_timing import measure
from penstock.pool.guard.strangers import answer_strangers
from penstock.pool.guard.warmup import first_that_runs, places_alive, warm_lanes
from penstock.pool.loading import load_batches
from penstock.pool.pipeline import Pipeline
from penstock.pool.processes.board import Board
from penstock.pool.processes.channel import Channel
from penstock.pool.processes.serving import Serving
from penstock.pool.transfer.batches import bytes_needed, open_batch
from penstock.pool.transfer.results import Assembly, Writable, send
from penstock.pool.transfer.slots import FreeSlots, Slots

_PAGE = 4096
_REGISTERED_SHARE = 8
"""At most one in so many bytes of the machine's free memory is registered, because all of that is taken at once."""


class BatchInlet:
    """Where batches of loader processes arrive. Those of spans that are no longer expected are released at once."""

    def __init__(self, slots: Slots, say: Callable[[object], None]) -> None:
        self._slots = slots
        self._say = say
        self._assembly = Assembly(slots)
        self._expected: dict[int, Span] = {}

    def expect(self, span: Span) -> None:
        self._expected[span.index] = span

    def forget(self, span: Span) -> None:
        self._expected.pop(span.index, None)

    def drain(self, pipeline: Pipeline) -> list[Span]:
        """Take back spans that the pipeline has not begun; nothing of them is expected any more."""
        unbegun = pipeline.drain(list(self._expected.values()))
        for span in unbegun:
            self.forget(span)
        return unbegun

    def open(self, filled: messages.Filled, chunks: Sequence[tuple[messages.Chunk, bytes]] = ()) -> Batch:
        for chunk, content in chunks:
            self._assembly.put(chunk, content)
        return open_batch(filled, self._slots, self._assembly)

    def take(self, message: messages.LoadedData, pipeline: Pipeline) -> None:
        match message:
            case messages.Chunk(slot=slot, key=(index, number, _)):
                if message.offset == 0:
                    self._assembly.drop((index, number))  # chunks of a loader that died before the batch was whole
                self._assembly.add(message)
                self._say(messages.Emptied(slot))
            case messages.Filled(span=index, slot=slot, attempt=attempt):
                span = self._expected.get(index)
                if span is not None and not pipeline.has(span, message.index, attempt):
                    pipeline.give(span, self.open(message), lambda: self._release(slot), slot, attempt)
                else:
                    # It came twice, after a loader died: chunks of it may be from both loaders, and are dropped unread.
                    self._assembly.drop((index, message.index))
                    self._release(slot)
            case messages.SpanLoaded(span=index, num_batches=count, read_s=read_s, attempt=attempt):
                span = self._expected.get(index)
                if span is not None:
                    pipeline.end(span, count, read_s, attempt)

    def _release(self, slot: int | None) -> None:
        if slot is not None:
            self._say(messages.Emptied(slot))


class ReplicaProcess:
    """One replica's side of the conversation."""

    def __init__(self, channel: Channel, slots: Slots, batch_slots: int, board: Board) -> None:
        self._channel = channel
        self._board = board
        self._device = ""
        self._slots = slots
        self._free = FreeSlots(range(slots.count))
        self._batch_slots = batch_slots
        self._batches: BatchInlet | None = None
        self._serving = Serving(channel, self._handle, self._take_at_once)
        self._replica: Replica | None = None
        self._keeper: Keeper | None = None
        self._guarded: GuardedReplica | None = None
        self._pipeline: Pipeline | None = None
        self._decoder: BatchDecoder | None = None
        self._bindings: tuple[Binding, ...] = ()
        self._first_rows: Columns = {}
        self._marks: list[Mark] = []
        self._registered: list[Callable[[], None]] = []
        self._room: Future[Writable | None] | None = None
        self._background = ThreadPoolExecutor(1)

    def serve(self) -> None:
        self._serving.serve()

    def _take_at_once(self, message: object) -> bool:
        if isinstance(message, messages.Release):
            self._free.give_back(message.slot)
            return True
        return False

    def _handle(self, message: object) -> None:
        match message:
            case messages.Load():
                self._load(message)
            case messages.Prepare():
                self._channel.send(replace(self._prepare(message), marks=self._take_marks()))
            case messages.Measure():
                assert self._replica is not None
                self._channel.send(measure(self._replica, self._first_rows, message))
            case messages.Convert(folder=folder):
                self._channel.send(self._convert(folder))
            case messages.FindNoise(rows=rows):
                assert self._replica is not None
                self._channel.send(find_noise(self._replica, self._first_rows, rows))
            case messages.Limit(ceilings=ceilings):
                if self._guarded is not None:
                    self._guarded.limit(ceilings)
            case messages.Work(span=span, poisoned=poisoned, care=care):
                assert self._pipeline is not None
                assert self._guarded is not None
                self._guarded.leave_out(poisoned)
                self._guarded.take_care(span.start, care)
                if self._batches is not None:
                    self._batches.expect(span)
                else:
                    self._pipeline.add(span)
            case messages.Chunk() | messages.Filled() | messages.SpanLoaded():
                assert self._batches is not None
                assert self._pipeline is not None
                self._batches.take(message, self._pipeline)
            case messages.Drain():
                self._channel.send(messages.Returned(tuple(span.index for span in self._drain())))

    def _drain(self) -> list[Span]:
        if self._pipeline is None:
            return []
        return self._pipeline.drain() if self._batches is None else self._batches.drain(self._pipeline)

    def _load(self, message: messages.Load) -> None:
        self._marks.append(Mark(PROCESS, threading.current_thread().name, message.sent, time.perf_counter()))
        sys.path += [entry for entry in message.import_path if entry not in sys.path]
        self._device = str(message.device)
        self._replica = message.runtime.load(message.model, message.device, message.threads)
        self._keeper = Keeper(self._replica)
        self._channel.send(messages.Loaded(self._replica.signature, self._take_marks()))

    @contextlib.contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._marks.append(Mark(what, threading.current_thread().name, started, time.perf_counter()))

    def _take_marks(self) -> tuple[Mark, ...]:
        """The steps of the start that were noted here and by the replica, for the trace."""
        inside = self._replica.take_marks() if isinstance(self._replica, Noting) else ()
        taken, self._marks = (*self._marks, *inside), []
        return taken

    def _prepare(self, message: messages.Prepare) -> messages.Prepared:
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None
        self._let_go_of_memory()
        try:
            return self._prepare_pipeline(message)
        except Undecoded as error:
            self._decode_by(None)
            self._let_go_of_memory()
            return messages.Prepared((), 0.0, undecoded=error.in_short)

    def _prepare_pipeline(self, message: messages.Prepare) -> messages.Prepared:
        assert self._replica is not None
        assert self._keeper is not None
        with self._doing(FIRST_ROWS):
            # Both take seconds with large batches on a GPU, and neither needs the other.
            decoder = self._background.submit(self._open_decoder, message)
            try:
                batches = self._first_batches(message)
            finally:
                self._decode_by(decoder.result())
            more = self._decoded(batches, message.sample)
            batch = next(more)
        self._room = self._room_of(batch, message)
        with self._doing(TRACE):
            state = self._keeper.look(batch)
        if state.kind != NONE and message.job.state == NONE:
            return messages.Prepared((), 0.0, state=state)
        self._keeper.hold(message.job)
        self._bindings = message.job.bindings
        guarded = self._guarded = self._guard(message)
        if message.job.fewest_rows is not None and isinstance(self._replica, TakesAnySize):
            self._replica.take_any_size()
        batches = itertools.chain([batch], more)
        with self._doing(FIRST_BATCHES):
            batch, prepared = first_that_runs(guarded, batches, message.sample, message.job, message.asked)
        self._first_rows = {name: array[: batch.rows].copy() for name, array in batch.arrays.items()}
        state = state if state.kind != NONE else prepared.state
        if state.kind != NONE and message.job.state == NONE:
            return messages.Prepared((), 0.0, state=state)
        self._keeper.restore()
        if message.asked.answers_rows:
            with self._doing(ANSWERS):
                prepared, alive = _with_answers(prepared, guarded, _trimmed(batch, more, message), message)
            # Measurements need rows that run: rows that fail are left out.
            self._first_rows = {name: array[alive] for name, array in self._first_rows.items()} if len(alive) else {}
            prepared = replace(
                prepared, strangers=answer_strangers(self._replica, self._first_rows, message.asked.strangers)
            )
            self._keeper.restore()
        may_warm = message.job.state == NONE and message.lanes > 1 and not message.is_alone
        if may_warm and isinstance(self._replica, Registering):
            with self._doing(LANES):
                warm_lanes(guarded, batch, message.sample, message.lanes)
                if self._decoder is not None:
                    self._decoder.reserve(message.lanes + AHEAD)
        self._pipeline = Pipeline(
            guarded,
            message.job,
            self._emit,
            self._serving.fail,
            loaders=message.loaders,
            lanes=message.lanes,
            follows=prepared.follows,
            outputs=prepared.outputs,
            room=self._room.result() if self._room is not None else None,
            decoder=self._decoder,
            ahead=-1 if message.is_alone else AHEAD,
        )
        return replace(prepared, state=state)

    def _open_decoder(self, message: messages.Prepare) -> BatchDecoder | None:
        """The decoder for this job: the one that runs already, or a new one."""
        kind = message.job.decoder
        if kind is None:
            return None
        if self._decoder is not None and self._decoder.kind == kind:
            return self._decoder
        takes_over = isinstance(self._replica, TakingOver) and self._replica.takes_over()
        with self._doing(DECODER), _decoding():
            return BatchDecoder(kind, stays_on_device=takes_over)

    def _decode_by(self, decoder: BatchDecoder | None) -> None:
        if self._decoder is not None and self._decoder is not decoder:
            self._decoder.close()
        self._decoder = decoder

    def _decoded(self, batches: Iterator[Batch], sample: Span) -> Iterator[Batch]:
        for batch in batches:
            if self._decoder is not None and batch.encoded:
                with _decoding():
                    self._decoder(batch, sample.start, for_host=True)
            yield batch

    def _first_batches(self, message: messages.Prepare) -> Iterator[Batch]:
        """The batches of the sample: the one that loader processes read, or all of them, read here."""
        if message.warm is None:
            return load_batches(message.job, message.sample)
        slots = Slots(self._batch_slots, message.slot_count, message.slot_bytes)
        self._batches = BatchInlet(slots, self._channel.send)
        self._register(slots)
        return iter([self._batches.open(message.warm, message.warm_chunks)])

    def _room_of(self, batch: Batch, message: messages.Prepare) -> Future[Writable | None] | None:
        """Slots for the batches of this process's own loaders, made while the step compiles.

        Only for a device that copies from them faster: there a copy into one of them is worth it.
        """
        if not message.loaders or message.warm is not None or not isinstance(self._replica, Registering):
            return None
        needed = _PAGE * -(-bytes_needed({name: (a.shape, a.dtype) for name, a in batch.arrays.items()}) // _PAGE)
        count = message.lanes + message.loaders
        if not needed:
            return None
        return self._background.submit(self._make_room, count, needed)

    def _make_room(self, count: int, slot_bytes: int) -> Writable | None:
        try:
            slots = Slots.create(count, slot_bytes)
        except OSError:
            return None
        if self._register(slots):
            return Writable(slots, FreeSlots(range(count)), lambda message: None)
        slots.close()
        return None

    def _register(self, slots: Slots) -> bool:
        """Register the slots; returns whether the device copies from them by itself from now on."""
        most = available_bytes() // _REGISTERED_SHARE
        if not isinstance(self._replica, Registering) or slots.count * slots.slot_bytes > most:
            return False
        with self._doing(REGISTER):
            undo = self._replica.register(slots.memory)
        if undo is None:
            return False
        self._registered.append(undo)
        return True

    def _let_go_of_memory(self) -> None:
        """Give back what was registered for the batches of an earlier job."""
        room = self._room.result() if self._room is not None else None
        self._room = None
        while self._registered:
            self._registered.pop()()
        if room is not None:
            room.slots.close()

    def _guard(self, message: messages.Prepare) -> GuardedReplica:
        assert self._replica is not None
        guarded = GuardedReplica(
            self._replica,
            self._device,
            lambda shortage, ceilings: self._channel.send(messages.RanShort(shortage, ceilings)),
            ceilings=message.ceilings,
            is_alone=message.is_alone,
            board=self._board,
            give_up=_give_up,
        )
        guarded.take(message.job)
        guarded.leave_out(message.poisoned)
        guarded.take_care(message.sample.start, message.care)
        return guarded

    def _convert(self, folder: str) -> messages.Converted:
        if not isinstance(self._replica, Exporting):
            return messages.Converted("this runtime cannot write what others read")
        return messages.Converted(self._replica.export(folder, self._bindings))

    def _emit(self, result: Result, timings: Timings) -> None:
        if self._batches is not None:
            self._batches.forget(result.span)
        send(result, timings, self._slots, self._free, self._channel.send)


def _give_up(error: MemoryError) -> NoReturn:
    """End this process: the coordinator finds all that it needs on the board and in the last line of the log."""
    try:
        details = "".join(traceback.format_exception(error)).encode()
    except MemoryError:
        details = b"MemoryError\n"
    os.write(2, details)
    os._exit(1)


@contextlib.contextmanager
def _decoding() -> Iterator[None]:
    """Raise `Undecoded` for a lack of memory in decoding, which is not a lack of memory for the model."""
    try:
        yield
    except OutOfMemory as error:
        raise Undecoded(error.problem, received=error.received, hint=error.hint) from None


def _trimmed(first: Batch, more: Iterable[Batch], message: messages.Prepare) -> Iterator[Batch]:
    yield first
    for batch in more:
        trim(message.job, batch)
        yield batch


def _with_answers(
    prepared: messages.Prepared, replica: GuardedReplica, batches: Iterable[Batch], message: messages.Prepare
) -> tuple[messages.Prepared, Array]:
    """`prepared` with answers to the first rows that did not fail; and the places of those of the first batch."""
    sample, asked = message.sample, message.asked
    alive_at_first: Array | None = None
    batches_of_answers: list[Columns] = []
    alone: list[Columns] = []
    answered: list[int] = []
    for batch in batches:
        outputs, rejected = replica.predict(batch, sample.start)
        if outputs is None:
            continue
        alive = places_alive(batch, sample, rejected)
        alive_at_first = alive if alive_at_first is None else alive_at_first
        taken = alive[: asked.answers_rows - len(answered)]
        if asked.is_alone:
            by_place = answers_alone(replica, batch, taken.tolist(), prepared.follows)
            taken = np.array(list(by_place), dtype=np.int64)
            alone += by_place.values()
        trimmed = {
            name: answers(prepared.follows, name, output[: batch.rows], batch) for name, output in outputs.items()
        }
        batches_of_answers.append({name: take_positions(output, taken) for name, output in trimmed.items()})
        answered += [sample.number(sample.start + int(batch.positions[place])) for place in taken]
        if len(answered) >= min(asked.answers_rows, ENOUGH_ROWS):
            break
    assert alive_at_first is not None
    prepared = replace(
        prepared,
        answers=join_answers(batches_of_answers),
        alone=join_answers(alone) if asked.is_alone else None,
        answered=tuple(answered),
    )
    return prepared, alive_at_first


def main() -> None:
    channel_descriptor, board, slots_descriptor, count, slot_bytes, batch_slots = map(int, sys.argv[1:])
    channel = Channel.inherited(channel_descriptor)
    ReplicaProcess(channel, Slots(slots_descriptor, count, slot_bytes), batch_slots, Board(board)).serve()


if __name__ == "__main__":
    main()
