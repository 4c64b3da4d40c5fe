"""The processes that take over: one for each device, all started at once, fed from one belt by one thread.

Each predicts an element first that this process has predicted too. One that cannot be started, or that built another
model, is left out; those that are ready later join.
"""

from __future__ import annotations

import multiprocessing.connection
import os
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from penstock import registry
from penstock.core.events import Asked, Chunk, Failed, Loaded, Prepare, Prepared, Release, SpanDone, Work
from penstock.core.records import STRING, Binding, Device, Job, ModelFile
from penstock.errors import PenstockError, WorkersDied, one_line
from penstock.estimator import travelling
from penstock.estimator.bundles import Bundle, Bundles
from penstock.estimator.calling import LOG
from penstock.estimator.elements import ANSWERS, COLUMN, ElementFiles, unpack_row
from penstock.estimator.likeness import Reference
from penstock.estimator.model_function import ModelFunction
from penstock.jobs.open import log_without_folder
from penstock.pool.processes.supervisor import Launch, ReplicaHandle

_GPU_LANES = 2
_LEAST_READY = 2
"""One other process is no faster than this one."""
_DEATHS = 3
_POLL_S = 0.5


@dataclass
class _Replica:
    """A process, and the bundles that it has."""

    device: Device
    handle: ReplicaHandle
    deaths: int = 0
    is_ready: bool = False
    held: dict[int, Bundle] = field(default_factory=dict)


