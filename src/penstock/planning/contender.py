"""One way to run the model, in processes of its own: started, compared with the model's own answers, measured."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from penstock.core import tuning
from penstock.core.agreement import (
    CHECKED_ROWS,
    FLOAT64,
    NANS,
    NO_NOISE,
    Noise,
    Proof,
    distances,
    other_on_strangers,
    prove,
)
from penstock.core.messages import Asked, Measure, Prepared
from penstock.core.plans import Trial
from penstock.core.protocols import Tunable
from penstock.core.tuning import LEAST_GAIN, Ladder, Point
from penstock.errors import Interrupted, ModelError, PenstockError
from penstock.jobs.bring_up import Started, prepare_beside
from penstock.jobs.placement import Setting
from penstock.jobs.run_context import RunContext
from penstock.planning import store
from penstock.planning.clock import Clock, OutOfTime
from penstock.pool.devices.inventory import usable_cores

WINDOW_S = 0.4
_ROUNDS = 5
MOST_CALLS = 8
"""The most batches that a measurement runs where a batch takes long: in two lanes, to compile and to time."""
_HOPELESS_AFTER, _BEHIND, _BEHIND_WHILE_GAINING = 3, 0.7, 0.4


@dataclass
class Contender:
    """A setting whose processes are up."""

    setting: Setting
    engine: Tunable
    start_s: float
    proof: Proof | None = None
    """How its answers compare with the model's own; None where it is that framework."""
    is_own: bool = False
    room_bytes: int | None = None
    points: list[tuple[Point, int]] = field(default_factory=list)
    """Every size that was measured, with the lanes it was measured with."""

    @property
    def is_unsteady(self) -> bool:
        """Whether a size that had run before failed later."""
        ran = {(point.batch_size, lanes) for point, lanes in self.points if point.problem is None}
        return any(point.problem is not None and (point.batch_size, lanes) in ran for point, lanes in self.points)

    def measure(self, batch_size: int, clock: Clock, *, lanes: int | None = None) -> Point:
        """Rows a second of all its replicas together, each running batches of this size.

        It is measured twice, and the faster result counts, because other work of the machine only makes it slower. With
        several replicas the second result counts, when all have compiled. A batch that takes long is measured once.

        Raises:
            OutOfTime: The time of the search is over.
            WorkersDied: A replica died of it.
        """
        lanes = self.setting.placement.lanes if lanes is None else lanes
        order = Measure(batch_size, WINDOW_S / 2, lanes, self.room_bytes)
        point, seconds = self._measure_once(order, clock)
        is_long = self.setting.placement.replicas == 1 and seconds > 2 * WINDOW_S
        if point.problem is None and not is_long:
            again, _ = self._measure_once(replace(order, is_warm=True), clock)
            is_better = again.rows_per_s > point.rows_per_s
            point = again if is_better or self.setting.placement.replicas > 1 else point
        self.points.append((point, lanes))
        return point

    def _measure_once(self, order: Measure, clock: Clock) -> tuple[Point, float]:
        """Rows a second, and the seconds of the measurement, without compiling."""
        try:
            replicas = self.engine.measure(order, self.setting.placement.replicas, clock)
        except (Interrupted, OutOfTime):
            raise
        except PenstockError as error:
            self.points.append((Point(order.batch_size, problem=error.in_short), order.lanes))
            raise
        problem = next((each.problem for each in replicas if each.problem is not None), None)
        rate = sum(each.rows_per_s for each in replicas) if problem is None else 0.0
        if self.setting.device_kind == "cpu":
            rate = tuning.with_its_way(rate, order.batch_size, usable_cores())
        point = Point(order.batch_size, rate, max(each.peak_bytes for each in replicas), problem)
        return point, max(each.seconds for each in replicas)

    def climb(self, ladder: Ladder, clock: Clock, *, to_beat: float, until: float, steps: int | None = None) -> bool:
        """Measure the next sizes of a ladder, as many as `steps`; returns whether there was time for them.

        It ends early for a contender that stays behind `to_beat`, the rows a second of another. No size but the first
        begins when only `until` seconds of the search are left.
        """
        last = None if steps is None else len(ladder.points) + steps
        while len(ladder.points) != last and (size := ladder.next()) is not None:
            rates = [point.rows_per_s for point in ladder.points]
            if _is_hopeless(rates, to_beat):
                break
            # A measurement that runs out of time ends its process, which may be that of the job.
            if rates and clock.left < max(until, 4 * WINDOW_S, MOST_CALLS * size / max(*rates, 1e-9)):
                return False
            ladder.add(self.measure(size, clock))
        return True

    def problem_of(self, point: Point, lanes: int) -> str | None:
        """Why a size that was measured must not be chosen: it did not run, or took too much memory.

        The least memory that was measured counts: a process keeps some of the memory of larger sizes.
        """
        same = [known for known, its_lanes in self.points if (known.batch_size, its_lanes) == (point.batch_size, lanes)]
        taken = min((known.memory_bytes for known in same if known.problem is None), default=0)
        if point.problem is None and self.room_bytes is not None and taken > self.room_bytes:
            return f"batches of {point.batch_size:,} take more memory than --memory-fraction allows"
        return point.problem

    def trial(self, point: Point, lanes: int) -> Trial:
        return Trial(
            self.setting.runtime,
            point.batch_size,
            self.setting.threads,
            self.setting.placement.replicas,
            lanes,
            round(point.rows_per_s, 3),
            point.memory_bytes,
            round(self.start_s, 2),
            self.proof.difference if self.proof is not None else None,
            self.problem_of(point, lanes),
            self.proof.allowed if self.proof is not None else None,
        )


