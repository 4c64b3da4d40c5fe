"""The search: every way to run the model that is worth the time, measured on the job's own first rows.

    own framework: its batch sizes, then converted once ─► each other runtime: same answers? ─► its batch sizes
    the best two, again, in turn ─► the best: more replicas with fewer threads each? more lanes? ─► the choice

A contender that fails, dies or takes too long ends its own part of it, never the search.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from penstock.core import batching, kinds, tuning
from penstock.core.figures import rate
from penstock.core.plans import Choice, Trial
from penstock.core.protocols import Tunable
from penstock.core.records import Device, ModelFile
from penstock.core.tuning import Ladder, Point
from penstock.errors import Interrupted, PenstockError
from penstock.jobs.bring_up import Started
from penstock.jobs.placement import Setting
from penstock.jobs.run_context import RunContext
from penstock.planning import contender, store
from penstock.planning.candidates import Candidate, candidates
from penstock.planning.clock import Clock, OutOfTime
from penstock.planning.contender import WINDOW_S, Contender, choice_of
from penstock.pool.devices.inventory import usable_cores
from penstock.pool.devices.memory import available_bytes

_MOST_ROWS = 1 << 16
_MOST_BATCH_BYTES = 1 << 30
_RIVAL = 0.6
"""A contender that reached this share of the best is measured once more beside it."""
_OWN_SHARE = 0.3
"""Share of the time of a search for the batch sizes of the model's own framework."""
_FINALS_SHARE = 0.3
"""Share of the time of a search that is kept for the best contenders: a second look, other replicas, other lanes."""
_LIGHT_START_S = 2.0
"""Seconds to start a runtime that imports neither TensorFlow nor Keras."""
_LADDER_S = 4.0
_CONVERSION_SHARE = 0.6
"""Share of the time that is left for converting: the runtimes that read the step need some, too."""
_CONVERSION_S, _PARAMETERS_A_SECOND = 3.0, 4e6
"""About how long converting takes: of a small model, and more for a large one."""
_LANES = {"cpu": (1, 2), "gpu": (2, 3, 4)}
_KEPT_ALIVE = {"cpu": 2, "gpu": 1}
"""How many contenders wait for the play-off; on a GPU each takes memory from the next."""

Value = TypeVar("Value")


@dataclass
class SearchResult:
    """What a search chose, and why."""

    choice: Choice
    rows_per_s: float
    start_s: float
    trials: list[Trial]
    reason: str
    is_cut_short: bool


@dataclass
class _Best:
    contender: Contender
    point: Point
    lanes: int

    @property
    def rate(self) -> float:
        return self.point.rows_per_s


