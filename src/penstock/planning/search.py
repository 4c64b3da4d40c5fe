"""The search: every way to run the model that is worth the time, measured on the job's own first rows.

own framework ─► its batch sizes ─► converted once ─► each other runtime: same answers? ─► its batch sizes
the best two, again, in turn ─► the best: more lanes? more replicas with fewer threads each? ─► the choice
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from penstock.core import batching, tuning
from penstock.core.agreement import Proof
from penstock.core.plans import Choice, Trial
from penstock.core.records import Device, ModelFile
from penstock.core.tuning import Ladder, Point
from penstock.engines.local import LocalEngine
from penstock.errors import Interrupted, PenstockError
from penstock.jobs import Started
from penstock.planning import contender, store
from penstock.planning.candidates import Candidate, candidates
from penstock.planning.clock import Clock, OutOfTime
from penstock.planning.contender import Beside, Contender, Setting
from penstock.pool.devices import usable_cores
from penstock.pool.memory import available_bytes
from penstock.surroundings import Surroundings

_MOST_ROWS = 1 << 16
_MOST_BATCH_BYTES = 1 << 30
_CLOSE = 0.9
"""A contender that reaches this share of the best is measured once more beside it."""
_ROUNDS = 2
_LIGHT_START_S = 2.0
"""What a runtime needs to start that imports neither TensorFlow nor Keras."""
_LADDER_S = 4.0
_CONVERSION_S = 8.0
_BEYOND_OPENVINO = ("int64", "uint64", "uint32")
_LANES = {"cpu": (1, 2), "gpu": (2, 3, 4)}


def beside(started: Started) -> Beside:
    """What contenders need of the job that the model's own framework runs."""
    return Beside(
        started.job,
        started.sample,
        started.prepared,
        started.placement,
        started.options.row_timeout,
        (started.shared.descriptor,) if started.shared is not None else (),
    )


@dataclass
class Found:
    """What a search came to."""

    choice: Choice
    rows_per_s: float
    start_s: float
    trials: list[Trial]
    reason: str


@dataclass
class _Best:
    contender: Contender
    point: Point
    lanes: int