def in_turn(
    entries: Sequence[tuple[Contender, int, int]], look: Callable[[Contender, int, int], Point], clock: Clock
) -> list[Point] | None:
    """Measure contenders (each with a size and lanes) in turn, several times; returns the median point of each.

    Up to five times, in a third of the time that is left. None where something fails, or there is no time at all.
    """
    had_s, rounds = clock.left, list[list[Point]]()
    while len(rounds) < _ROUNDS and (had_s - clock.left) * (len(rounds) + 1) <= had_s / 3 * max(1, len(rounds)):
        points = [look(*entry) for entry in entries]
        if any(point.problem for point in points):
            return None
        rounds.append(points)
    by_rate = [sorted(each, key=lambda point: point.rows_per_s) for each in zip(*rounds, strict=True)]
    return [each[len(each) // 2] for each in by_rate] or None


def _is_hopeless(rates: list[float], to_beat: float) -> bool:
    """Whether larger batches will not reach `to_beat`: far behind, or behind and no longer gaining."""
    if len(rates) < _HOPELESS_AFTER:
        return False
    is_gaining = rates[-1] > (1 + LEAST_GAIN) * max(rates[:-1])
    return max(rates) < (_BEHIND_WHILE_GAINING if is_gaining else _BEHIND) * to_beat


def start(
    setting: Setting,
    started: Started,
    tolerance: float | None,
    context: RunContext,
    clock: Clock,
    *,
    is_asked_for: bool = False,
) -> Contender:
    """Start the processes of a setting, and compare its answers with those of `started`, the model's own framework.

    Without a tolerance, the setting runs on that framework, and there is nothing to compare. A runtime that the user
    asked for may give other answers to rows with NaN; the user sees a note about it.

    Raises:
        ModelError: The answers differ, or the runtime refuses the model.
    """
    began = time.perf_counter()
    engine, prepared = answer_first_rows(setting, started, context, clock)
    prepared_s = time.perf_counter() - began
    try:
        proof = _compared(prepared, started, tolerance, context, clock) if tolerance is not None else None
        if proof is not None and (found := proof.problem or (None if is_asked_for else proof.of_nan)) is not None:
            problem = "the answers are not those of" if proof.is_comparable else "not comparable with"
            raise ModelError(f"{problem} the model's own framework", received=found)
    except BaseException:
        engine.close()
        raise
    model = setting.model
    if proof is not None and model is not None and model.kind == "converted":
        store.note_agreement(model.location, model, setting.runtime, setting.placement.devices[0], proof)
    return Contender(setting, engine, prepared_s, proof)


def _compared(ours: Prepared, started: Started, tolerance: float, context: RunContext, clock: Clock) -> Proof:
    """Whether the answers are those of `started`, whose noise is measured once, where it can decide."""
    proof = proof_of(ours, started.prepared, tolerance, started.noise or NO_NOISE)
    if started.noise is None and proof.may_be_noise(tolerance):
        context.note(f"plan: measuring the noise of {started.recipe.runtime} ({clock.left:.0f} s left)")
        started.noise = _noise_of(started, context, clock)
        proof = proof_of(ours, started.prepared, tolerance, started.noise)
    others = other_on_strangers(ours.strangers, started.prepared.strangers)
    of_nan = others.pop(NANS, None)
    return replace(proof, problem=proof.problem or next(iter(others.values()), None), of_nan=of_nan)


def _noise_of(started: Started, context: RunContext, clock: Clock) -> Noise:
    """How far the framework's answers are from the truth or, without float64, from one another.

    Without float64, its answers with another number of threads are compared as well. Noise that cannot be measured
    allows nothing.
    """
    found = NO_NOISE
    if isinstance(started.engine, Tunable) and started.engine.is_up:
        found = started.engine.find_noise(CHECKED_ROWS, clock)
    own = started.prepared
    if found.how == FLOAT64 or own.alone is not None:
        return found
    threads = started.recipe.threads // 2 or 2
    setting = replace(started.decision.setting, threads=threads).placed(devices=started.placement.devices[:1])
    try:
        engine, otherwise = answer_first_rows(setting, started, context, clock)
    except Interrupted:
        raise
    except PenstockError:
        return found
    engine.close()
    if own.answers is None or otherwise.answers is None or own.answered != otherwise.answered:
        return found
    return found.joined(Noise(distances(own.answers, otherwise.answers), f"its answers with {threads} threads"))


def answer_first_rows(
    setting: Setting, started: Started, context: RunContext, clock: Clock
) -> tuple[Tunable, Prepared]:
    """Start the processes of a setting; they answer the first rows of a job, as that job's own processes did.

    They compile a batch of only the rows that are compared: the job's own batches may take long.
    """
    job = started.job
    if job.decoder is not None and not job.decoder.decides_bits:
        job = replace(job, decoder=None)  # loaders decode these few rows to the same pixels
    if not job.buckets and started.signature.fixed_batch is None:
        job = replace(job, batch_size=min(job.batch_size, CHECKED_ROWS))
    return prepare_beside(
        started,
        setting,
        job,
        Asked(len(started.prepared.answered), strangers=tuple(started.prepared.strangers)),
        context.unseen(clock),
    )


def proof_of(ours: Prepared, own: Prepared, tolerance: float, noise: Noise = NO_NOISE) -> Proof:
    """Whether the answers to the first rows are those of the model's own framework, as far as its noise is known."""
    # Where rows differ in size, what counts is the answer to a row alone, without any padding.
    reference = own.answers if own.alone is None else own.alone
    assert ours.answers is not None
    assert reference is not None
    count = min(len(ours.answered), len(own.answered))
    if ours.answered[:count] != own.answered[:count] or not count:
        failed = sorted(set(ours.answered) ^ set(own.answered))
        if not failed:
            return Proof(0.0, "no row of the sample has an answer", is_comparable=False)
        return Proof(0.0, f"row {failed[0]} fails on one side only")
    first = {name: column[:count] for name, column in reference.items()}
    return prove({name: column[:count] for name, column in ours.answers.items()}, first, tolerance, noise)