class Replicas:
    """Processes that load in the background, and then take bundles from a belt.

    Args:
        function: The `model_fn`, with the structure of the features.
        devices: One for each process.
        threads: CPU threads of each.
        sample: An element.
        reference: What this process predicts for it.
        most_elements: How many elements travel together.
    """

    def __init__(
        self,
        function: ModelFunction,
        devices: list[Device],
        threads: int,
        sample: list[Any],
        reference: Reference,
        most_elements: int,
    ) -> None:
        self._function = function
        self._devices = devices
        self._threads = threads
        self._reference = reference
        self._lanes = _GPU_LANES if devices[0].kind == "gpu" else 1
        self._depth = self._lanes + 1
        self.files = ElementFiles()
        self._sample = self.files.add([sample])
        self._replicas: list[_Replica] = []
        self._launch: Launch | None = None
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._is_hungry = False
        self.is_closed = False
        self.bundles = Bundles(most_elements, 2 * self._depth * len(devices), self._wake)
        self._is_begun = False
        self._thread = threading.Thread(target=self._serve, name="estimator-replicas", daemon=True)
        self._thread.start()

    @property
    def are_ready(self) -> bool:
        """Whether it is faster with them than without."""
        return self._is_begun or sum(replica.is_ready for replica in self._replicas) >= _LEAST_READY

    def begin(self) -> None:
        """From here on elements are put on the belt."""
        self._is_begun = True
        self._wake(is_urgent=True)

    def close(self) -> None:
        """End the processes, also while they load."""
        if self.is_closed:
            return
        self.is_closed = True
        self.bundles.close()
        self._wake(is_urgent=True)
        self._thread.join()
        os.close(self._woken)
        os.close(self._waker)
        self.files.close()

    def _wake(self, is_urgent: bool = False) -> None:
        if self._is_hungry or is_urgent:
            try:
                os.write(self._waker, b"x")
            except OSError:
                pass  # full, so it wakes anyway; or closed

    def _serve(self) -> None:
        """The thread: as long as there are processes."""
        with ExitStack() as stack:
            stack.callback(self._end_all)
            try:
                log = stack.enter_context(log_without_folder(is_verbose=False))
                payload = travelling.pack(self._function)
                file = ModelFile("estimator", self._function.name, "", ("tf_keras",), payload=payload)
                self._launch = Launch(registry.RUNTIMES["tf_keras"], file, self._threads, log)
                stack.callback(self._launch.close)
                for device in self._devices:
                    self._replicas.append(_Replica(device, ReplicaHandle.start(self._number(), self._launch, device)))
                while not self.is_closed and self._is_worth_going_on():
                    self._pump()
            except Exception as error:
                LOG.warning("only this process predicts, because no other could be started: %s", _told(error))
        if not self.is_closed:
            self.bundles.leave()

    def _is_worth_going_on(self) -> bool:
        """One process alone goes on only where this one has handed over already."""
        return len(self._replicas) >= (1 if self._is_begun else _LEAST_READY)

    def _number(self) -> int:
        return len(self._replicas)

    def _end_all(self) -> None:
        for replica in self._replicas:
            for bundle in replica.held.values():
                self.bundles.give_back(bundle)
            replica.handle.close()
        self._replicas = []

    def _pump(self) -> None:
        """Wait for something to happen, deal with it, and hand out what there is."""
        by_connection: dict[Any, _Replica] = {each.handle.channel.connection: each for each in self._replicas}
        waiting = multiprocessing.connection.wait([*by_connection, self._woken], self._hand_out())
        self._is_hungry = False
        for ready in waiting:
            if ready == self._woken:
                os.read(self._woken, 4096)
                continue
            replica = by_connection[ready]
            try:
                message = replica.handle.channel.receive()
            except (EOFError, OSError):
                self._lose(replica)
                continue
            self._handle(replica, message)

    def _hand_out(self) -> float:
        """Give bundles to processes with room; returns how long nothing new can be given."""
        if not self._is_begun:
            return _POLL_S
        while True:
            hungry = [each for each in self._replicas if each.is_ready and len(each.held) < self._depth]
            if not hungry:
                return _POLL_S
            self._is_hungry = True  # before looking: what comes between is told
            replica = min(hungry, key=lambda each: len(each.held))
            is_idle = not replica.held
            bundle = self.bundles.take(is_idle)
            if bundle is None:
                lingers_s = self.bundles.lingers_s() if is_idle else None
                return _POLL_S if lingers_s is None else lingers_s
            span = bundle.load(self.files)
            replica.held[span.index] = bundle
            self._send(replica, Work(span))

    def _handle(self, replica: _Replica, message: object) -> None:
        match message:
            case Loaded():
                job = Job(self.files, (Binding(COLUMN, (COLUMN,), STRING, ()),), (), 1)
                self._send(replica, Prepare(job, self._sample, 1, self._lanes, asked=Asked(answers_rows=1)))
            case Prepared(answers=answers):
                assert answers is not None
                self._admit(replica, *unpack_row(answers[ANSWERS]))
            case Chunk():
                replica.handle.assembly.add(message)
                self._send(replica, Release(message.slot))
            case SpanDone():
                self._finish(replica, message)
            case Failed():
                self._drop(replica, _told(message.error) if message.error else message.details.splitlines()[-1])

    def _admit(self, replica: _Replica, found: list[Any], why: str) -> None:
        """Let a process take part whose predictions are those of this one."""
        if not found:
            self._drop(replica, why)
            return
        unlike = self._reference.unlike(found[0], replica.device.kind)
        if unlike is None:
            replica.is_ready = True
            return
        self._drop(
            replica,
            f"it predicts other values than this process: {unlike}. What was set in a module at run time is not set "
            "there: hand it to the model_fn as params",
        )

    def _finish(self, replica: _Replica, done: SpanDone) -> None:
        bundle = replica.held.pop(done.span)
        replica.deaths = 0
        columns = replica.handle.assembly.columns((done.span,), done.layout)
        answers: list[Any] = []
        if not done.failures:
            answers, _ = unpack_row(columns[ANSWERS])
        self.bundles.answer(bundle, answers)

    def _drop(self, replica: _Replica, reason: str) -> None:
        """Go on without a process that does not do; what it had goes to others."""
        self._replicas.remove(replica)
        self._take_back(replica)
        if not self.is_closed:
            rest = "the others go on" if self._is_worth_going_on() else "this process predicts alone"
            LOG.warning("the process on %s is left out (%s): %s", replica.device, rest, reason)

    def _take_back(self, replica: _Replica) -> None:
        replica.handle.close()
        for bundle in reversed(replica.held.values()):
            self.bundles.give_back(bundle)
        replica.held = {}

    def _lose(self, replica: _Replica) -> None:
        """A process died: what it had goes to others, and a new one takes its place."""
        assert self._launch is not None
        how = f"the process {replica.handle.pid} {replica.handle.describe_end()}"
        replica.deaths += 1
        for index, bundle in list(replica.held.items()):
            bundle.deaths += 1
            if bundle.deaths == _DEATHS:
                del replica.held[index]
                self.bundles.refuse(bundle, _died(replica.device, how, self._launch.last_words()))
        if not replica.is_ready or replica.deaths == _DEATHS:
            self._drop(replica, how)
            return
        self._take_back(replica)
        replica.is_ready = False
        replica.handle = ReplicaHandle.start(replica.handle.number, self._launch, replica.device)

    def _send(self, replica: _Replica, message: object) -> None:
        try:
            replica.handle.channel.send(message)
        except OSError:
            pass  # it is gone: the end of its line is read next, and that is where the loss is dealt with


def _died(device: Device, how: str, last_words: str) -> WorkersDied:
    return WorkersDied(
        f"the process on {device} died {_DEATHS} times at the same elements",
        received=f"{how}; its last words: {last_words or 'none'}",
        hint="let input_fn give smaller batches, which need less memory",
    )


def _told(error: BaseException) -> str:
    if isinstance(error, PenstockError):
        return f"{error.problem}: {error.received}" if error.received else error.problem
    return one_line(error)