@dataclass
class Search:
    """One search. Afterwards the job's own engine is still up, unless a measurement killed it.

    Args:
        step: What the converted step is kept under.
        started: The job on the model's own framework, with default settings and answers of the first rows.
        rows: How many rows the whole job has.
        context: Log, stop flag and display of the run.
        clock: How long it may take.
    """

    step: str
    started: Started
    rows: int
    context: RunContext
    clock: Clock
    trials: list[Trial] = field(default_factory=list)
    _best: list[_Best] = field(default_factory=list)
    _alive: list[Contender] = field(default_factory=list)
    _conversion_problem: str | None = None
    _is_cut_short: bool = False

    def run(self) -> SearchResult:
        """Try what there is time for, and choose."""
        options = self.started.options
        try:
            own = self._own()
            others = self._candidates()
            self._climb(own, until=(1 - _OWN_SHARE) * self.clock.left)
            folder = self._convert(own, others)
            for candidate in others:
                self._try(candidate, folder)
            self._play_off()
            if options.replicas_per_device is None and options.threads is None:
                self._split()
            self._look_again()
            for best in self._best[:1]:
                self._tune_lanes(best)
            return self._result(own)
        finally:
            for each in self._alive:
                each.engine.close()

    def _result(self, own: Contender) -> SearchResult:
        if not self._best:
            expected = self.started.rows_per_second()
            why = "nothing could be measured: these are the rules of thumb"
            choice = choice_of(self.started)
            return SearchResult(choice, expected, self.started.start_s, self.trials, why, self._is_cut_short)
        best = self._best[0]
        choice = best.contender.choice(best.point.batch_size, best.lanes)
        reason = self._reason(best, own)
        return SearchResult(choice, best.rate, best.contender.start_s, self.trials, reason, self._is_cut_short)

    def _reason(self, best: _Best, own: Contender) -> str:
        """How fast the best one is, compared with the model's own framework at the batch size of the rule of thumb."""
        size = self.started.job.batch_size
        by_rule = max((point.rows_per_s for point, _ in own.points if point.batch_size == size), default=0.0)
        if not by_rule:
            return rate(best.rate)
        times = f"{best.rate / by_rule:.2g}"
        faster = "as fast as" if times == "1" else f"{times} times as fast as"
        return f"{rate(best.rate)}, {faster} {own.setting.runtime} with batches of {size:,}"

    @property
    def model(self) -> ModelFile:
        """The model as it was given, or its converted step where that is what the job runs."""
        model = self.started.decision.setting.model
        assert model is not None
        return model

    def _own(self) -> Contender:
        started = self.started
        assert isinstance(started.engine, Tunable)
        setting = started.decision.setting.placed(devices=self._devices())
        return Contender(setting, started.engine, started.start_s, is_own=True)

    def _devices(self) -> tuple[Device, ...]:
        """All replicas on a CPU, which share its cores; only those of the first GPU, as the others are alike."""
        devices = self.started.placement.devices
        return tuple(each for each in devices if each.kind == "cpu" or each.uuid == devices[0].uuid)

    def _candidates(self) -> list[Candidate]:
        """Runtimes to try beside the job's own. Those that cannot be tried are noted among the trials."""
        started = self.started
        if started.options.runtime is not None:
            return []
        others = candidates(self.model, started.recipe, started.job.bindings, started.prepared.outputs)
        self.trials += [Trial(each.runtime, rejected=each.why_not) for each in others if each.why_not is not None]
        return [each for each in others if each.why_not is None]

    def _convert(self, own: Contender, others: list[Candidate]) -> str | None:
        """Convert the step where that is worth the time; returns its folder, or None where there is none."""
        if not any(candidate.is_converted for candidate in others):
            return None
        folder = store.conversion_folder(self.step)
        if store.is_whole(folder):
            store.touch(folder)
            return folder
        if not own.engine.is_up:
            self._conversion_problem = "the process that would do it has died"
            return None
        expected_s = _CONVERSION_S + (self.started.signature.parameters or 0) / _PARAMETERS_A_SECOND
        if self.clock.left < expected_s + _LIGHT_START_S + _LADDER_S:
            return None
        allowed_s = _CONVERSION_SHARE * self.clock.left
        self.context.note(f"plan: converting the model ({self.clock.left:.0f} s left)")
        try:
            with store.staged(folder) as staging:
                self._conversion_problem = own.engine.convert(staging, Clock(self.context.stop, allowed_s))
        except Interrupted:
            raise
        except OutOfTime:
            self._is_cut_short = True
            self._conversion_problem = f"that took more than {allowed_s:.0f} s, which is all there was for it"
        except (PenstockError, OSError) as error:
            self._conversion_problem = error.problem if isinstance(error, PenstockError) else str(error)
        return folder if self._conversion_problem is None and store.is_whole(folder) else None

    def _try(self, candidate: Candidate, folder: str | None) -> None:
        """Start a candidate, compare its answers with the model's own, and measure its batch sizes."""
        why_not = self._why_not(candidate, folder)
        if why_not is not None:
            self.trials.append(Trial(candidate.runtime, rejected=why_not))
            return
        model = store.converted_model(self.model, folder) if candidate.is_converted and folder else self.model
        setting = replace(self.started.decision.setting, runtime=candidate.runtime, model=model)
        # On a CPU one batch keeps all their threads busy; two get into each other's way (ResNet50: 20 % slower).
        is_busy = kinds.runtime(candidate.runtime).reads_steps and setting.device_kind == "cpu"
        lanes = 1 if is_busy else setting.placement.lanes
        setting = setting.placed(devices=self._devices(), lanes=lanes)
        self.context.note(f"plan: trying {candidate.runtime} ({self.clock.left:.0f} s left)")
        started = self._start(setting)
        if started is not None:
            self._climb(started, until=self._finals_s)

    def _why_not(self, candidate: Candidate, folder: str | None) -> str | None:
        left = max(0.0, self.clock.left)
        if candidate.is_converted and folder is None:
            if self._conversion_problem is not None:
                return f"the model does not convert: {self._conversion_problem}"
            self._is_cut_short = True
            return f"not tried: converting takes a while, and {left:.0f} s of the search were left"
        needed = (_LIGHT_START_S if kinds.runtime(candidate.runtime).reads_steps else self.started.start_s) + _LADDER_S
        if left >= needed + self._finals_s:
            return None
        self._is_cut_short = True
        return f"not tried: it takes about {needed:.0f} s, and {left:.0f} s of the search were left"

    @property
    def _finals_s(self) -> float:
        return _FINALS_SHARE * self.clock.seconds

    def _start(self, setting: Setting) -> Contender | None:
        """A contender that gives the right answers; None, with the reason noted, where it does not."""
        is_own = (setting.runtime, setting.model) == (self.started.recipe.runtime, self.model)
        tolerance = None if is_own else self.started.options.tolerance
        one, why = self._attempt(lambda: contender.start(setting, self.started, tolerance, self.context, self.clock))
        if one is None:
            self.trials.append(Trial(setting.runtime, 0, setting.threads, setting.placement.replicas, rejected=why))
        else:
            self._alive.append(one)
        return one

    def _climb(self, climber: Contender, until: float) -> None:
        if not climber.engine.is_up:
            self.trials.append(Trial(climber.setting.runtime, rejected=self._conversion_problem or "it died"))
            return
        ladder = self._ladder(climber)
        if climber.is_own:
            self.context.note(f"plan: measuring {climber.setting.runtime} ({self.clock.left:.0f} s left)")
        to_beat = self._best[0].rate if self._best else 0.0
        is_done, why = self._attempt(lambda: climber.climb(ladder, self.clock, to_beat=to_beat, until=until))
        self._is_cut_short |= is_done is False
        self.trials += [climber.trial(point, lanes) for point, lanes in climber.points]
        knee = ladder.best
        if knee is None and why is None:
            why = "it takes more memory than --memory-fraction allows" if climber.points else "it could not be measured"
        if why is not None:
            self.trials.append(Trial(climber.setting.runtime, rejected=why))
        if knee is None:
            self._let_go(climber)
            return
        self.context.note(
            f"plan: {climber.setting.runtime}: {rate(knee.rows_per_s)} with batches of {knee.batch_size:,}"
        )
        reached = _Best(climber, knee, climber.setting.placement.lanes)
        if reached.rate >= _RIVAL * to_beat:
            self._tune_lanes(reached)
        self._best.append(reached)
        self._best.sort(key=lambda each: -each.rate)
        while len(self._best) > _KEPT_ALIVE[self.started.recipe.device_kind]:
            self._let_go(self._best.pop().contender)

    def _ladder(self, climber: Contender) -> Ladder:
        started = self.started
        climber.room_bytes = self._room(climber)
        if started.options.batch_size is not None or started.signature.fixed_batch is not None:
            return Ladder(started.job.batch_size, started.job.batch_size)
        row_bytes = max(1, sum(binding.row_bytes for binding in started.job.bindings))
        output_bytes = sum(spec.row_bytes for spec in started.prepared.outputs)
        whole = 1 << max(0, self.rows - 1).bit_length()
        by_bytes = max(1, _MOST_BATCH_BYTES // row_bytes)
        most = min(_MOST_ROWS, whole, by_bytes, batching.most_rows_of_outputs(output_bytes))
        first = tuning.first_size(started.job.batch_size, started.prepared.batch_seconds)
        return Ladder(min(first, most), most, climber.room_bytes)

    def _room(self, climber: Contender) -> int:
        """The memory that one replica may hold."""
        fraction, device = self.started.options.memory_fraction, climber.setting.placement.devices[0]
        if device.kind == "gpu":
            return device.memory_limit or int(fraction * device.free_bytes)
        return int(fraction * available_bytes() / climber.setting.placement.replicas)

    def _play_off(self) -> None:
        """Measure the two best again, in turn, unless they are far apart: they were measured at different times."""
        if len(self._best) < 2 or self._best[1].rate < _RIVAL * self._best[0].rate:
            return
        points = self._in_turn((each.contender, each.point.batch_size, each.lanes) for each in self._best)
        if points is not None:
            for each, point in zip(self._best, points, strict=True):
                each.point = point
            self._best.sort(key=lambda each: -each.rate)

    def _look_again(self) -> None:
        """Measure the best sizes of the best contender again, in turn: the machine may have been busy before."""
        if not self._best or self.started.options.batch_size is not None:
            return
        best = self._best[0]
        rates: dict[int, float] = {}
        for point, lanes in best.contender.points:
            if lanes == best.lanes and point.problem is None:
                rates[point.batch_size] = max(point.rows_per_s, rates.get(point.batch_size, 0.0))
        sizes = sorted(rates, key=lambda size: -rates[size])[:3]
        points = self._in_turn((best.contender, size, best.lanes) for size in sizes)
        if points is not None:
            best.point = Ladder(1, 1, best.contender.room_bytes, points).best or best.point

    def _split(self) -> None:
        """Try more replicas, with fewer threads each on a CPU, as long as that gains."""
        while self._best and (setting := self._halved(self._best[0].contender.setting)) is not None:
            if self.clock.left < self._best[0].contender.start_s + _LADDER_S:
                self._is_cut_short = True
                return
            self.context.note(f"plan: trying {setting.placement.replicas} replicas of {setting.runtime}")
            more = self._start(setting)
            if more is None:
                return
            faster = self._if_faster(more)
            if faster is None:
                self._let_go(more)
                return
            self._let_go(self._best.pop(0).contender)
            self._best.insert(0, faster)

    def _if_faster(self, more: Contender) -> _Best | None:
        """A contender at its best size, if it is faster than the best one, measured in turn; else None."""
        best, lanes = self._best[0], more.setting.placement.lanes
        more.room_bytes = self._room(more)
        sizes = {best.point.batch_size}
        if self.started.options.batch_size is None and self.started.signature.fixed_batch is None:
            sizes.add(max(1, best.point.batch_size // 2))
        entries = [(more, size, lanes) for size in sorted(sizes)]
        measured = self._in_turn([*entries, (best.contender, best.point.batch_size, best.lanes)])
        if measured is None:
            return None
        *points, best.point = measured
        fastest = max(points, key=lambda point: point.rows_per_s)
        return _Best(more, fastest, lanes) if fastest.rows_per_s >= (1 + tuning.LEAST_GAIN) * best.rate else None

    def _halved(self, setting: Setting) -> Setting | None:
        """Twice the replicas; None where the cores or the memory are too few."""
        placement, replicas = setting.placement, 2 * setting.placement.replicas
        device, taken = placement.devices[0], self._best[0].point.memory_bytes
        if device.kind == "cpu":
            is_pinned = self.started.options.devices.cpu_replicas is not None
            has_room = replicas * taken <= self.started.options.memory_fraction * available_bytes()
            if is_pinned or replicas > usable_cores() or not has_room:
                return None
            devices = tuple(replace(device, index=index) for index in range(replicas))
            threads = max(1, usable_cores() // replicas)
            return replace(setting.placed(devices=devices, lanes=min(placement.lanes, threads)), threads=threads)
        share = device.memory_limit // 2
        if replicas > 2 or (share and taken > share):
            return None
        return setting.placed(devices=(replace(device, memory_limit=share),) * replicas)

    def _tune_lanes(self, best: _Best) -> None:
        """Try other numbers of batches in flight: more hide the copies, but compete for the same threads."""
        for lanes in _LANES[self.started.recipe.device_kind]:
            if any(
                known == lanes and point.batch_size == best.point.batch_size for point, known in best.contender.points
            ):
                continue
            point = self._measured(best.contender, best.point.batch_size, lanes)
            fits = point.memory_bytes <= (best.contender.room_bytes or point.memory_bytes)
            if point.problem is None and fits and point.rows_per_s > (1 + tuning.LEAST_GAIN) * best.rate:
                best.point, best.lanes = point, lanes

    def _in_turn(self, entries: Iterable[tuple[Contender, int, int]]) -> list[Point] | None:
        return contender.in_turn(list(entries), self._measured, self.clock)

    def _measured(self, measured: Contender, size: int, lanes: int) -> Point:
        """Measure a size once more and note the trial; a point with a problem where there is no time for it."""
        if not measured.engine.is_up:
            return Point(size, problem="its process is gone")
        if self.clock.left < 4 * WINDOW_S:
            self._is_cut_short = True
            return Point(size, problem="there was no time for it")
        before = len(measured.points)
        point, why = self._attempt(lambda: measured.measure(size, self.clock, lanes=lanes))
        self.trials += [measured.trial(each, in_flight) for each, in_flight in measured.points[before:]]
        return point if point is not None else Point(size, problem=why)

    def _attempt(self, call: Callable[[], Value]) -> tuple[Value | None, str | None]:
        """The value of a call, or why it failed. Only the user's interrupt ends the search."""
        try:
            return call(), None
        except Interrupted:
            raise
        except PenstockError as error:
            self._is_cut_short |= isinstance(error, OutOfTime)
            return None, f"{error.problem}: {error.received}" if error.received else error.problem

    def _let_go(self, one: Contender) -> None:
        if not one.is_own:
            one.engine.close()