@dataclass
class Search:
    """One search.

    Args:
        model: The model as it was given.
        started: The job on the model's own framework, with default settings and answers of the first rows.
        rows: How many rows the whole job has.
        around: What processes are started with.
        clock: How long it may take.
    """

    model: ModelFile
    started: Started
    rows: int
    around: Surroundings
    clock: Clock
    trials: list[Trial] = field(default_factory=list)
    _best: list[_Best] = field(default_factory=list)

    def run(self) -> Found:
        """Try what there is time for, and choose. Closes what it started; the job's own engine stays."""
        options = self.started.options
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(self._close)
            own = self._own()
            folder = self._converted(own)
            self._climb(own)
            for candidate in self._others():
                self._try(candidate, folder)
            self._play_off()
            if options.replicas_per_device is None and options.threads is None:
                self._split()
            self._tune_lanes()
            best = self._best[0]
            choice = best.contender.choice(best.point.batch_size, best.lanes)
            return Found(choice, best.point.rows_per_s, best.contender.start_s, self.trials, self._reason(best))

    def _reason(self, best: _Best) -> str:
        """Why this one: how much faster it is than the model's own framework by the rules of thumb."""
        default = self.started.job.batch_size / max(self.started.prepared.batch_seconds, 1e-9)
        times = best.point.rows_per_s / (default * len(self._devices()))
        rule = f"{self.started.recipe.runtime} with batches of {self.started.job.batch_size:,}"
        return f"{best.point.rows_per_s:,.0f} rows/s, {times:.2g}× of {rule}"

    def _own(self) -> Contender:
        started = self.started
        assert isinstance(started.engine, LocalEngine)
        setting = Setting(
            started.recipe.runtime, self.model, started.recipe.threads, self._devices(), started.placement.lanes
        )
        return Contender(setting, started.engine, started.start_s, Proof(0.0), is_own=True)

    def _devices(self) -> tuple[Device, ...]:
        """All replicas of a CPU, which share its cores; one GPU, as the others are like it."""
        devices = self.started.placement.devices
        return devices if devices[0].kind == "cpu" else devices[:1]

    def _others(self) -> Iterator[Candidate]:
        if self.started.options.runtime is not None:
            return
        for candidate in candidates(self.model, self.started.recipe.runtime, self.started.recipe.device_kind):
            if candidate.why_not is not None:
                self.trials.append(Trial(candidate.runtime, rejected=candidate.why_not))
            else:
                yield candidate

    def _converted(self, own: Contender) -> str | None:
        """The folder of the converted step, made where that is worth the time; None where there is none."""
        if not any(candidate.is_converted for candidate in self._wanted()):
            return None
        folder = store.conversion_folder(self.model, self.started.job.bindings)
        if store.is_whole(folder):
            return folder
        if self.clock.left < _CONVERSION_S + _LIGHT_START_S + _LADDER_S:
            return None
        self.around.note("plan: converting the model")
        try:
            with store.staged(folder) as staging:
                self._conversion_problem = own.engine.convert(staging)
        except OSError as error:
            self._conversion_problem = f"the cache cannot be written: {error}"
        return folder if self._conversion_problem is None and store.is_whole(folder) else None

    _conversion_problem: str | None = None

    def _wanted(self) -> list[Candidate]:
        if self.started.options.runtime is not None:
            return []
        kind = self.started.recipe.device_kind
        found = candidates(self.model, self.started.recipe.runtime, kind)
        return [candidate for candidate in found if candidate.why_not is None]

    def _try(self, candidate: Candidate, folder: str | None) -> None:
        """Start a candidate, hold its answers against the model's own, and climb its ladder."""
        why_not = self._no_time_for(candidate, folder)
        if why_not is not None:
            self.trials.append(Trial(candidate.runtime, rejected=why_not))
            return
        model = store.converted_model(self.model, folder) if candidate.is_converted and folder else self.model
        setting = Setting(candidate.runtime, model, self._threads(), self._devices(), self._lanes())
        self.around.note(f"plan: trying {candidate.runtime}")
        contender_ = self._start(setting)
        if contender_ is not None:
            self._climb(contender_)

    def _no_time_for(self, candidate: Candidate, folder: str | None) -> str | None:
        if candidate.runtime == "openvino" and any(b.dtype in _BEYOND_OPENVINO for b in self.started.job.bindings):
            return "OpenVINO cuts whole numbers to 32 bits, and the model takes more"
        if candidate.is_converted and folder is None:
            if self._conversion_problem is not None:
                return f"the model does not convert: {self._conversion_problem}"
            return f"not converted: {max(0.0, self.clock.left):.0f} s of the search were left"
        is_light = candidate.runtime in ("openvino", "onnx", "onnx-tensorrt")
        needed = (_LIGHT_START_S if is_light else self.started.start_s) + _LADDER_S
        if self.clock.left >= needed:
            return None
        return (
            f"not tried: it takes about {needed:.0f} s, and {max(0.0, self.clock.left):.0f} s of the search were left"
        )

    def _start(self, setting: Setting) -> Contender | None:
        started = self.started
        try:
            return contender.start(setting, beside(started), started.options.tolerance, self.around, self.clock)
        except Interrupted:
            raise
        except OutOfTime:
            why = "the time of the search was over before it was ready"
        except PenstockError as error:
            why = f"{error.problem}: {error.received}" if error.received else error.problem
        self.trials.append(Trial(setting.runtime, 0, setting.threads, setting.replicas, rejected=why))
        return None

    def _climb(self, contender_: Contender) -> None:
        try:
            to_beat = self._best[0].point.rows_per_s if self._best else 0.0
            knee = contender_.climb(self._ladder(contender_), self.clock, to_beat)
        except Interrupted:
            raise
        except PenstockError as error:  # it died, or the time is over: what it gave until then counts
            knee = max((point for point, _ in contender_.points), key=lambda each: each.rows_per_s, default=None)
            if knee is None:
                self.trials.append(Trial(contender_.setting.runtime, rejected=error.problem))
        self.trials += [contender_.trial(point, lanes) for point, lanes in contender_.points]
        if knee is None or knee.problem is not None:
            self._let_go(contender_)
            return
        self._best.append(_Best(contender_, knee, contender_.setting.lanes))
        self._best.sort(key=lambda each: -each.point.rows_per_s)
        while len(self._best) > 2:
            self._let_go(self._best.pop().contender)

    def _ladder(self, contender_: Contender) -> Ladder:
        started = self.started
        pinned = started.options.batch_size or started.signature.fixed_batch
        if pinned is not None:
            return Ladder(pinned, pinned)
        row_bytes = max(1, sum(binding.row_bytes for binding in started.job.bindings))
        output_bytes = sum(spec.row_bytes for spec in started.prepared.outputs)
        whole = 1 << max(0, self.rows - 1).bit_length()
        most = min(
            _MOST_ROWS, whole, max(1, _MOST_BATCH_BYTES // row_bytes), batching.most_rows_of_outputs(output_bytes)
        )
        first = tuning.first_size(started.job.batch_size)
        contender_.room_bytes = self._room(contender_)
        return Ladder(min(first, most), most, contender_.room_bytes)

    def _room(self, contender_: Contender) -> int:
        """The memory that one replica may hold."""
        fraction = self.started.options.memory_fraction
        device = contender_.setting.devices[0]
        if device.kind == "gpu":
            return device.memory_limit or int(fraction * device.free_bytes)
        return int(fraction * available_bytes() / contender_.setting.replicas)

    def _play_off(self) -> None:
        """The two best were measured at different times: again, in turn, if they are close."""
        if len(self._best) < 2 or self._best[1].point.rows_per_s < _CLOSE * self._best[0].point.rows_per_s:
            return
        rates: list[list[float]] = [[], []]
        for _ in range(_ROUNDS):
            for place, each in enumerate(self._best):
                if self.clock.left < 4 * contender.WINDOW_S:
                    return
                rates[place].append(each.contender.measure(each.point.batch_size, lanes=each.lanes).rows_per_s)
        for each, found in zip(self._best, rates, strict=True):
            each.point = replace(each.point, rows_per_s=sum(found) / len(found))
        self._best.sort(key=lambda each: -each.point.rows_per_s)

    def _split(self) -> None:
        """More replicas with fewer threads each on a CPU, or more than one on a GPU, as long as that gains."""
        while (setting := self._halved(self._best[0].contender.setting)) is not None:
            best = self._best[0]
            if self.clock.left < best.contender.start_s + _LADDER_S:
                return
            self.around.note(f"plan: trying {setting.replicas} replicas of {setting.runtime}")
            more = self._start(setting)
            if more is None:
                return
            sizes = {best.point.batch_size, max(1, best.point.batch_size // 2)}
            points = [self._measured(more, size) for size in sorted(sizes)]
            self.trials += [more.trial(point, lanes) for point, lanes in more.points]
            fastest = max(points, key=lambda point: point.rows_per_s)
            if fastest.problem is not None or fastest.rows_per_s < (1 + tuning.LEAST_GAIN) * best.point.rows_per_s:
                self._let_go(more)
                return
            self._let_go(self._best.pop(0).contender)
            self._best.insert(0, _Best(more, fastest, setting.lanes))

    def _measured(self, contender_: Contender, size: int) -> Point:
        try:
            return contender_.measure(size)
        except Interrupted:
            raise
        except PenstockError as error:
            return Point(size, problem=error.problem)

    def _halved(self, setting: Setting) -> Setting | None:
        """Twice the replicas; None where there are not the cores or the memory for it."""
        device, replicas = setting.devices[0], 2 * setting.replicas
        if device.kind == "cpu":
            is_pinned = self.started.options.devices.cpu_replicas is not None
            if is_pinned or replicas > usable_cores():
                return None
            taken = self._best[0].point.memory_bytes
            if replicas * taken > self.started.options.memory_fraction * available_bytes():
                return None
            devices = tuple(replace(device, index=index) for index in range(replicas))
            threads = max(1, usable_cores() // replicas)
            return replace(setting, devices=devices, threads=threads, lanes=min(2, threads))
        share = device.memory_limit // 2
        if replicas > 2 or (share and self._best[0].point.memory_bytes > share):
            return None
        return replace(setting, devices=(replace(device, memory_limit=share),) * replicas)

    def _tune_lanes(self) -> None:
        """How many batches in flight, for the best."""
        best = self._best[0]
        for lanes in _LANES[self.started.recipe.device_kind]:
            if lanes == best.lanes or self.clock.left < 4 * contender.WINDOW_S:
                continue
            before = len(best.contender.points)
            point = self._measured_with(best.contender, best.point.batch_size, lanes)
            self.trials += [best.contender.trial(each, n) for each, n in best.contender.points[before:]]
            if point.problem is None and point.rows_per_s > (1 + tuning.LEAST_GAIN) * best.point.rows_per_s:
                best.point, best.lanes = point, lanes

    def _measured_with(self, contender_: Contender, size: int, lanes: int) -> Point:
        try:
            return contender_.measure(size, lanes=lanes)
        except Interrupted:
            raise
        except PenstockError as error:
            return Point(size, problem=error.problem)

    def _threads(self) -> int:
        return self.started.recipe.threads

    def _lanes(self) -> int:
        return self.started.placement.lanes

    def _let_go(self, contender_: Contender) -> None:
        if not contender_.is_own:
            contender_.engine.close()

    def _close(self) -> None:
        for each in self._best:
            self._let_go(each.contender)
