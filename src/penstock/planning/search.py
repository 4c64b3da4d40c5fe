"""The search: every way to run the model that is worth the time, measured on the job's own first rows.

    own framework: one look, then converted once ─► each other runtime, the most promising first: same answers? one look
    the best two: their batch sizes ─► again, in turn ─► the best: more replicas with fewer threads each? more lanes?

A contender that fails, dies or takes too long ends its own part of it, never the search.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from penstock.core import batching, kinds, tuning
from penstock.core.figures import rate
from penstock.core.plans import Choice, Plan, Trial, own_of
from penstock.core.protocols import Tunable
from penstock.core.records import Device, ModelFile
from penstock.core.tuning import Ladder, Point
from penstock.errors import Interrupted, OutputError, PenstockError
from penstock.jobs.bring_up import Started
from penstock.jobs.placement import Setting
from penstock.jobs.run_context import RunContext
from penstock.planning import contender, store
from penstock.planning.candidates import Candidate, candidates
from penstock.planning.clock import Clock, OutOfTime
from penstock.planning.contender import MOST_CALLS, WINDOW_S, Contender
from penstock.planning.outlook import LIGHT_START_S, LOOK_S, Outlook, expected_gains
from penstock.pool.devices.inventory import usable_cores
from penstock.pool.devices.memory import available_bytes
from penstock.private_cache import in_use

_MOST_ROWS = 1 << 16
_MOST_BATCH_BYTES = 1 << 30
_RIVAL = 0.6
"""A contender that reached this share of the best is measured once more beside it."""
_FINALS_SHARE = 0.3
"""Share of the time of a search that is kept for the best contenders: a second look, other replicas, other lanes."""
_LADDER_S = 4.0
_LEAST_POLISH_S = 2.0
"""Seconds to try one more batch size of a large network."""
_CONVERSION_SHARE = 0.8
"""Converting may take this share of the time that is left: the runtimes that read the step need the rest."""
_LANES = {"cpu": (1, 2), "gpu": (2, 3, 4)}
_KEPT_ALIVE = {"cpu": 3, "gpu": 1}
"""How many contenders stay up until their batch sizes are measured; on a GPU each takes memory from the next."""
_KEPT_ALIVE_WITHOUT_A_JOB = {"cpu": 6, "gpu": 1}
"""The same if no job waits for the search, as long as as much memory is free as they take."""
_CLIMBERS = 2
"""For how many contenders all batch sizes are measured; for others only if they could still win."""
_COULD_WIN = 0.4
"""If no job waits, a contender could still win that reached this share of the best at its first batch size: on two x86
cores, Keras on JAX ran an MLP 2.4 times as fast in batches of 16,384 as in those of 2,048."""
_OWN_LOOK_SHARE = 0.5
"""Share of the time that is left which the first look at the model's own framework may take."""

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
    left: tuple[str, ...] = ()
    """Runtimes that there was no time for."""


@dataclass
class _Best:
    contender: Contender
    point: Point
    lanes: int
    ladder: Ladder

    @property
    def rate(self) -> float:
        return self.point.rows_per_s


@dataclass
class Search:
    """One search. Afterwards the job's own engine is still up, unless a measurement killed it.

    Args:
        step: The key of the converted step in the cache.
        started: The job on the model's own framework, with default settings and answers of the first rows.
        rows: How many rows the whole job has.
        context: Log, stop flag and display of the run.
        is_for_job: Whether a job waits for it: then nothing is tried that cannot save more than it takes.
        known: The plan of a search that was cut short, where this one goes on.
        is_for_next: Whether it is only for later jobs, so that these start sooner.
    """

    step: str
    started: Started
    rows: int
    context: RunContext
    is_for_job: bool = False
    known: Plan | None = None
    is_for_next: bool = False
    trials: list[Trial] = field(default_factory=list)
    clock: Clock = field(init=False)
    _finals_s: float = 0.0
    """Seconds that are kept for a second look at the best, other replicas and other lanes."""
    _left: list[str] = field(default_factory=list)
    _best: list[_Best] = field(default_factory=list)
    _alive: list[Contender] = field(default_factory=list)
    _conversion_problem: str | None = None
    _is_cut_short: bool = False

    def run(self, clock: Clock) -> SearchResult:
        """Try what there is time for by this clock, and choose."""
        self.clock = clock
        self._finals_s = _FINALS_SHARE * clock.seconds
        try:
            own, others = self._own(), self.outlook.candidates
            self._look_at(own)
            folder = self._convert(own, others)
            with in_use(folder or ""):
                for candidate in others:
                    self._try(candidate, folder)
                if not self.is_for_next:
                    self._polish()
            return self._result(own)
        finally:
            for each in self._alive:
                each.engine.close()

    @property
    def has_tried_light(self) -> bool:
        """Whether a runtime that imports no framework ran, or was found not to run this model."""
        tried = {trial.runtime for trial in self.trials} - set(self._left)
        return any(kinds.runtime(name).reads_steps for name in tried)

    def _polish(self) -> None:
        """Find the best batch size, replicas and lanes of the best contenders."""
        options = self.started.options
        if self.is_for_job and self._best:
            self.clock.shorten_to(max(_LEAST_POLISH_S, tuning.POLISH_SHARE * self.rows / self._best[0].rate))
            self._finals_s = _FINALS_SHARE * self.clock.left
        self._climb_with_the_best()
        self._play_off()
        self._drop_unsteady()
        if options.replicas_per_device is None and options.threads is None:
            self._split()
        self._look_again()
        self._drop_unsteady()
        for best in self._best[:1]:
            self._tune_lanes(best)

    @cached_property
    def outlook(self) -> Outlook:
        """What can be tried, the most promising first, as far as is known by now. What cannot becomes a trial."""
        started, kind = self.started, self.started.recipe.device_kind
        others: list[Candidate] = []
        if started.options.runtime is None:
            others = candidates(self.model, started.recipe, started.job.bindings, started.prepared.outputs)
        if self.known is not None:
            self.trials += [
                each for each in self.known.trials if each.rows_per_s or each.runtime not in self.known.left
            ]
            others = [each for each in others if each.runtime in self.known.left]
        self.trials += [Trial(each.runtime, rejected=each.why_not) for each in others if each.why_not is not None]
        gains = expected_gains(self.model.digest, started.recipe.runtime, kind, self.family)
        return Outlook.of(
            [each for each in others if each.why_not is None],
            gains,
            started.start_s,
            started.signature.parameters,
            store.conversion_folder(self.step),
        )

    @property
    def family(self) -> str:
        return tuning.family(self.started.job.bindings)

    def _result(self, own: Contender) -> SearchResult:
        left, known = tuple(self._left), self.known
        if known is not None and (not self._best or self._best[0].rate <= known.rate_of(known.choice)):
            rate_before = known.rate_of(known.choice)
            return SearchResult(
                known.choice, rate_before, known.start_s, self.trials, known.reason, self._is_cut_short, left
            )
        if not self._best:
            expected = self.started.rows_per_second()
            has_run = any(trial.is_eligible for trial in self.trials)
            what = "what ran first failed later" if has_run else "nothing could be measured"
            why = f"{what}: these are the rules of thumb"
            choice = self.started.choice
            return SearchResult(choice, expected, self.started.start_s, self.trials, why, self._is_cut_short, left)
        best = self._best[0]
        choice = best.contender.setting.choice(best.point.batch_size, best.lanes)
        reason = self._reason(best, own)
        return SearchResult(choice, best.rate, best.contender.start_s, self.trials, reason, self._is_cut_short, left)

    def _reason(self, best: _Best, own: Contender) -> str:
        """How fast the best one is, compared with the model's own framework at the batch size of the rule of thumb.

        The last time that this was measured counts: the machine may have been less busy before.
        """
        size = self.started.job.batch_size
        rates = [point.rows_per_s for point, _ in own.points if point.batch_size == size and point.problem is None]
        by_rule = rates[-1] if rates else 0.0
        if not by_rule:
            return rate(best.rate)
        if (best.contender, best.point.batch_size, best.lanes) == (own, size, own.setting.placement.lanes):
            return f"{rate(best.rate)}: nothing that was tried is faster than {own.setting.runtime} as it runs"
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

    def _convert(self, own: Contender, others: Sequence[Candidate]) -> str | None:
        """Convert the step where that is worth the time; returns its folder, or None where there is none."""
        if not any(candidate.is_converted for candidate in others):
            return None
        folder = store.conversion_folder(self.step)
        if store.is_whole(folder):
            store.touch(folder)
            return folder
        if not own.engine.is_up:
            self._conversion_problem = "not tried: the process that converts the model has died"
            return None
        if self.clock.left < self.outlook.conversion_s + LIGHT_START_S + LOOK_S:
            return None
        # Giving up ends the process that converts, and starting it again takes time: so it gets that much more.
        allowed_s = _CONVERSION_SHARE * self.clock.left + own.start_s
        self.context.note(f"plan: converting the model ({self.clock.left:.0f} s left)")
        try:
            with store.staged(folder) as staging:
                problem = own.engine.convert(staging, Clock(self.context.stop, allowed_s))
                self._conversion_problem = None if problem is None else f"the model does not convert: {problem}"
        except Interrupted:
            raise
        except OutOfTime:
            self._is_cut_short = True
            self._conversion_problem = f"not tried: converting the model takes more than {allowed_s:.0f} s"
        except (OutputError, OSError) as error:
            why = error.received if isinstance(error, OutputError) else error
            self._conversion_problem = f"its conversion cannot be kept: {why}; $PENSTOCK_CACHE names another folder"
        except PenstockError as error:
            self._conversion_problem = f"the model does not convert: {error.problem}"
        return folder if self._conversion_problem is None and store.is_whole(folder) else None

    def _try(self, candidate: Candidate, folder: str | None) -> None:
        """Start a candidate, compare its answers with the model's own, and look at it once."""
        why_not = self._why_not(candidate, folder)
        if why_not is not None:
            self.trials.append(Trial(candidate.runtime, rejected=why_not))
            return
        model = store.converted_model(self.model, folder) if candidate.is_converted and folder else self.model
        setting = replace(self.started.decision.setting, runtime=candidate.runtime, model=model)
        # On a CPU one batch keeps all threads of these runtimes busy; two hinder each other (ResNet50: 20 % slower).
        is_busy = kinds.runtime(candidate.runtime).reads_steps and setting.device_kind == "cpu"
        lanes = 1 if is_busy else setting.placement.lanes
        setting = setting.placed(devices=self._devices(), lanes=lanes)
        self.context.note(f"plan: trying {candidate.runtime} ({self.clock.left:.0f} s left)")
        began_s, started = self.clock.spent, self._start(setting)
        reached = self._look_at(started) if started is not None else None
        own = own_of(self.trials)
        if reached is not None and own is not None:
            gain = reached.rate / own.rows_per_s
            self.outlook = self.outlook.after(candidate.runtime, gain, self.clock.spent - began_s)

    def _why_not(self, candidate: Candidate, folder: str | None) -> str | None:
        left = max(0.0, self.clock.left)
        if candidate.is_converted and folder is None:
            if self._conversion_problem is not None:
                return self._conversion_problem
            return self._leave(candidate, f"converting takes a while, and {left:.0f} s of the search were left")
        needed = self.outlook.cost_s(candidate.runtime)
        if left < needed:
            return self._leave(candidate, f"it takes about {needed:.0f} s, and {left:.0f} s of the search were left")
        if self.is_for_next and not kinds.runtime(candidate.runtime).reads_steps:
            return self._leave(candidate, "it imports a framework, as the model's own does")
        if self.is_for_next and len(self._best) > 1:
            return self._leave(candidate, "one that starts sooner is enough for so short a job")
        if self.is_for_job and not self.is_for_next and not self._is_worth_a_look(candidate.runtime):
            usual = f"{self.outlook.gain(candidate.runtime):.2g} times as fast as {self.started.recipe.runtime}"
            return self._leave(candidate, f"for such models it is about {usual}, which would not save {needed:.0f} s")
        return None

    def _leave(self, candidate: Candidate, why: str) -> str:
        self._is_cut_short = True
        self._left.append(candidate.runtime)
        return f"not tried: {why}"

    def _is_worth_a_look(self, runtime: str) -> bool:
        """Whether a look at a runtime can be expected to save the job more time than it takes."""
        own = own_of(self.trials)
        best = max(self._best[0].rate if self._best else 0.0, self._rate_known)
        return own is None or self.outlook.is_worth_a_look(runtime, own.rows_per_s, best, self.rows)

    @property
    def _rate_known(self) -> float:
        return self.known.rate_of(self.known.choice) if self.known is not None else 0.0

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

    def _look_at(self, one: Contender) -> _Best | None:
        """Measure a contender once, at a size that is likely for it; None where that does not run."""
        ladder = self._ladder(one)
        reached = self._measure_sizes(_Best(one, Point(0), one.setting.placement.lanes, ladder), is_look=True)
        if reached is None:
            self._let_go(one)
            return None
        self._best.append(reached)
        self._best.sort(key=lambda each: -each.rate)
        while self._keeps_too_many():
            self._let_go(self._best.pop().contender)
        return reached

    def _keeps_too_many(self) -> bool:
        count, kind = len(self._best), self.started.recipe.device_kind
        if self.is_for_job or count <= _KEPT_ALIVE[kind]:
            return count > _KEPT_ALIVE[kind]
        taken = sum(each.point.memory_bytes for each in self._best)
        return count > _KEPT_ALIVE_WITHOUT_A_JOB[kind] or taken > available_bytes()

    def _climb_with_the_best(self) -> None:
        """Measure the batch sizes of the best two, and of others that could still win."""
        for place, each in enumerate(list(self._best)):
            if each.contender.is_own and not each.contender.engine.is_up:
                continue  # converting the model ended its process, and its earlier result stays
            fastest = max(other.rate for other in self._best)
            could_win = _RIVAL if self.is_for_job else _COULD_WIN
            if (place >= _CLIMBERS or self.is_for_job) and each.rate < could_win * fastest:
                continue
            if self.clock.left < self._finals_s:
                self._is_cut_short = True
                break
            climbed = self._measure_sizes(each, is_look=False)
            if climbed is None:
                self._best.remove(each)
                self._let_go(each.contender)
            elif climbed.rate >= _RIVAL * fastest:
                self._tune_lanes(climbed)
        self._best.sort(key=lambda each: -each.rate)

    def _measure_sizes(self, reached: _Best, *, is_look: bool) -> _Best | None:
        """Climb a contender's ladder, or take its first step; None, with the reason noted, where nothing runs."""
        climber, ladder = reached.contender, reached.ladder
        name, known = climber.setting.runtime, len(climber.points)
        if not climber.engine.is_up:
            self.trials.append(Trial(name, rejected="it died"))
            return None
        if climber.is_own or not is_look:
            self.context.note(f"plan: measuring {name} ({self.clock.left:.0f} s left)")
        to_beat = max((each.rate for each in self._best), default=0.0)
        steps = 1 if is_look else None
        is_done, why = self._attempt(
            lambda: climber.climb(ladder, self.clock, to_beat=to_beat, until=self._finals_s, steps=steps)
        )
        self._is_cut_short |= is_done is False
        self.trials += [climber.trial(point, lanes) for point, lanes in climber.points[known:]]
        knee = ladder.best
        if why is None and not climber.points:
            why = "it could not be measured"
        if why is not None and (name, why) not in [(trial.runtime, trial.rejected) for trial in self.trials]:
            self.trials.append(Trial(name, rejected=why))
        if knee is None:
            return None
        self.context.note(f"plan: {name}: {rate(knee.rows_per_s)} with batches of {knee.batch_size:,}")
        reached.point = knee
        return reached

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
        likely = tuning.likely_size(started.job.batch_size, started.prepared.batch_seconds)
        # The model's own framework has compiled the size of the rule of thumb already; and where only the start counts,
        # no better size is looked for.
        is_by_rule = climber.is_own or self.is_for_next
        first = min(started.job.batch_size if is_by_rule else likely, most)
        return Ladder(self._measured_in_time(first) if climber.is_own else first, most, climber.room_bytes)

    def _measured_in_time(self, size: int) -> int:
        """The size, or a smaller one that there is time to measure: a process that runs out of time is ended."""
        row_s = self.started.prepared.batch_seconds / self.started.job.batch_size
        most = _OWN_LOOK_SHARE * self.clock.left / max(MOST_CALLS * row_s, 1e-9)
        return size if size <= most else max(1, 1 << max(0, int(most).bit_length() - 1))

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
        rivals = self._best[:2]
        points = self._in_turn((each.contender, each.point.batch_size, each.lanes) for each in rivals)
        if points is not None:
            for each, point in zip(rivals, points, strict=True):
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

    def _drop_unsteady(self) -> None:
        """Leave out contenders of which a size that had run before failed later: the job would fail, too."""
        for each in [each for each in self._best if each.contender.is_unsteady]:
            self._best.remove(each)
            self._let_go(each.contender)

    def _split(self) -> None:
        """Try more replicas, with fewer threads each on a CPU, as long as that gains."""
        while self._best and (setting := self._halved(self._best[0].contender.setting)) is not None:
            if not self._best[0].contender.engine.is_up:
                return  # nothing can be compared with it
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
        points = [point for point in points if more.problem_of(point, lanes) is None]
        fastest = max(points, key=lambda point: point.rows_per_s, default=Point(0))
        is_faster = fastest.rows_per_s >= (1 + tuning.LEAST_GAIN) * best.rate
        return _Best(more, fastest, lanes, best.ladder) if is_faster else None

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
            problem = best.contender.problem_of(point, lanes)
            if problem is None and point.rows_per_s > (1 + tuning.LEAST_GAIN) * best.rate:
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
            return None, error.in_short

    def _let_go(self, one: Contender) -> None:
        if not one.is_own:
            one.engine.close()
